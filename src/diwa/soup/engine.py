"""Blending members tensor by tensor, stretch by stretch, with all cores and little memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diwa.errors import WeightsError
from diwa.soup.methods.base import VARIANCE, Method, Stretch
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import narrowed, widened
from diwa.weights.sums import Located

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diwa.weights.member import Member

#: How many numbers are blended at a time: their sums stay in a core's cache.
STRETCH = 1 << 17
#: How many of them NumPy widens at a time: float64 numbers that stay in the first of its caches,
#: which its own choice, four times as many, does not.
_WIDENED = 1 << 11
#: How many tasks for each thread may wait; what is in flight is all the memory that is used.
_AHEAD = 8
#: The least rows of a matrix in a stretch, where a method works by rows: each stretch goes through
#: all of the method's statistics.
_ROWS = 128

#: Takes a finished stretch: the tensor's name, the number it starts at, the numbers.
Sink = Callable[[str, int, "NDArray"], None]


class Part(NamedTuple):
    """A tensor of one member."""

    member: Member
    """Whose it is; a base or a file of statistics counts as one."""
    name: str
    """What it is called there."""

    @property
    def info(self) -> TensorInfo:
        """What it is."""
        return self.member.source.tensors[self.name]

    def array(self) -> NDArray:
        """Its numbers."""
        return self.member.source.array(self.name)

    def address(self) -> int:
        """Where in memory they are, if that is known."""
        return self.member.source.address(self.name)


@dataclass(frozen=True)
class Plan:
    """What to compute a tensor from.

    Args:
        name: what it goes by while it is made: the least of the names that it has.
        info: what it will be.
        method: how it is made; None to take over the only member's as it is.
        members: in an order that does not depend on the arguments'.
        places: where each of them stood among the arguments.
        base: the base's, where the method works on differences to it.
        extra: the method's statistics, in the order of `members`.
        written: under which names it is written; more than one where tensors are tied.
    """

    name: str
    info: TensorInfo
    method: Method | None
    members: Sequence[Part]
    places: Sequence[int]
    base: Part | None = None
    extra: Sequence[Part] = ()
    written: Sequence[str] = ()


class _Opened(NamedTuple):
    """What is read of a tensor, before its numbers are."""

    where: NDArray[np.uintp] | None
    """Where the members' are in memory."""
    base: NDArray | None
    """The base's."""
    extra: list[NDArray]
    """The method's own."""


class _Tensor:
    """One tensor on its way from members to a sink."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lock = Lock()
        self._known: list[Any] = []
        self._by_rows = plan.method is not None and plan.method.by_rows
        # What is cut is a row of single numbers, or a column of rows.
        self._width = max(plan.info.shape[1], 1) if self._by_rows else 1
        self._length = max(STRETCH // self._width, _ROWS) if self._by_rows else STRETCH
        # Filled in by the first thread that needs it; no `cached_property`, with which CPython 3.11
        # crashes now and then where threads come at the same time.
        self._opening = Lock()
        self._opened: _Opened | None = None
        self._arrays: list[NDArray] | None = None

    def _open(self) -> _Opened:
        with self._opening:
            if self._opened is None:
                base = self._array(self.plan.base) if self.plan.base else None
                extra = [self._array(part) for part in self.plan.extra]
                self._opened = _Opened(self._where(), base, extra)
            return self._opened

    def _members(self) -> list[NDArray]:
        with self._opening:
            if self._arrays is None:
                self._arrays = [self._array(part) for part in self.plan.members]
            return self._arrays

    def _where(self) -> NDArray[np.uintp] | None:
        """Where the members' numbers are in memory, if they are all alike and in one row."""
        first = self.plan.members[0].info
        others = (part.info for part in self.plan.members)
        # Members of one network share what is known of a tensor; to look closer takes longer.
        if self._by_rows or any(info is not first and info != first for info in others):
            return None
        where = np.array([part.address() for part in self.plan.members], dtype=np.uintp)
        aligned = not (where % np.uintp(first.kind.bytes)).any()
        return where if aligned and where.all() else None

    def _array(self, part: Part) -> NDArray:
        return part.array() if self._by_rows else part.array().reshape(-1)

    @property
    def starts(self) -> range:
        """Where each stretch starts."""
        return range(0, max(self.plan.info.size, 1), self._length * self._width)

    def stretch(self, start: int) -> Stretch:
        """The numbers from there on, of every member."""
        begin = start // self._width
        part = slice(begin, begin + self._length)
        opened = self._open()
        return Stretch(
            self.plan.name,
            begin // self._length,
            self._part(part, opened.where),
            self.plan.places,
            None if opened.base is None else opened.base[part],
            opened.extra if self._by_rows else [array[part] for array in opened.extra],
        )

    def _part(self, part: slice, start: NDArray[np.uintp] | None) -> Sequence[NDArray]:
        """The members' numbers there."""

        def made() -> list[NDArray]:
            return [array[part] for array in self._members()]

        if start is None:
            return made()
        kind, size = self.plan.members[0].info.kind, self.plan.info.size
        where = start + np.uintp(part.start * kind.bytes)
        return Located(kind.numpy(), where, (len(range(size)[part]),), made)

    def blended(self, start: int) -> NDArray:
        """The finished numbers of a stretch, in the kind they are wanted in."""
        stretch = self.stretch(start)
        method, kind = self.plan.method, self.plan.info.kind
        with np.errstate(over="ignore", invalid="ignore"):
            if method is None:
                wide = stretch.members[0]
            else:
                wide = method.blend(stretch, self._studied(method))
            numbers = narrowed(wide, kind).reshape(-1)
        # A narrower kind can't hold what is not finite: one look tells of both.
        if not np.isfinite(numbers).all():
            self._refuse(stretch, widened(wide.reshape(-1)), widened(numbers))
        if method is not None and self.plan.name.endswith(VARIANCE):
            self._refuse_negative(stretch, widened(numbers), method)
        return numbers

    def _studied(self, method: Method) -> Any:
        """What the method must know of the whole tensor; the first thread finds it out."""
        with self._lock:
            if not self._known:
                stretches = [self.stretch(start) for start in self.starts]
                if not method.linear:
                    for stretch in stretches:
                        self._refuse_nonfinite(stretch)
                self._known.append(method.study(stretches))
        return self._known[0]

    def _refuse(self, stretch: Stretch, wide: NDArray, numbers: NDArray) -> None:
        """Refuses what is not finite, but for what is taken over and was so before."""
        name, method = self.plan.name, self.plan.method
        if method is not None and not np.isfinite(wide).all():
            self._refuse_nonfinite(stretch)
            raise WeightsError(
                f"{name!r}: the {method.name} merge gives numbers that are not finite, though its "
                "members are",
                remedy="choose milder settings",
            )
        # What can't be held is infinite, or NaN in kinds that have no infinity.
        if (~np.isfinite(numbers) & ~np.isnan(wide) & (numbers != wide)).any():
            raise WeightsError(
                f"{name!r}: the result is too large for {self.plan.info.kind.code}",
                remedy="choose a wider --dtype",
            )

    def _refuse_negative(self, stretch: Stretch, numbers: NDArray, method: Method) -> None:
        """Refuses variances that went below 0 on the way from a base past the members."""
        below = numbers < 0
        if below.any() and not any((widened(one)[below] < 0).any() for one in stretch.members):
            raise WeightsError(
                f"{self.plan.name!r}: the {method.name} merge makes variances negative, of which "
                "batch norm makes NaN",
                remedy="choose milder settings, or pass --skip '*running_*' and recalibrate",
            )

    def _refuse_nonfinite(self, stretch: Stretch) -> None:
        """Names who holds NaN or infinity, if somebody does."""
        held = [*zip(self.plan.members, stretch.members, strict=True)]
        if self.plan.base is not None and stretch.base is not None:
            held.append((self.plan.base, stretch.base))
        held += zip(self.plan.extra, stretch.extra, strict=True)
        for part, numbers in held:
            if not np.isfinite(widened(numbers)).all():
                raise WeightsError(
                    f"{part.member.path}: {part.name!r} holds NaN or infinity",
                    remedy=f"leave that file out, or pass --skip '{self.plan.name}'",
                )


def copied(plans: Sequence[Plan]) -> tuple[dict[str, NDArray], Sink]:
    """Room in memory for tensors, and the sink that fills it."""
    ready = {plan.name: np.empty(plan.info.shape, dtype=plan.info.kind.numpy()) for plan in plans}

    def sink(name: str, start: int, numbers: NDArray) -> None:
        ready[name].reshape(-1)[start : start + numbers.size] = numbers

    return ready, sink


def blend(
    plans: Sequence[Plan], sink: Sink, beside: Sequence[Callable[[], int]] = ()
) -> Generator[int, None, None]:
    """Computes tensors and hands their stretches to a sink, in no certain order.

    Args:
        plans: the tensors.
        sink: called from several threads.
        beside: other work for the same threads; says how many numbers it counts as.

    Yields:
        Now and then, how many numbers of all members were worked off since the last time.

    Raises:
        WeightsError: if a member holds NaN or infinity, or the result does.
    """
    threads = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    # A long task for each thread comes last: they begin at one time, and the disk has that time
    # to take in what was made.
    early = max(len(beside) - threads, 0)
    tasks = chain(beside[:early], _tasks(plans, sink), beside[early:])
    pool = ThreadPoolExecutor(threads, initializer=partial(np.setbufsize, _WIDENED))
    finished: SimpleQueue[Future[int]] = SimpleQueue()
    waiting = 0
    try:
        for task in tasks:
            pool.submit(task).add_done_callback(finished.put)
            waiting += 1
            if waiting >= threads * _AHEAD:
                yield finished.get().result()
                waiting -= 1
        for _ in range(waiting):
            yield finished.get().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _tasks(plans: Sequence[Plan], sink: Sink) -> Iterator[Callable[[], int]]:
    """Pieces of work of about a stretch: a part of a large tensor, or many small tensors."""

    def work(stretches: Sequence[tuple[_Tensor, int]]) -> int:
        done = 0
        for tensor, start in stretches:
            numbers = tensor.blended(start)
            sink(tensor.plan.name, start, numbers)
            done += numbers.size * len(tensor.plan.members)
        return done

    together: list[tuple[_Tensor, int]] = []
    size = 0
    for plan in plans:
        tensor = _Tensor(plan)
        for start in tensor.starts:
            together.append((tensor, start))
            size += min(plan.info.size, tensor.starts.step)
            if size >= STRETCH:
                yield partial(work, together)
                together, size = [], 0
    if together:
        yield partial(work, together)
