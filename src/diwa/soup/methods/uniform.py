"""The plain mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from diwa.soup.methods.base import Method, Stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Uniform(Method, frozen=True, kw_only=True):
    """Every member equally."""

    name: ClassVar[str] = "uniform"

    def coefficients(self, count: int) -> tuple[float, ...]:
        """The same for each."""
        return (1 / count,) * count

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """The mean."""
        del known
        return stretch.mean()
