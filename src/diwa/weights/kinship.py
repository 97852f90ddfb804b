"""Whether sets of weights descend from one initialisation, seen from the weights alone.

Networks that were initialised apart have nothing in common but structure: norms, biases, the
average kernel. What is left of a matrix once the mean of every row and of every column is taken
away is, between such networks, uncorrelated: the order of a hidden layer's units is arbitrary,
and over all orders the correlation averages exactly zero. Its variance over all orders is known
as well, so a correlation can be told in standard deviations. Networks that descend from one
initialisation keep a large part of it, however they were trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diwa.weights.agree import holdings
from diwa.weights.geometry import processors
from diwa.weights.gram import gram
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import widened
from diwa.weights.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Of each matrix this many rows and columns are looked at; far more than certainty needs.
_ROWS, _COLUMNS = 128, 512
#: With fewer rows or columns a matrix has too little left once their means are taken away.
_LEAST = 3
#: The spread of the median of many standard normal numbers, over that of their mean.
_OF_MEDIAN = float(np.sqrt(np.pi / 2))


@dataclass(frozen=True)
class Bond:
    """How much two sets of weights have in common.

    Args:
        correlation: the median over matrices; near 1 for siblings, near 0 for strangers.
        sigma: how many standard deviations the correlations are, all matrices taken together,
            above those of networks that were initialised apart.
        power: what `sigma` would be if every matrix were the same in both.
        matrices: how many matrices were compared.
    """

    correlation: float
    sigma: float
    power: float
    matrices: int


@dataclass(frozen=True)
class Kinship:
    """Correlations between the matrices of several sets of weights.

    Args:
        names: of the matrices that could be compared.
        correlations: of shape (matrices, members, members).
        deviations: the standard deviations of such correlations, between networks that were
            initialised apart.
    """

    names: tuple[str, ...]
    correlations: Floats
    deviations: Floats

    def bond(self, one: int, other: int) -> Bond | None:
        """What two members have in common; None if no matrix tells.

        Medians, because a few matrices may be the same in all networks (encodings of positions,
        layers that were never trained), or drawn anew in each (heads).
        """
        count = len(self.names)
        if not count:
            return None
        correlations = self.correlations[:, one, other]
        deviations = self.deviations[:, one, other]
        sure = np.sqrt(count) / _OF_MEDIAN
        return Bond(
            correlation=float(np.median(correlations)),
            sigma=float(np.median(correlations / deviations) * sure),
            power=float(np.median(1 / deviations) * sure),
            matrices=count,
        )

    def below(self, one: int, other: int, correlation: float) -> list[str]:
        """The matrices in which two members have less in common than that."""
        found = self.correlations[:, one, other] < correlation
        return [name for name, low in zip(self.names, found, strict=True) if low]


def matrices(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """The tensors that can tell of an initialisation: floating, with rows and columns.

    Example:
        >>> from diwa.weights.kinds import KINDS
        >>> shapes = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "token": (1, 1, 8)}
        >>> matrices({name: TensorInfo(KINDS["F32"], shape) for name, shape in shapes.items()})
        ['conv.weight']
    """
    return [
        name
        for name, info in tensors.items()
        if info.kind.floating and min(_sides(info.shape)) >= _LEAST
    ]


def kinship(
    sources: Sequence[Source], names: Sequence[str], *, threads: int | None = None
) -> Kinship:
    """Compares matrices of several sets of weights.

    Args:
        sources: the members.
        names: which matrices, of finite numbers; see `matrices`. One without variation in some
            member is left out.
        threads: how many; one per processor by default. The result does not depend on it.

    Example:
        >>> from diwa.weights.source import open_source
        >>> kinship([open_source(path) for path in example_members], []).names
        ()
    """
    held = holdings(sources)

    def compared(name: str) -> tuple[Floats, Floats] | None:
        patterns, spreads = [], []
        for source, own in zip(sources, held, strict=True):
            pattern = _pattern(source.array(own[name]))
            length = _length(pattern)
            if length == 0:
                return None
            pattern /= length
            spreads.append(_length(gram(pattern)))
            patterns.append(pattern)
        # Over all orders of the rows, the variance is the squared norm of one pattern times the
        # other one's transpose, over one less than the number of rows; likewise for columns.
        # Neither exceeds this.
        variance = np.outer(spreads, spreads) / (min(patterns[0].shape) - 1)
        return gram(np.stack(patterns).reshape(len(patterns), -1)), np.sqrt(variance)

    with ThreadPoolExecutor(threads or processors()) as pool:
        found = zip(names, pool.map(compared, names), strict=True)
        kept = {name: both for name, both in found if both is not None}
    empty = np.zeros((0, len(sources), len(sources)))
    return Kinship(
        tuple(kept),
        np.stack([correlations for correlations, _ in kept.values()]) if kept else empty,
        np.stack([deviations for _, deviations in kept.values()]) if kept else empty,
    )


def _length(matrix: Floats) -> float:
    """Its norm. Not NumPy's own, which asks a BLAS, whose threads round differently."""
    return float(np.sqrt(np.square(matrix).sum()))


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns: sides of length 1 don't count, and all but the first are one."""
    long = [side for side in shape if side != 1] or [1]
    return long[0], int(np.prod(long[1:], dtype=np.int64))


def _pattern(array: NDArray) -> Floats:
    """A part of a matrix, less the mean of every row and every column."""
    whole = array.reshape(_sides(array.shape))
    rows, columns = (
        np.unique(np.linspace(0, side - 1, most).astype(np.int64))
        for side, most in zip(whole.shape, (_ROWS, _COLUMNS), strict=True)
    )
    part = np.asarray(widened(whole[np.ix_(rows, columns)]), dtype=np.float64)
    # A nearly constant one (zeros, ones, an untouched norm) must not be seen as a pattern of its
    # rounding errors.
    scale = np.abs(part).max()
    pattern = part - part.mean(axis=0)
    pattern -= pattern.mean(axis=1, keepdims=True)
    pattern[np.abs(pattern) < 1e-9 * scale] = 0.0
    return pattern
