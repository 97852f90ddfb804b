"""Files of tensors, read without ever running code."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from diwa.atomic import replacing
from diwa.errors import WeightsError

#: Where everything we know of a file's weights stands in its metadata. One key, because the
#: order of several is not stable and the same weights must give the same bytes.
METADATA_KEY = "diwa"

_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}
#: What `torch.load` raises for a damaged or refused pickle, besides its own error.
_BROKEN = (
    pickle.UnpicklingError,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_WRAPPINGS = ("state_dict", "model_state_dict", "model_dict", "model")


def write(path: Path, tensors: Mapping[str, torch.Tensor], about: Any) -> None:
    """Writes a safetensors file beside its place and renames it there.

    Args:
        path: where to.
        tensors: name -> tensor; they are written contiguous.
        about: what is known of them, as anything JSON can hold.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(about, sort_keys=True)
    with replacing(path) as part:
        _save(_unshared(plain), part, metadata={METADATA_KEY: text})


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, those that lie in another one's memory copied, which safetensors asks for."""
    taken: set[int] = set()
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    return apart


def _save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        # The library's own way to say that a disk is full.
        raise OSError(str(error)) from error


def about(path: Path) -> dict[str, Any]:
    """What a safetensors file says of itself; empty if it says nothing.

    Raises:
        WeightsError: if the file is missing or damaged.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
    try:
        known = json.loads(metadata.get(METADATA_KEY, "{}"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise WeightsError(f"{path}: its metadata is not JSON ({error})") from error
    if not isinstance(known, dict):
        raise WeightsError(f"{path}: its metadata is not a JSON object")
    return known


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a safetensors file; none of them is read."""
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def stream(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file one at a time, by name, memory-mapped."""
    with _opened(path) as file:
        for name in sorted(file.keys()):
            try:
                tensor = file.get_tensor(name)
            except SafetensorError as error:
                raise WeightsError(f"{path}: {name!r} can't be read ({error})") from error
            yield name, tensor


def read(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file: safetensors, or a pickle that holds nothing but tensors.

    Raises:
        WeightsError: if it can't be read, or would have to run code to be.
    """
    if path.is_file() and path.suffix in _PICKLED:
        return _unpickled(path)
    return dict(stream(path))


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes.

    Raises:
        WeightsError: if there is no such file.
    """
    try:
        with path.open("rb") as file:
            # hashlib.file_digest came with Python 3.11
            sha = hashlib.sha256()
            while block := file.read(1 << 20):
                sha.update(block)
    except OSError as error:
        raise WeightsError(f"{path}: can't be read ({error.strerror})") from error
    return sha.hexdigest()


def _opened(path: Path) -> safe_open:
    if not path.is_file():
        raise WeightsError(f"{path}: no such file", remedy="give the path of a file of weights")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: not a whole safetensors file ({error})", remedy="copy or make it again"
        ) from error


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    try:
        with warnings.catch_warnings():
            # Torch would warn of an unusual pickle, which the error below says better.
            warnings.simplefilter("ignore")
            held = torch.load(path, map_location="cpu", weights_only=True)
    except _BROKEN as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(
            f"{path}: can't be read safely ({why})",
            remedy="save its state_dict again with safetensors.torch.save_file",
        ) from error
    for wrapping in _WRAPPINGS:
        if isinstance(held, dict) and isinstance(held.get(wrapping), dict):
            held = held[wrapping]
            break
    if not isinstance(held, dict):
        raise WeightsError(f"{path}: holds a {type(held).__name__}, not a dictionary of tensors")
    odd = [name for name, value in held.items() if not isinstance(value, torch.Tensor)]
    if odd or not held:
        named = f"{odd[0]!r} is no tensor" if odd else "it is empty"
        raise WeightsError(f"{path}: not a dictionary of tensors ({named})")
    bare = {str(name).removeprefix("module."): value for name, value in held.items()}
    if len(bare) < len(held):
        raise WeightsError(f"{path}: holds two tensors of one name, with and without 'module.'")
    return bare
