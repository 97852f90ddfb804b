"""The mean weighted number by number with each member's Fisher information."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from diwa.errors import SpecError, WeightsError
from diwa.soup.methods.base import Method, Stretch
from diwa.weights.kinds import widened

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Fisher(Method, frozen=True, kw_only=True):
    """Fisher-weighted (Matena and Raffel 2022): each number counts as much as it matters."""

    name: ClassVar[str] = "fisher"
    each: ClassVar[tuple[str, ...]] = ("statistics_files",)

    statistics_files: tuple[str, ...]
    """One file per member, in their order: its diagonal Fisher information, with its own names."""
    floor: float = 1e-6
    """The least information that any number is taken to have."""

    def check(self, count: int) -> None:
        """One file for each member."""
        check_files(self.statistics_files, count)
        if not self.floor > 0:
            raise SpecError(f"floor={self.floor}", remedy="give a number above 0")

    def statistics(self) -> tuple[str, ...]:
        """The files."""
        return self.statistics_files

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """The weighted mean."""
        del known
        total = np.zeros(stretch.members[0].shape)
        weights = np.zeros(total.shape)
        for place, numbers, held in zip(stretch.places, stretch, stretch.extra, strict=True):
            information = widened(held).astype(np.float64)
            if not (information >= 0).all():
                raise WeightsError(
                    f"{self.statistics_files[place]}: {stretch.name!r}: its Fisher information is "
                    "negative or NaN",
                    remedy="give the mean of squared gradients",
                )
            weight = np.maximum(information, self.floor)
            total += weight * numbers
            weights += weight
        return total / weights


def check_files(files: tuple[str, ...], count: int) -> None:
    """One file of statistics for each member.

    Raises:
        SpecError: if there are more or fewer.
    """
    if len(files) != count:
        raise SpecError(
            f"statistics_files: {len(files)} for {count} members",
            remedy="give one per member, in their order",
        )
