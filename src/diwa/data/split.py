"""Which images of a domain are for training and which for validation: pure indices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diwa.seeding import random_state


@dataclass(frozen=True)
class Split:
    """A domain's images in two: `inner` is trained on (80 %), `outer` validates (20 %)."""

    inner: np.ndarray
    outer: np.ndarray

    @property
    def digest(self) -> str:
        """Names this very split."""
        sha = hashlib.sha256()
        for part in (self.inner, self.outer):
            sha.update(len(part).to_bytes(8, "little"))
            sha.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
        return sha.hexdigest()[:16]


def split(count: int, *, trial: int, domain: int, holdout: float = 0.2) -> Split:
    """Splits `count` images of the domain with that index, as the protocol does.

    Example:
        >>> split(10, trial=0, domain=0).outer.tolist()
        [2, 3]
    """
    order = np.arange(count)
    random_state(trial, domain).shuffle(order)
    held_out = int(count * holdout)
    return Split(inner=order[held_out:], outer=order[:held_out])


def common(splits: Sequence[Split]) -> Split:
    """What all of several splits of one domain train on, and everything else.

    What is learnt from it can start runs on any of the splits: none then validates on images that
    its start was trained on.

    Example:
        >>> both = common([split(10, trial=0, domain=0), split(10, trial=1, domain=0)])
        >>> sorted(both.inner.tolist()), sorted(both.outer.tolist())
        ([0, 1, 4, 5, 6, 8, 9], [2, 3, 7])
    """
    if len(splits) == 1:
        return splits[0]
    first = splits[0].inner
    shared = np.logical_and.reduce([np.isin(first, one.inner) for one in splits])
    others = dict.fromkeys(np.concatenate([one.outer for one in splits]).tolist())
    return Split(inner=first[shared], outer=np.array(list(others), dtype=first.dtype))
