"""Weights in the files that `torch.save` writes; read with torch, but without running code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diwa.errors import WeightsError
from diwa.weights.disk import open_file, unreadable
from diwa.weights.domainbed import bare_names
from diwa.weights.header import MOST_SIDES, TensorInfo, check_name
from diwa.weights.index import read_index
from diwa.weights.kinds import kind_of
from diwa.weights.source import SafetensorsFile, Source
from diwa.weights.unpickle import is_safetensors, load
from diwa.weights.unwrap import Unwrapped, unwrap

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

#: What these files are called in a folder that holds a model: one, or the index of several.
WHOLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
#: A tensor may be the same few numbers over and over; no more of them than this beyond the file.
_STRETCHED = 1 << 24
_SAVE_PLAIN = "save it again as a plain tensor"


def open_pickled(path: Path) -> Source:
    """Opens what ends like a pickle: mostly one, sometimes safetensors by another name.

    Raises:
        WeightsError: if it is neither, damaged, or would have to run code to be read.
    """
    try:
        with open_file(path) as file:
            start, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise unreadable(path, error) from error
    return SafetensorsFile(path) if is_safetensors(start, size) else PickledFile(path)


def in_folder(path: Path, names: Sequence[str]) -> Source | None:
    """The model in a folder with files of these names; None if there is none, or more than one.

    Raises:
        WeightsError: if it is damaged, or would have to run code to be read.
    """
    if WHOLE in names and INDEX in names:
        return None
    if INDEX in names:
        return PickledShards(path, path / INDEX)
    return open_pickled(path / WHOLE) if WHOLE in names else None


class PickledFile(Source):
    """A `.pt`, `.pth`, `.bin`, `.ckpt` or `.pkl` file, read without running any code.

    Finds the weights in what training scripts save. Of several entries, the first of
    `state_dict`, `model_state_dict`, `model_dict`, `model`, `module`, `net`, `network` and
    `params` that holds tensors is taken, and only then those of a moving average
    (`state_dict_ema`, `model_ema`, `ema` and the like), again and again while there is one. Taken
    off the names are `module.` where all of them have it, what `torch.compile` and FSDP put in,
    Lightning's `model.` or `net.` where all have it, and DomainBed's names of a ResNet. What was
    taken off, left out or ignored is in `metadata`, beside the hyperparameters and other text.

    Args:
        path: the file.
        wrapping: the entry to take, where it should be another one.
        as_is: take the dictionary of tensors as it is, with all its names.

    Raises:
        WeightsError: if it is damaged, has no weights, or would have to run code to be read.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
        >>> torch.save({"epoch": 3, "state_dict": {"module.w": torch.zeros(2)}}, path)
        >>> source = PickledFile(path)
        >>> source.array("w").tolist(), source.metadata["epoch"], source.metadata["unwrapped"]
        ([0.0, 0.0], '3', 'state_dict/module.')
    """

    def __init__(self, path: Path, *, wrapping: str = "", as_is: bool = False) -> None:
        super().__init__(path)
        held = load(path)
        if as_is:
            found = Unwrapped(held if isinstance(held, dict) else {})
        else:
            found = unwrap(held, path, _is_tensor, wrapping=wrapping)
            if renamed := bare_names(found.tensors, _same):
                found.tensors, way = renamed
                found.way.append(way)
        self._held = {}
        self._infos = {}
        try:
            size = path.stat().st_size
        except OSError as error:
            raise unreadable(path, error) from error
        for name, tensor in found.tensors.items():
            check_name(name, path)
            self._infos[name] = _info(name, tensor, path, size)
            self._held[name] = tensor.detach().resolve_neg()
        self._metadata = found.metadata()

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What every tensor is, in the order of the file."""
        return self._infos

    @property
    def metadata(self) -> Mapping[str, str]:
        """How the weights were found, and the text that stood beside them."""
        return self._metadata

    @cached_property
    def aliases(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tensors that are the same memory: name -> the first of their names by the alphabet."""
        first: dict[Any, str] = {}
        tied = {}
        for name in sorted(self._held):
            if self._infos[name].size:
                kept = first.setdefault(_place(self._held[name]), name)
                if kept != name:
                    tied[name] = kept
        return tied

    @property
    def files(self) -> Mapping[str, Path]:
        """The file itself."""
        return {self.path.name: self.path}

    def array(self, name: str) -> NDArray:
        """A tensor; from a zip file, its bytes are read when they are looked at."""
        from diwa.weights.files import as_array

        try:
            array = as_array(self._held[name])
        except (RuntimeError, MemoryError) as error:
            why = (str(error).splitlines() or ["too large"])[0]
            raise WeightsError(f"{self.path}: {name!r} can't be read ({why})") from error
        array.setflags(write=False)
        return array


class PickledShards(Source):
    """Several `.bin` files, and the index that says which tensor is in which.

    Args:
        path: the folder.
        index: the index file in it.

    Raises:
        WeightsError: if the index and the files don't agree, or a file would have to run code.
    """

    def __init__(self, path: Path, index: Path) -> None:
        super().__init__(path)
        told = read_index(index)
        self._place, self._metadata = told.place, told.metadata
        self._shards: dict[str, PickledFile] = {}
        for shard in told.shards():
            # The index has the names as they are in the files.
            held = PickledFile(shard, as_is=True)
            placed = {name for name, where in self._place.items() if where == shard.name}
            if differ := sorted(placed ^ held.tensors.keys()):
                has = "holds" if differ[0] in held.tensors else "lacks"
                raise WeightsError(
                    f"{shard}: {has} {differ[0]!r}, unlike {index.name} says",
                    remedy="copy or download the folder again",
                )
            self._shards[shard.name] = held

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What every tensor is, shard by shard."""
        return {
            name: info for shard in self._shards.values() for name, info in shard.tensors.items()
        }

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the index says."""
        return self._metadata

    @property
    def aliases(self) -> Mapping[str, str]:
        """Those of all shards."""
        return {n: kept for shard in self._shards.values() for n, kept in shard.aliases.items()}

    @property
    def files(self) -> Mapping[str, Path]:
        """The shards."""
        return {name: shard.path for name, shard in self._shards.items()}

    def array(self, name: str) -> NDArray:
        """A tensor; its bytes are read when they are looked at."""
        return self._shards[self._place[name]].array(name)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _info(name: str, tensor: Any, path: Path, size: int) -> TensorInfo:
    """What a tensor is, if it is a plain one.

    Raises:
        WeightsError: naming it, if it is not.
    """
    import torch

    odd = ""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        odd = f"a {type(tensor).__name__}"
    elif tensor.is_meta:
        odd = "without numbers (on the meta device)"
    elif tensor.is_quantized:
        odd = "quantised"
    elif tensor.layout != torch.strided or tensor.is_nested:
        odd = f"not dense ({'nested' if tensor.is_nested else tensor.layout})"
    elif tensor.dim() > MOST_SIDES:
        odd = f"of {tensor.dim()} dimensions"
    if odd:
        raise WeightsError(f"{path}: {name!r} is {odd}", remedy=_SAVE_PLAIN)
    kind = kind_of(tensor.dtype)
    if kind is None:
        raise WeightsError(
            f"{path}: {name!r} holds numbers of kind {str(tensor.dtype).removeprefix('torch.')}",
            remedy="save it again in a kind that safetensors has",
        )
    info = TensorInfo(kind, tuple(tensor.shape))
    if info.bytes > size + _STRETCHED:
        raise WeightsError(
            f"{path}: {name!r} would take {info.bytes} bytes, of a file of {size}",
            remedy=f"mistrust the file, or {_SAVE_PLAIN}",
        )
    return info


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same memory, seen in the same way."""
    strides = tuple(
        stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1
    )
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), strides)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    if one.shape != other.shape or one.dtype != other.dtype or one.is_meta or other.is_meta:
        return False
    return _place(one) == _place(other) or torch.equal(one, other)
