"""DARE: drop differences to a base at random, scale the others up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from diwa.errors import SpecError
from diwa.soup.methods.arithmetic import check_scale
from diwa.soup.methods.base import Method, Stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Dare(Method, frozen=True, kw_only=True):
    """DARE (Yu et al. 2024): drops differences to the base at random, then averages the rest."""

    name: ClassVar[str] = "dare"
    wants_base: ClassVar[bool] = True
    linear: ClassVar[bool] = False

    drop: float = 0.5
    """The part of the differences that is dropped; the others are divided by what is left."""
    scale: float = 1.0
    """What the mean of the differences is multiplied by."""
    seed: int = 0
    """Of the draws; another number drops others."""

    def check(self, count: int) -> None:
        """A drop that leaves something."""
        del count
        check_scale(self.scale)
        if not 0 <= self.drop < 1:
            raise SpecError(f"drop={self.drop}", remedy="give a number from 0 to below 1")

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """The base, with the mean of what is left of the differences."""
        del known
        base = stretch.origin()
        total = np.zeros(base.shape)
        for numbers, draws in zip(stretch, self._draws(stretch), strict=True):
            total += np.where(draws >= self.drop, numbers - base, 0)
        return base + self.scale * total / ((1 - self.drop) * len(stretch))

    def _draws(self, stretch: Stretch) -> list[NDArray]:
        """Numbers for every member, counted by tensor and stretch rather than by who asks first."""
        from diwa.seeding import seed_hash

        count = stretch.members[0].shape
        return [
            np.random.Generator(
                np.random.Philox(seed_hash(self.seed, "dare", stretch.name, stretch.number, place))
            ).random(count, dtype=np.float32)
            for place in range(len(stretch))
        ]
