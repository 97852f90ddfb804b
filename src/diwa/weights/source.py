"""Where tensors are read from: a file or a folder, mapped into memory and never loaded whole."""

from __future__ import annotations

import hashlib
import json
import mmap
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from diwa.errors import WeightsError
from diwa.weights.digests import sha256
from diwa.weights.disk import open_file, persistent, refuse_others, unreadable
from diwa.weights.header import Header, Listing, TensorInfo, read_header
from diwa.weights.index import read_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Where everything we know of a file's weights stands in its metadata.
METADATA_KEY = "diwa"

#: Endings of files that hold a pickle, which is only ever read without running code.
PICKLED = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl"})

_SAMPLE = 4096
_SAMPLED = 16
_COMPARED = 1 << 20


class Source(ABC):
    """A set of named tensors on disk.

    Args:
        path: the file or folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: dict[str, str] = {}

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What every tensor is, in the order of the file; none of them is read."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, str]:
        """Text by name that the file carries."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Tensors that share their numbers with another one: name -> that one's name."""
        return {}

    @property
    @abstractmethod
    def files(self) -> Mapping[str, Path]:
        """The files that hold the tensors, by name."""

    @abstractmethod
    def array(self, name: str) -> NDArray:
        """A tensor, in the numbers it is stored in; not to be written to."""

    def address(self, name: str) -> int:
        """Where in memory a tensor's numbers lie without gaps; 0 if that is not known."""
        del name
        return 0

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file, worked out once."""
        # No `cached_property`, which before Python 3.12 lets only one source at a time do this.
        if not self._digests:
            self._digests = {name: digest(path) for name, path in self.files.items()}
        return self._digests

    @property
    def digest(self) -> str:
        """The SHA-256 of the file; of several files, that of what `sha256sum` prints for them."""
        if len(self.digests) == 1:
            return next(iter(self.digests.values()))
        listing = "".join(f"{sha}  {name}\n" for name, sha in sorted(self.digests.items()))
        return hashlib.sha256(listing.encode()).hexdigest()

    def _tied(self) -> dict[str, str]:
        """What a merge wrote under several names: as far as it is true, for a file may lie."""
        try:
            said = json.loads(self.metadata.get(METADATA_KEY, "{}")).get("tied", {})
        except (ValueError, AttributeError, RecursionError):
            said = {}
        if not isinstance(said, dict):
            said = {}
        return {
            name: kept
            for name, kept in said.items()
            if name in self.tensors
            and isinstance(kept, str)
            and kept in self.tensors
            and kept not in said
            and self._same_bytes(name, kept)
        }

    def _same_bytes(self, name: str, other: str) -> bool:
        if self.tensors[name] != self.tensors[other]:
            return False
        one, two = (self.array(n).reshape(-1).view(np.uint8) for n in (name, other))
        starts = range(0, one.size, _COMPARED)
        return all(
            np.array_equal(one[at : at + _COMPARED], two[at : at + _COMPARED]) for at in starts
        )

    @property
    def _listing(self) -> Listing:
        return Listing.of(self.tensors)

    @cached_property
    def fingerprint(self) -> bytes:
        """Tells most sources apart by a few of their bytes; equal ones have equal fingerprints."""
        sha = hashlib.sha256(self._listing.text)
        for name in self._listing.largest[:_SAMPLED]:
            flat = self.array(name).reshape(-1)
            count = max(_SAMPLE // max(flat.dtype.itemsize, 1), 1)
            sha.update(flat[:count].tobytes())
            sha.update(flat[-count:].tobytes())
        return sha.digest()


class SafetensorsFile(Source):
    """One safetensors file.

    Raises:
        WeightsError: if it is missing, damaged, or not what its header says.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            with open_file(path) as file:
                self._header: Header = _header(file, path)
                # Python keeps the file open for as long as it is mapped.
                self._bytes = persistent(
                    lambda: mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
        except OSError as error:
            raise unreadable(path, error) from error
        self._address: int = np.frombuffer(self._bytes, np.uint8).__array_interface__["data"][0]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What every tensor is, in the order of the file."""
        return self._header.tensors

    @property
    def metadata(self) -> Mapping[str, str]:
        """Text by name that the file carries."""
        return self._header.metadata

    @cached_property
    def aliases(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What safetensors' `save_model` left out as a copy, or a merge wrote twice."""
        return {**self.left_out, **self._tied()}

    @property
    def left_out(self) -> dict[str, str]:
        """Names that are not stored, and under which other one their numbers are."""
        return {
            name: kept
            for name, kept in self.metadata.items()
            if kept in self.tensors and name not in self.tensors
        }

    @property
    def _listing(self) -> Listing:
        return self._header.layout.listing

    @property
    def files(self) -> Mapping[str, Path]:
        """The file itself."""
        return {self.path.name: self.path}

    def array(self, name: str) -> NDArray:
        """A tensor; its bytes are read when they are looked at."""
        info = self.tensors[name]
        flat = np.frombuffer(
            self._bytes, info.kind.numpy(), count=info.size, offset=self._header.start(name)
        )
        return flat.reshape(info.shape)

    def address(self, name: str) -> int:
        """Where the file is in memory, and there the tensor."""
        return self._address + self._header.start(name)


def _header(file: BinaryIO, path: Path) -> Header:
    try:
        return read_header(file, path)
    except WeightsError:
        file.seek(0)
        # Only now, for a whole header may start like anything.
        refuse_others(file.read(64), path, pickles=True)
        raise


class ShardedFolder(Source):
    """Several safetensors files, and the index that says which tensor is in which.

    Args:
        path: the folder.
        index: the index file in it.

    Raises:
        WeightsError: if the index and the files don't agree.
    """

    def __init__(self, path: Path, index: Path) -> None:
        super().__init__(path)
        told = read_index(index)
        self._place, self._metadata = told.place, told.metadata
        self._shards = {shard.name: SafetensorsFile(shard) for shard in told.shards()}
        for name, shard in self._place.items():
            if name not in self._shards[shard].tensors:
                raise WeightsError(
                    f"{path / shard}: has no tensor {name!r}, though {index.name} says so",
                    remedy="copy or make the folder again",
                )
        for shard, held in self._shards.items():
            stray = [name for name in held.tensors if self._place.get(name) != shard]
            if stray:
                raise WeightsError(
                    f"{path / shard}: holds {stray[0]!r}, which {index.name} does not place there",
                    remedy="copy or make the folder again",
                )

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What every tensor is, shard by shard."""
        return {
            name: info for shard in self._shards.values() for name, info in shard.tensors.items()
        }

    @property
    def metadata(self) -> Mapping[str, str]:
        """What every shard says, and what the index says."""
        said = [shard.metadata for shard in self._shards.values()]
        common = {
            key: text for key, text in said[0].items() if all(s.get(key) == text for s in said)
        }
        return {**self._metadata, **common}

    @cached_property
    def aliases(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Those of all shards, and tensors of different shards that are the same."""
        every = [pair for shard in self._shards.values() for pair in shard.left_out.items()]
        return {**{n: kept for n, kept in every if n not in self.tensors}, **self._tied()}

    @property
    def files(self) -> Mapping[str, Path]:
        """The shards."""
        return {name: shard.path for name, shard in self._shards.items()}

    def array(self, name: str) -> NDArray:
        """A tensor; its bytes are read when they are looked at."""
        return self._shards[self._place[name]].array(name)

    def address(self, name: str) -> int:
        """Where its shard has it."""
        return self._shards[self._place[name]].address(name)


def open_source(path: Path | str) -> Source:
    """Opens a file or a folder of weights; nothing but names and shapes is read.

    Args:
        path: a safetensors file; a folder with one, or with several and their index; a
            .pt, .pth, .bin, .ckpt or .pkl file, which is read without running any code.

    Raises:
        WeightsError: if it is none of these, damaged, or would have to run code to be read.

    Example:
        >>> source = open_source(example_members[0])
        >>> {name: str(info) for name, info in source.tensors.items()}
        {'w': 'F32 (2,)'}
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _of_folder(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if path.suffix.lower() in PICKLED:
        from diwa.weights.pickled import open_pickled

        return open_pickled(path)
    return SafetensorsFile(path)


def _of_folder(path: Path) -> Source:
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    indices = [name for name in names if name.endswith(".safetensors.index.json")]
    if len(indices) == 1:
        return ShardedFolder(path, path / indices[0])
    whole = [name for name in names if name.endswith(".safetensors")]
    if len(whole) == 1 and not indices:
        return SafetensorsFile(path / whole[0])
    if not whole and not indices:
        from diwa.weights.pickled import in_folder

        if held := in_folder(path, names):
            return held
    found = f"{len(whole)} safetensors files and {len(indices)} indices"
    raise WeightsError(
        f"{path}: a folder with {found}, which is no one set of weights",
        remedy="name one file, or a folder with a single model",
    )


def digest(path: Path) -> str:
    """The SHA-256 of a file.

    Raises:
        WeightsError: if it can't be read.
    """
    try:
        return sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error
