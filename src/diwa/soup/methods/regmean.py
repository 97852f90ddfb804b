"""RegMean: each linear layer as the least-squares fit to what all members' layers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from diwa.errors import SpecError, WeightsError
from diwa.soup.methods.base import Method, Stretch
from diwa.soup.methods.fisher import check_files
from diwa.weights.gram import divided, eliminated, product
from diwa.weights.kinds import widened

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RegMean(Method, frozen=True, kw_only=True):
    """RegMean (Jin et al. 2023): fits linear layers to what all members' do on their own inputs."""

    name: ClassVar[str] = "regmean"
    linear: ClassVar[bool] = False
    each: ClassVar[tuple[str, ...]] = ("statistics_files",)
    by_rows: ClassVar[bool] = True
    sparing: ClassVar[bool] = True

    statistics_files: tuple[str, ...]
    """One file per member, in their order: for `layer.weight`, the Gram matrix X'X of the layer's
    inputs under the same name. Tensors without one get the plain mean."""
    shrink: float = 0.9
    """What the Gram matrices' off-diagonal numbers are multiplied by; below 1 for stability."""

    def check(self, count: int) -> None:
        """One file for each member."""
        check_files(self.statistics_files, count)
        if not 0 <= self.shrink <= 1:
            raise SpecError(f"shrink={self.shrink}", remedy="give a number from 0 to 1")

    def statistics(self) -> tuple[str, ...]:
        """The files."""
        return self.statistics_files

    def statistics_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Inputs by inputs, of a matrix."""
        return (shape[1], shape[1]) if len(shape) == 2 else None

    def study(self, stretches: Sequence[Stretch]) -> NDArray:
        """The sum of the shrunk Gram matrices, G, ready to be divided by."""
        total = np.zeros(stretches[0].extra[0].shape)
        for gram in stretches[0].extra:
            total += widened(gram)
        diagonal = total.diagonal().copy()
        total *= self.shrink
        np.fill_diagonal(total, diagonal)
        try:
            return eliminated(total)
        except np.linalg.LinAlgError as error:
            raise WeightsError(
                f"{stretches[0].name!r}: its Gram matrices can't be inverted together",
                remedy="lower shrink, or collect them from more inputs",
            ) from error

    def blend(self, stretch: Stretch, known: NDArray) -> NDArray:
        """The weights W that solve W * sum(G) = sum(W_i G_i)."""
        total = np.zeros(stretch.members[0].shape)
        for numbers, gram in zip(stretch, stretch.extra, strict=True):
            own = numbers * widened(gram.diagonal()).astype(np.float64)
            total += self.shrink * (product(numbers, gram) - own) + own
        return divided(total, known)
