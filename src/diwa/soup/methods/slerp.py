"""Spherical interpolation between two members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from diwa.errors import SpecError
from diwa.soup.methods.base import Method, Stretch
from diwa.weights.gram import cosines

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Above this cosine the arc is a straight line to all digits that matter, and its sine near 0.
_STRAIGHT = 0.9995


class Slerp(Method, frozen=True, kw_only=True):
    """SLERP: along the arc between two members, tensor by tensor."""

    name: ClassVar[str] = "slerp"

    at: float = 0.5
    """How far from the first member to the second: 0 is the first, 1 the second."""

    def check(self, count: int) -> None:
        """Two members."""
        if count != 2:
            raise SpecError(f"slerp of {count} members", remedy="give two, or take another method")
        if not math.isfinite(self.at):
            raise SpecError(f"at={self.at}", remedy="give a number, usually from 0 to 1")

    def study(self, stretches: Sequence[Stretch]) -> tuple[float, float]:
        """How much of the first argument and of the second."""
        cosine = cosines(rows for stretch in stretches for rows in stretch.rows())[0, 1]
        # Nor is there an arc to where there is no direction.
        if not abs(cosine) <= _STRAIGHT:
            return 1 - self.at, self.at
        angle = math.acos(cosine)
        return (
            math.sin((1 - self.at) * angle) / math.sin(angle),
            math.sin(self.at * angle) / math.sin(angle),
        )

    def blend(self, stretch: Stretch, known: tuple[float, float]) -> NDArray:
        """A point on the arc."""
        one, two = stretch
        first, second = (known[place] for place in stretch.places)
        # The sum of two does not depend on their order.
        return np.multiply(one, first, dtype=np.float64) + np.multiply(
            two, second, dtype=np.float64
        )
