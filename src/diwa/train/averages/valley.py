"""Where the validation loss of a run has its valley: a pure function of the losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Valley(NamedTuple):
    """The segments that are averaged; segment n ends with validation n."""

    first: int
    """The first of them."""
    last: int
    """The last of them."""


def valley(
    losses: Sequence[float], *, converge: int = 3, overfit: int = 6, tolerance: float = 0.3
) -> Valley | None:
    """The segments that SWAD averages; None if the loss has not converged.

    It has converged at the first validation whose loss none of the `converge - 1` after it is
    below. The limit is the mean of these `converge` losses, times 1 + tolerance. Before that
    validation, the valley goes back as long as losses are within the limit, but not out of the
    `overfit` validations that end with the one at which convergence shows. After it, the valley
    goes on until `overfit` losses in a row are all above the limit; at the end of the run, fewer
    will do. Each segment counts once. (SWAD's own code leaves out the earliest segment that it
    looks back to, too, which none of its rules asks for.)

    Of the losses so far it gives the valley so far: later ones can only move its end, and that
    only forwards.

    Args:
        losses: one per validation.
        converge: N_s.
        overfit: N_e.
        tolerance: r.

    Example:
        >>> valley([1.0, 0.5, 0.6, 0.7, 0.9, 0.9])
        Valley(first=1, last=3)
        >>> valley([3.0, 2.0, 1.0]) is None
        True
    """
    for shown in range(converge - 1, len(losses)):
        window = losses[shown - converge + 1 : shown + 1]
        if all(window[0] <= loss for loss in window):
            break
    else:
        return None
    limit = sum(window) / converge * (1 + tolerance)
    first = last = shown - converge + 1
    while first > max(0, shown - overfit + 1) and losses[first - 1] <= limit:
        first -= 1
    while any(loss <= limit for loss in losses[last + 1 : last + 1 + overfit]):
        last += 1
    return Valley(first, last)
