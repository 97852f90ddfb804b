"""Between a base and the members' mean, as WiSE-FT has it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from diwa.errors import SpecError
from diwa.soup.methods.base import Method, Stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Interpolate(Method, frozen=True, kw_only=True):
    """WiSE-FT: from the base, part of the way to the members' mean."""

    name: ClassVar[str] = "interpolate"
    wants_base: ClassVar[bool] = True

    alpha: float = 0.5
    """How far: 0 is the base, 1 the members' mean."""

    def check(self, count: int) -> None:
        """A finite way."""
        del count
        if not math.isfinite(self.alpha):
            raise SpecError(f"alpha={self.alpha}", remedy="give a number, usually from 0 to 1")

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """A point on the line."""
        del known
        mean = stretch.mean()
        mean *= self.alpha
        mean += (1 - self.alpha) * stretch.origin()
        return mean
