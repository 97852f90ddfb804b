"""TIES: trim small differences to a base, elect a sign, average those that agree with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from diwa.errors import SpecError
from diwa.soup.methods.arithmetic import check_scale
from diwa.soup.methods.base import Method, Stretch
from diwa.weights.kinds import widened

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Ties(Method, frozen=True, kw_only=True):
    """TIES (Yadav et al. 2023): trims differences to the base, elects signs, averages the rest."""

    name: ClassVar[str] = "ties"
    wants_base: ClassVar[bool] = True
    linear: ClassVar[bool] = False

    density: float = 0.2
    """The part of each member's differences that is kept, the largest of every tensor."""
    scale: float = 1.0
    """What the merged difference is multiplied by."""

    def check(self, count: int) -> None:
        """A density that is a part."""
        del count
        check_scale(self.scale)
        if not 0 < self.density <= 1:
            raise SpecError(f"density={self.density}", remedy="give a number above 0, up to 1")

    def study(self, stretches: Sequence[Stretch]) -> list[int]:
        """Per member, the bits of the smallest difference that is kept."""
        size = sum(stretch.members[0].size for stretch in stretches)
        kept = max(1, round(self.density * size))
        return [
            _kth_largest([partial(_sizes, stretch, place) for stretch in stretches], kept)
            if kept < size
            else 0
            for place in range(len(stretches[0]))
        ]

    def blend(self, stretch: Stretch, known: list[int]) -> NDArray:
        """The base, with the mean of the differences that agree with the elected sign."""
        base = stretch.origin()
        total = np.zeros(base.shape)
        differences = []
        for place, numbers in enumerate(stretch):
            difference = numbers - base
            difference[_bits(difference) < known[place]] = 0
            differences.append(difference)
            total += difference
        sign = np.sign(total)
        merged, agree = np.zeros(base.shape), np.zeros(base.shape)
        for difference in differences:
            same = (np.sign(difference) == sign) & (difference != 0)
            merged += np.where(same, difference, 0)
            agree += same
        return base + self.scale * merged / np.maximum(agree, 1)


def _bits(difference: NDArray) -> NDArray:
    """The sizes of differences as integers, which are ordered as the sizes are."""
    return np.abs(difference).astype(np.float32).view(np.uint32)


def _sizes(stretch: Stretch, place: int) -> NDArray:
    return _bits(widened(stretch.members[place]) - stretch.origin())


def _kth_largest(pieces: Sequence[Callable[[], NDArray]], kept: int) -> int:
    """The k-th largest of many integers that are never held together: by upper, then lower half."""
    upper = np.zeros(1 << 16, dtype=np.int64)
    for piece in pieces:
        upper += np.bincount(piece() >> 16, minlength=1 << 16)
    half, before = _reached(upper, kept)
    lower = np.zeros(1 << 16, dtype=np.int64)
    for piece in pieces:
        bits = piece()
        lower += np.bincount(bits[bits >> 16 == half] & 0xFFFF, minlength=1 << 16)
    rest, _ = _reached(lower, kept - before)
    return (half << 16) | rest


def _reached(counts: NDArray, kept: int) -> tuple[int, int]:
    """The largest value such that `kept` are at least as large, and how many are larger."""
    above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(above, kept))
    return len(counts) - 1 - place, int(above[place] - counts[::-1][place])
