"""Which images of a domain are for training and which for validation: pure indices."""

from __future__ import annotations

import hashlib
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
