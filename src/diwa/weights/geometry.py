"""Where several sets of weights lie: distances and angles between them, tensor by tensor."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diwa.progress import QUIET, Progress
from diwa.spec import Spec
from diwa.weights.agree import holdings
from diwa.weights.gram import gram
from diwa.weights.kinds import widened
from diwa.weights.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: What one thread holds at a time, in bytes: small enough to stay in the processor's cache.
_BUFFER = 2**22
_SHORTEST = 2**12


@dataclass(frozen=True)
class TensorGeometry:
    """One tensor of all members, as inner products.

    Args:
        name: of the tensor.
        products: of every member's deviation from the centre and of the centre itself, which is
            last; an array of shape (members + 1, members + 1).
        based: whether the centre is the base's tensor; else it is the members' mean.
    """

    name: str
    products: Floats
    based: bool

    @property
    def moved(self) -> Floats:
        """Inner products of the members' deviations from the centre."""
        return self.products[:-1, :-1]

    @property
    def raw(self) -> Floats:
        """Inner products of the members themselves."""
        across = self.products[-1, :-1]
        return self.products[-1, -1] + across[:, None] + across[None, :] + self.moved

    @property
    def distances2(self) -> Floats:
        """The squared distance of every member to every other."""
        own = np.diag(self.moved)
        return np.maximum(own[:, None] + own[None, :] - 2 * self.moved, 0.0)


class HotSpot(Spec, frozen=True, kw_only=True):
    """A tensor in which members differ much."""

    tensor: str
    """Its name."""
    share: float
    """Its part of all squared distance between members."""
    change: float
    """How far members are apart in it, over its own norm."""


@dataclass(frozen=True)
class Geometry:
    """Distances, angles and norms of several sets of weights.

    Args:
        tensors: one by one.
        broken: who holds NaN or infinity in which tensor: (the member's place, the name); the base
            comes after the last member. Such tensors count as zeros.
    """

    tensors: tuple[TensorGeometry, ...]
    broken: tuple[tuple[int, str], ...] = ()

    @cached_property
    def norms(self) -> Floats:
        """The length of every member."""
        return np.sqrt(np.maximum(np.diag(self._sum("raw")), 0.0))

    @cached_property
    def distances(self) -> Floats:
        """How far every member is from every other."""
        return np.sqrt(self._sum("distances2"))

    @cached_property
    def relative(self) -> Floats:
        """The same, over the root of the product of their norms: 1.41 if they share nothing."""
        scale = np.sqrt(np.outer(self.norms, self.norms))
        return np.divide(self.distances, scale, out=np.zeros_like(scale), where=scale > 0)

    @cached_property
    def angles(self) -> Floats:
        """Degrees between members, seen from the origin."""
        return _angles(self._sum("raw"))

    @cached_property
    def ratio(self) -> float:
        """The norm of the members' mean over the mean of their norms.

        1 if they are the same, 1 / sqrt(members) if they have nothing in common: then averaging
        shrinks the weights.
        """
        raw = self._sum("raw")
        usual = float(self.norms.mean())
        return float(np.sqrt(max(raw.mean(), 0.0))) / usual if usual else 1.0

    @cached_property
    def from_mean(self) -> Floats:
        """How far every member is from the mean of all."""
        squares = self._sum("distances2")
        return np.sqrt(np.maximum(squares.mean(axis=0) - squares.mean() / 2, 0.0))

    @cached_property
    def from_base(self) -> Floats | None:
        """How far every member is from the base; None without one."""
        based = self._based()
        return None if based is None else np.sqrt(np.maximum(np.diag(based), 0.0))

    @cached_property
    def base_angles(self) -> Floats | None:
        """Degrees between the ways that members have gone from the base; None without one."""
        based = self._based()
        return None if based is None else _angles(based)

    def hot_spots(self, *, least: float = 0.01) -> list[HotSpot]:
        """The tensors with at least that share of all squared distance, most changed first."""
        squares = [float(one.distances2.sum()) for one in self.tensors]
        total = sum(squares)
        found = []
        for one, square in zip(self.tensors, squares, strict=True):
            if total and square >= least * total:
                members = len(one.moved)
                own = float(np.diag(one.raw).mean())
                pairs = square / max(members * (members - 1), 1)
                change = float(np.sqrt(pairs / own)) if own > 0 else 0.0
                found.append(HotSpot(tensor=one.name, share=square / total, change=change))
        return sorted(found, key=lambda spot: (-spot.change, spot.tensor))

    def of(self, wanted: Callable[[str], bool]) -> Geometry:
        """The geometry of some of the tensors alone."""
        return Geometry(tuple(one for one in self.tensors if wanted(one.name)), self.broken)

    def _sum(self, what: str) -> Floats:
        count = len(self.tensors[0].moved) if self.tensors else 0
        return sum((getattr(one, what) for one in self.tensors), np.zeros((count, count)))

    def _based(self) -> Floats | None:
        based = [one.moved for one in self.tensors if one.based]
        return sum(based[1:], based[0]) if based else None


def measure(
    sources: Sequence[Source],
    names: Sequence[str],
    *,
    base: Source | None = None,
    threads: int | None = None,
    progress: Progress = QUIET,
) -> Geometry:
    """Reads every member once, in blocks, and keeps nothing but inner products.

    Args:
        sources: the members.
        names: which tensors; floating ones, and of one shape in all members.
        base: what to centre on, where it has a tensor in that shape; else their mean.
        threads: how many; one per processor by default. The result does not depend on it.
        progress: who hears how it goes.

    Example:
        >>> from diwa.weights.source import open_source
        >>> near = measure([open_source(path) for path in example_members], ["w"])
        >>> near.distances.round(3).tolist()
        [[0.0, 2.828], [2.828, 0.0]]
    """
    return _Measurement(sources, names, base).taken(threads or processors(), progress)


class _Block(NamedTuple):
    """A part of a tensor."""

    name: str
    start: int
    stop: int


class _Measurement:
    def __init__(
        self, sources: Sequence[Source], names: Sequence[str], base: Source | None
    ) -> None:
        self._sources, self._base = list(sources), base
        self._held = holdings([*sources, *([base] if base else [])])
        self._names = [name for name in names if self._size(name)]
        fits = max(_BUFFER // 8 // (len(sources) + 1), _SHORTEST)
        self._length = 1 << (fits.bit_length() - 1)
        self._own = threading.local()
        self._arrays = lru_cache(maxsize=2)(self._opened)

    def taken(self, threads: int, told: Progress) -> Geometry:
        count = len(self._sources) + 1
        products = {name: np.zeros((count, count)) for name in self._names}
        broken: dict[tuple[int, str], None] = {}
        total = sum(-(-self._size(name) // self._length) for name in self._names)
        with told.task("reading weights", total) as task, ThreadPoolExecutor(threads) as pool:
            # Added up in the order of the blocks, whichever thread was first.
            for block, (found, bad) in zip(
                self._blocks(), pool.map(self._measured, self._blocks()), strict=True
            ):
                products[block.name] += found
                broken.update(dict.fromkeys((place, block.name) for place in bad))
                task.advance()
        return Geometry(
            tuple(TensorGeometry(n, p, self._is_based(n)) for n, p in products.items()),
            tuple(sorted(broken)),
        )

    def _size(self, name: str) -> int:
        return self._sources[0].tensors[self._held[0][name]].size

    def _is_based(self, name: str) -> bool:
        """Whether the base has this tensor in the members' shape."""
        if self._base is None or name not in self._held[-1]:
            return False
        own = self._sources[0].tensors[self._held[0][name]]
        its = self._base.tensors[self._held[-1][name]]
        return its.shape == own.shape and its.kind.floating

    def _blocks(self) -> Iterator[_Block]:
        for name in self._names:
            size = self._size(name)
            for start in range(0, size, self._length):
                yield _Block(name, start, min(start + self._length, size))

    def _measured(self, block: _Block) -> tuple[Floats, list[int]]:
        """The inner products of a part of a tensor, and which members are not finite there."""
        rows = self._rows()[:, : block.stop - block.start]
        arrays = self._arrays(block.name)
        for row, array in zip(rows, arrays, strict=False):
            row[:] = widened(array[block.start : block.stop])
        bad = [place for place in range(len(arrays)) if not np.isfinite(rows[place]).all()]
        rows[bad] = 0.0
        if len(arrays) < len(rows):
            np.mean(rows[:-1], axis=0, out=rows[-1])
        rows[:-1] -= rows[-1]
        return gram(rows), bad

    def _opened(self, name: str) -> list[NDArray]:
        """A tensor of every member, and then of the base if it has it."""
        whole = [*self._sources, *([self._base] if self._base and self._is_based(name) else [])]
        # Held on to from one block to the next: a file that does not keep its numbers in order
        # puts them in order each time.
        return [
            source.array(held[name]).reshape(-1)
            for source, held in zip(whole, self._held, strict=False)
        ]

    def _rows(self) -> Floats:
        """This thread's own memory; fresh memory for each block would cost more than the sums."""
        if not hasattr(self._own, "rows"):
            self._own.rows = np.empty((len(self._sources) + 1, self._length))
        return self._own.rows


def _angles(products: Floats) -> Floats:
    lengths = np.sqrt(np.maximum(np.diag(products), 0.0))
    scale = np.outer(lengths, lengths)
    cosines = np.divide(products, scale, out=np.ones_like(scale), where=scale > 0)
    return np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
