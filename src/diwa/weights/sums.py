"""Sums of many arrays in float64: by a small compiled loop where there is one, else by NumPy.

Both give the same bits. The loop is compiled when the package is installed, if the machine has a C
compiler (see `hatch_build.py`); it reads every number once, as fast as memory gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from diwa.weights.kinds import widened

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Where the installation puts the compiled loop.
LIBRARY = Path(__file__).with_name("sums.compiled")
#: The loop for each kind of number, by what `sums.c` calls it.
_LOOPS = {"float32": "diwa_sum_f32_1", "bfloat16": "diwa_sum_bf16_1"}


class Located(Sequence["NDArray"]):
    """Arrays of one kind whose places in memory are known; made only if somebody looks at them.

    To make an array of a tensor and to ask it where it lies takes longer than to add up what small
    tensors hold.

    Args:
        kind: of every number.
        where: the address of each array's first number; all of them are aligned.
        shape: of each array, whose numbers lie there without gaps.
        made: makes the arrays.
    """

    def __init__(
        self,
        kind: np.dtype,
        where: NDArray[np.uintp],
        shape: tuple[int, ...],
        made: Callable[[], Sequence[NDArray]],
    ) -> None:
        self.kind = kind
        self.where = where
        self.shape = shape
        self._make = made
        self._made: Sequence[NDArray] | None = None

    def _arrays(self) -> Sequence[NDArray]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return len(self.where)

    @overload
    def __getitem__(self, place: int) -> NDArray: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[NDArray]: ...
    def __getitem__(self, place: int | slice) -> NDArray | Sequence[NDArray]:
        return self._arrays()[place]

    def __iter__(self) -> Iterator[NDArray]:
        return iter(self._arrays())


def summed(
    arrays: Sequence[NDArray], weights: Sequence[float] | None = None, divisor: float = 1
) -> NDArray:
    """The sum of arrays of one shape in float64, added in their order.

    Args:
        arrays: one or more, of any floating kinds.
        weights: what to multiply each with; none stands for ones.
        divisor: what to divide the sum by.

    Example:
        >>> summed([np.float32([1, 2]), np.float32([3, 4])], weights=[1, 0.5]).tolist()
        [2.5, 4.0]
    """
    if COMPILED is not None:
        located = arrays if isinstance(arrays, Located) else _located(arrays)
        if located is not None and located.kind.name in _LOOPS:
            return COMPILED.summed(located, weights, divisor)
    return _by_numpy(arrays, weights, divisor)


def _located(arrays: Sequence[NDArray]) -> Located | None:
    """The arrays with their addresses, if the loop can take them as they lie there."""
    kind, shape = arrays[0].dtype, arrays[0].shape
    if not kind.isnative:
        return None
    for array in arrays:
        flags = array.flags
        if array.dtype != kind or array.shape != shape:
            return None
        if not (flags.c_contiguous and flags.aligned):
            return None
    where = np.array([_address(array) for array in arrays], dtype=np.uintp)
    return Located(kind, where, shape, lambda: arrays)


def _address(array: NDArray) -> int:
    return array.__array_interface__["data"][0]


def _by_numpy(
    arrays: Sequence[NDArray], weights: Sequence[float] | None, divisor: float
) -> NDArray:
    if weights is None:
        total = widened(arrays[0]).astype(np.float64)
        for array in arrays[1:]:
            np.add(total, widened(array), out=total)
    else:
        total = np.zeros(arrays[0].shape)
        for array, weight in zip(arrays, weights, strict=True):
            total += np.multiply(widened(array), weight, dtype=np.float64)
    return total if divisor == 1 else np.divide(total, divisor, out=total)


class Compiled:
    """The compiled loop.

    Args:
        library: the file that holds it.

    Raises:
        ImportError: if this Python can't call libraries.
        OSError: if there is none, or it is of another kind of machine.
        AttributeError: if it is of another version.
    """

    def __init__(self, library: Path) -> None:
        import ctypes  # which not every Python has

        held = ctypes.CDLL(str(library))
        size, number, pointer = ctypes.c_size_t, ctypes.c_double, ctypes.c_void_p
        self._loops = {kind: getattr(held, name) for kind, name in _LOOPS.items()}
        for loop in self._loops.values():
            loop.argtypes = (pointer, pointer, size, size, number, number, pointer)
            loop.restype = None

    def summed(
        self, arrays: Located, weights: Sequence[float] | None, divisor: float
    ) -> NDArray[np.float64]:
        """The sum."""
        total = np.empty(arrays.shape)
        factors = np.ones(len(arrays)) if weights is None else np.array(weights, dtype=np.float64)
        if factors.shape != arrays.where.shape:
            raise ValueError(f"{len(factors)} weights for {len(arrays)} arrays")
        # What starts at -0 becomes what it would be if it started at its first number.
        start = -0.0 if weights is None else 0.0
        self._loops[arrays.kind.name](
            _address(arrays.where),
            _address(factors),
            len(arrays),
            total.size,
            start,
            divisor,
            _address(total),
        )
        return total


def _compiled() -> Compiled | None:
    try:
        return Compiled(LIBRARY)
    except (ImportError, OSError, AttributeError):
        return None


#: The loop, if this installation has it.
COMPILED = _compiled()
