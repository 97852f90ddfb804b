"""The number formats that tensors have in files, and how they are widened to be added up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Kind:
    """One number format.

    Args:
        code: what safetensors calls it.
        dtype: NumPy's name of it, or that of ml_dtypes.
        bytes: of one number.
        family: float, integer or bool; only like can be merged with like.
        torch: what torch calls it.
    """

    code: str
    dtype: str
    bytes: int
    family: str
    torch: str

    @property
    def floating(self) -> bool:
        """Whether it can be averaged."""
        return self.family == "float"

    def numpy(self) -> np.dtype:
        """The format as NumPy knows it."""
        return _numpy(self.dtype)


KINDS = {
    kind.code: kind
    for kind in (
        Kind("BOOL", "bool", 1, "bool", "bool"),
        Kind("U8", "uint8", 1, "integer", "uint8"),
        Kind("I8", "int8", 1, "integer", "int8"),
        Kind("U16", "uint16", 2, "integer", "uint16"),
        Kind("I16", "int16", 2, "integer", "int16"),
        Kind("U32", "uint32", 4, "integer", "uint32"),
        Kind("I32", "int32", 4, "integer", "int32"),
        Kind("U64", "uint64", 8, "integer", "uint64"),
        Kind("I64", "int64", 8, "integer", "int64"),
        Kind("F8_E4M3", "float8_e4m3fn", 1, "float", "float8_e4m3fn"),
        Kind("F8_E5M2", "float8_e5m2", 1, "float", "float8_e5m2"),
        Kind("F16", "float16", 2, "float", "float16"),
        Kind("BF16", "bfloat16", 2, "float", "bfloat16"),
        Kind("F32", "float32", 4, "float", "float32"),
        Kind("F64", "float64", 8, "float", "float64"),
    )
}

#: What users may call the floating ones.
FLOATS = {
    "fp8_e4m3": "F8_E4M3",
    "fp8_e5m2": "F8_E5M2",
    "fp16": "F16",
    "bf16": "BF16",
    "fp32": "F32",
    "fp64": "F64",
}
_OF_TORCH = {kind.torch: kind for kind in KINDS.values()}
_OF_NUMPY = {kind.dtype: kind for kind in KINDS.values()}


@cache
def _numpy(name: str) -> np.dtype:
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # only who meets such a tensor pays for it

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def kind_of(dtype: object) -> Kind | None:
    """The kind of a NumPy or torch dtype; None if files can't hold it.

    Example:
        >>> import torch
        >>> kind_of(np.dtype("float16")).code, kind_of(torch.bfloat16).code
        ('F16', 'BF16')
    """
    name = str(dtype)
    if name.startswith("torch."):
        return _OF_TORCH.get(name.removeprefix("torch."))
    return _OF_NUMPY.get(name)


def narrowed(array: NDArray, kind: Kind) -> NDArray:
    """Numbers in another kind, each rounded once.

    Example:
        >>> narrowed(np.array([16.0625000002]), KINDS["BF16"]).astype(float).tolist()
        [16.125]
    """
    if array.dtype == np.float64 and kind.bytes < 4 and kind.dtype != "float16":
        # ml_dtypes rounds to float32 on the way, and a number may end up half-way there.
        array = _to_odd(array)
    return array.astype(kind.numpy(), copy=False)


def _to_odd(array: NDArray) -> NDArray:
    """In float32, but never by rounding half-way between two numbers of a kind of fewer digits.

    Of the two that a number is between, such a one gives way to the other, whose last digit is 1.
    """
    near = array.astype(np.float32, order="C")
    flat, bits = near.reshape(-1), near.reshape(-1).view(np.uint32)
    # With 8 binary digits or fewer, all that is half-way ends in so many zeros; little else does.
    spots = np.flatnonzero(bits & 0x7FFF == 0)
    exact, found = array.reshape(-1)[spots], flat[spots]
    moved = (found != exact) & np.isfinite(found)
    further = (exact < found) == np.signbit(found)
    bits[spots[moved & further]] += 1
    bits[spots[moved & ~further]] -= 1
    return near


def widened(array: NDArray) -> NDArray:
    """The same numbers in float32, or in float64 if they were; what is wide enough stays as it is.

    Example:
        >>> widened(np.array([1.5], dtype=np.float16)).dtype
        dtype('float32')
    """
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.name == "bfloat16":
        # The upper half of a float32; shifting is several times faster than converting.
        return np.left_shift(array.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
    return array.astype(np.float32)
