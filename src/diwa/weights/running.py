"""A mean that grows: machines average apart and join what they have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diwa.atomic import replacing
from diwa.errors import WeightsError
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import KINDS, Kind, kind_of, narrowed, widened
from diwa.weights.source import METADATA_KEY, Source, open_source
from diwa.weights.writer import FileWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What names start with in a file. Every name has one of these, so that none can be mistaken.
_SUM, _REST, _FIRST = "sum/", "rest/", "first/"
#: Float64 tells all smaller counts apart.
_MOST = 2**53


class RunningMean:
    """The mean of sets of tensors that come one at a time, or as other running means.

    Each sum is kept in two float64 numbers, the second of which holds what rounding took from the
    first: about 106 bits. So sums of float32 and narrower numbers are exact, and the mean is the
    same in whatever order and grouping they came, as long as what is added to one number spans no
    more than 2**75 or so in size; beyond that, it differs by less than float64 can tell.

    Integers are those of the first set.

    Example:
        >>> here, there = RunningMean(), RunningMean()
        >>> here.add({"w": np.array([1.0, 2.0], dtype=np.float32)})
        >>> there.add({"w": np.array([3.0, 6.0], dtype=np.float32)})
        >>> here.merge(there)
        >>> here.count, here.result()["w"].tolist()
        (2, [2.0, 4.0])
    """

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, Kind] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sums: dict[str, tuple[NDArray, NDArray]] = {}
        self._integers: dict[str, NDArray] = {}

    def add(self, tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Takes in one more set of tensors, NumPy's or torch's; nothing of it is kept.

        Raises:
            WeightsError: if names, shapes or kinds differ from those before, a number is not
                finite, or a sum is too large; the mean is then as it was.
        """
        arrays = {name: _as_array(name, tensor) for name, tensor in dict(tensors).items()}
        kinds = {name: _kind(name, array) for name, array in arrays.items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        self._agree(kinds, shapes, "the set of tensors")
        for name, array in arrays.items():
            if kinds[name].floating and not np.isfinite(widened(array)).all():
                raise WeightsError(f"{name!r} holds NaN or infinity", remedy="leave that set out")
            if array.dtype == np.float64:
                self._check_room(name, array, np.zeros(array.shape))
        if not self.count:
            self._kinds, self._shapes = kinds, shapes
        for name, array in arrays.items():
            if kinds[name].floating:
                self._take_in(name, widened(array).astype(np.float64), np.zeros(array.shape))
            else:
                self._integers.setdefault(name, array.copy())
        self.count += 1

    def merge(self, other: RunningMean) -> None:
        """Takes in all that another running mean took in.

        Raises:
            WeightsError: if names, shapes or kinds differ, or a sum is too large; the mean is then
                as it was.
        """
        if not isinstance(other, RunningMean):
            raise WeightsError(f"a {type(other).__name__} is no running mean", remedy="add it")
        if not other.count:
            return
        self._agree(other._kinds, other._shapes, "the other mean")
        for name, (total, rest) in other._sums.items():
            self._check_room(name, total, rest)
        if not self.count:
            self._kinds, self._shapes = dict(other._kinds), dict(other._shapes)
        for name, (total, rest) in other._sums.items():
            self._take_in(name, total.copy(), rest.copy())
        for name, array in other._integers.items():
            self._integers.setdefault(name, array.copy())
        self.count += other.count

    def result(self) -> dict[str, NDArray]:
        """The mean, in the kinds of the first set.

        Raises:
            WeightsError: if nothing was added, or a mean is too large for its kind.
        """
        if not self.count:
            raise WeightsError("nothing to average", remedy="add at least one set of tensors")
        means: dict[str, NDArray] = {}
        for name, kind in self._kinds.items():
            if not kind.floating:
                means[name] = self._integers[name].copy()
                continue
            total, rest = self._sums[name]
            with np.errstate(over="ignore"):
                # One rounding for the sum, one for the quotient, one for the kind.
                mean = narrowed(np.asarray((total + rest) / self.count), kind)
            if not np.isfinite(widened(mean)).all():
                raise WeightsError(
                    f"{name!r}: its mean is too large for {kind.code}",
                    remedy="start with a set of a wider kind",
                )
            means[name] = mean
        return means

    def save(self, path: Path | str) -> Path:
        """Writes all that is known, so that another machine can go on with it.

        Raises:
            StoreError: if the place can't be written.
        """
        arrays = {_FIRST + name: array for name, array in self._integers.items()}
        for name, (total, rest) in self._sums.items():
            arrays[_SUM + name], arrays[_REST + name] = total, rest
        infos = _stored(self._kinds, self._shapes)
        kinds = {name: kind.code for name, kind in self._kinds.items()}
        said = {"running": {"count": self.count, "kinds": kinds}}
        metadata = {METADATA_KEY: json.dumps(said, sort_keys=True)}
        with replacing(Path(path)) as part, FileWriter(part, infos, metadata) as writer:
            for name, array in arrays.items():
                writer.put(name, 0, array)
        return Path(path)

    @classmethod
    def load(cls, path: Path | str) -> RunningMean:
        """What `save` wrote.

        Raises:
            WeightsError: if the file holds something else.
        """
        source = open_source(path)
        try:
            mean = cls._read(source)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise WeightsError(
                f"{path}: not a running mean", remedy="give a file that RunningMean.save wrote"
            ) from error
        return mean

    @classmethod
    def _read(cls, source: Source) -> RunningMean:
        said = json.loads(source.metadata[METADATA_KEY])["running"]
        mean = cls()
        mean.count = said["count"]
        mean._kinds = {name: KINDS[code] for name, code in said["kinds"].items()}
        if type(mean.count) is not int or not bool(mean._kinds) <= mean.count < _MOST:
            raise ValueError(f"{mean.count!r} sets")
        for name, kind in mean._kinds.items():
            if kind.floating:
                total, rest = source.array(_SUM + name).copy(), source.array(_REST + name).copy()
                with np.errstate(over="ignore", invalid="ignore"):
                    if not np.isfinite(total + rest).all():
                        raise ValueError(f"{name!r} holds NaN or infinity")
                mean._sums[name], mean._shapes[name] = (total, rest), total.shape
            else:
                mean._integers[name] = source.array(_FIRST + name).copy()
                mean._shapes[name] = mean._integers[name].shape
        if source.tensors != _stored(mean._kinds, mean._shapes):
            raise ValueError("other tensors than those of its kinds")
        return mean

    def _agree(
        self, kinds: Mapping[str, Kind], shapes: Mapping[str, tuple[int, ...]], whose: str
    ) -> None:
        if not self.count:
            return
        for name in sorted(kinds.keys() | self._kinds.keys()):
            if name not in kinds or name not in self._kinds:
                lacks = whose if name not in kinds else "what was added before"
                raise WeightsError(f"{name!r}: {lacks} has no such tensor")
            if shapes[name] != self._shapes[name]:
                raise WeightsError(f"{name!r}: shape {shapes[name]}, before {self._shapes[name]}")
            if kinds[name].family != self._kinds[name].family:
                raise WeightsError(f"{name!r}: {kinds[name].code}, before {self._kinds[name].code}")

    def _check_room(self, name: str, total: NDArray, rest: NDArray) -> None:
        """Before anything changes, for a sum that overflows can't be mended."""
        if name not in self._sums:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            fits = all(np.isfinite(part).all() for part in self._joined(name, total, rest))
        if not fits:
            raise WeightsError(
                f"{name!r}: the sum is too large for float64", remedy="scale the tensors down"
            )

    def _take_in(self, name: str, total: NDArray, rest: NDArray) -> None:
        joined = self._joined(name, total, rest) if name in self._sums else (total, rest)
        self._sums[name] = joined

    def _joined(self, name: str, total: NDArray, rest: NDArray) -> tuple[NDArray, NDArray]:
        high, low = self._sums[name]
        summed, lost = _two_sum(high, total)
        lower, lost_too = _two_sum(low, rest)
        summed, lost = _fast_two_sum(summed, lost + lower)
        return _fast_two_sum(summed, lost + lost_too)


def _stored(
    kinds: Mapping[str, Kind], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorInfo]:
    """What a file holds of tensors of these kinds and shapes."""
    infos = {}
    for name, kind in kinds.items():
        if kind.floating:
            infos[_SUM + name] = infos[_REST + name] = TensorInfo(KINDS["F64"], shapes[name])
        else:
            infos[_FIRST + name] = TensorInfo(kind, shapes[name])
    return infos


def _two_sum(one: NDArray, other: NDArray) -> tuple[NDArray, NDArray]:
    """The sum and exactly what rounding took from it (Knuth)."""
    total = one + other
    part = total - one
    return total, (one - (total - part)) + (other - part)


def _fast_two_sum(large: NDArray, small: NDArray) -> tuple[NDArray, NDArray]:
    """The same where the first is the larger (Dekker)."""
    total = large + small
    return total, small - (total - large)


def _as_array(name: str, tensor: Any) -> NDArray:
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, np.generic):
        return np.asarray(tensor)
    if hasattr(tensor, "detach"):
        from diwa.weights.files import as_array

        return as_array(tensor)
    raise WeightsError(f"{name!r} is a {type(tensor).__name__}", remedy="give arrays or tensors")


def _kind(name: str, array: NDArray) -> Kind:
    kind = kind_of(array.dtype)
    if kind is None:
        raise WeightsError(f"{name!r} holds {array.dtype}, which can't be averaged")
    return kind
