"""Task arithmetic: the members' differences to a base, added up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from diwa.errors import SpecError
from diwa.soup.methods.base import Method, Stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Arithmetic(Method, frozen=True, kw_only=True):
    """Task arithmetic (Ilharco et al. 2023): base + scale * sum of (member - base)."""

    name: ClassVar[str] = "arithmetic"
    wants_base: ClassVar[bool] = True

    scale: float = 0.3
    """What the sum of the differences is multiplied by; negative ones unlearn."""

    def check(self, count: int) -> None:
        """A finite scale."""
        del count
        check_scale(self.scale)

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """The base with all differences added."""
        del known
        base = stretch.origin()
        total = np.zeros(base.shape)
        for numbers in stretch:
            total += numbers - base
        return base + self.scale * total


def check_scale(scale: float) -> None:
    """A finite scale.

    Raises:
        SpecError: for NaN or infinity.
    """
    if not math.isfinite(scale):
        raise SpecError(f"scale={scale}", remedy="give a finite number")
