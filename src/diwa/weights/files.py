"""Files of weights for who works with torch; `source` and `writer` do the same without it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diwa.atomic import replacing
from diwa.errors import WeightsError
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import kind_of
from diwa.weights.member import said_by
from diwa.weights.source import METADATA_KEY, Source, digest, open_source
from diwa.weights.writer import FileWriter

__all__ = ["about", "as_array", "as_tensor", "digest", "read", "shapes", "stream", "write"]

if TYPE_CHECKING:
    from numpy.typing import NDArray


def write(path: Path, tensors: Mapping[str, torch.Tensor], about: Any) -> None:
    """Writes a safetensors file beside its place and renames it there.

    Args:
        path: where to.
        tensors: name -> tensor; they are written contiguous.
        about: what is known of them, as anything JSON can hold.

    Raises:
        WeightsError: for a tensor of numbers that files can't hold.
    """
    infos = {}
    for name, tensor in tensors.items():
        kind = kind_of(tensor.dtype)
        if kind is None:
            raise WeightsError(f"{path}: {name!r} is {tensor.dtype}, which files can't hold")
        infos[name] = TensorInfo(kind, tuple(tensor.shape))
    metadata = {"format": "pt", METADATA_KEY: json.dumps(about, sort_keys=True)}
    with replacing(path) as part, FileWriter(part, infos, metadata) as writer:
        for name, tensor in tensors.items():
            writer.put(name, 0, as_array(tensor))


def as_array(tensor: torch.Tensor) -> NDArray:
    """The numbers of a tensor as NumPy sees them; shared with it where it lies in memory plainly.

    Raises:
        WeightsError: for numbers that files can't hold.
    """
    kind = kind_of(tensor.dtype)
    if kind is None:
        raise WeightsError(f"a tensor is {tensor.dtype}, which files can't hold")
    plain = tensor.detach().cpu().contiguous()
    if kind.code == "BF16" or kind.bytes == 1:
        # NumPy takes over the bytes, since torch can't hand over formats that NumPy lacks.
        bare = plain.view(torch.int16 if kind.bytes == 2 else torch.uint8)
        return bare.numpy().view(kind.numpy())
    return plain.numpy()


def as_tensor(array: NDArray) -> torch.Tensor:
    """The numbers of an array as torch sees them, in memory of their own."""
    kind = kind_of(array.dtype)
    assert kind is not None
    # Not ascontiguousarray, which makes a scalar a vector.
    own = np.array(array, order="C")
    if kind.code == "BF16" or kind.bytes == 1:
        bare = own.view(np.int16 if kind.bytes == 2 else np.uint8)
        return torch.from_numpy(bare).view(getattr(torch, kind.torch))
    return torch.from_numpy(own)


def about(path: Path) -> dict[str, Any]:
    """What a file says of itself; empty if it says nothing.

    Raises:
        WeightsError: if the file is missing or damaged.
    """
    return said_by(open_source(path))


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a file; none of them is read."""
    return {name: info.shape for name, info in open_source(path).tensors.items()}


def stream(source: Source | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a file one at a time, by name."""
    opened = source if isinstance(source, Source) else open_source(source)
    for name in sorted(opened.tensors):
        yield name, as_tensor(opened.array(name))


def read(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file or folder by name, in its order; see `open_source`.

    Raises:
        WeightsError: if it can't be read, or would have to run code to be.
    """
    source = open_source(path)
    return {name: as_tensor(source.array(name)) for name in source.tensors}
