"""The mean with a weight for each member."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from diwa.errors import SpecError
from diwa.soup.methods.base import Method, Stretch
from diwa.weights.sums import summed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Weighted(Method, frozen=True, kw_only=True):
    """Each member as much as its weight says; the weights are divided by their sum."""

    name: ClassVar[str] = "weighted"
    each: ClassVar[tuple[str, ...]] = ("weights",)

    weights: tuple[float, ...]
    """One number per member, in their order."""

    def check(self, count: int) -> None:
        """One finite weight for each, and not a sum of 0."""
        if len(self.weights) != count:
            raise SpecError(
                f"weights: {len(self.weights)} for {count} members", remedy="give one per member"
            )
        if not all(math.isfinite(weight) for weight in self.weights):
            raise SpecError(f"weights {self.weights}", remedy="give finite numbers")
        # `fsum` is exact, but fails where the plain sum is infinite.
        total = sum(self.weights)
        total = math.fsum(self.weights) if math.isfinite(total) else total
        if total == 0 or not math.isfinite(total):
            raise SpecError(
                f"weights {self.weights}: their sum is {total:g}",
                remedy="give weights that can be divided by their sum",
            )

    def coefficients(self, count: int) -> tuple[float, ...]:
        """The weights, divided by their sum."""
        del count
        total = math.fsum(self.weights)
        return tuple(weight / total for weight in self.weights)

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """The weighted mean."""
        del known
        shares = self.coefficients(len(stretch))
        return summed(stretch.members, [shares[place] for place in stretch.places])
