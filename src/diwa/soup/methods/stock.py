"""Model Stock: how far to go from the base to the mean, told by the members' angle."""

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


class Stock(Method, frozen=True, kw_only=True):
    """Model Stock (Jang et al. 2024): as far from the base as the members' angle warrants."""

    name: ClassVar[str] = "stock"
    wants_base: ClassVar[bool] = True

    def check(self, count: int) -> None:
        """Two members at least, for an angle."""
        if count < 2:
            raise SpecError("stock of 1 member", remedy="give two or more")

    def study(self, stretches: Sequence[Stretch]) -> float:
        """The way from the base to the mean, t = N cos / (1 + (N - 1) cos)."""
        count = len(stretches[0])
        every = cosines(rows for stretch in stretches for rows in stretch.rows())
        # Who has not moved has no direction, and no say.
        known = [cosine for cosine in every[np.tril_indices(count, -1)] if not math.isnan(cosine)]
        if not known:
            return 1.0
        # Members that point apart have nothing in common to go towards: stay at the base.
        cosine = max(0.0, math.fsum(known) / len(known))
        return count * cosine / (1 + (count - 1) * cosine)

    def blend(self, stretch: Stretch, known: float) -> NDArray:
        """A point between the base and the mean."""
        return np.asarray(known * stretch.mean() + (1 - known) * stretch.origin())
