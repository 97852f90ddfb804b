"""The header of a safetensors file: read without trust, written to the same bytes every time.

Own code and not the safetensors package, because that one gives tensors, and to merge files larger
than memory in an instant one needs to know where each tensor lies.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from diwa.errors import WeightsError
from diwa.weights.kinds import KINDS, Kind

#: The longest header that the safetensors package reads.
LONGEST = 100_000_000
_LENGTH = 8
_METADATA = "__metadata__"
#: What a header starts with that tells its metadata first, as the safetensors package has it.
_METADATA_FIRST = re.compile(rf'[ \t\n\r]*{{[ \t\n\r]*"{_METADATA}"[ \t\n\r]*:[ \t\n\r]*')
#: The most dimensions that every NumPy has room for.
MOST_SIDES = 32
_WIDEST = max(kind.bytes for kind in KINDS.values())
#: What errors show of what a file says, which may be of any length and depth.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor before it is read."""

    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes they take in a file."""
        return self.size * self.kind.bytes

    def __str__(self) -> str:
        return f"{self.kind.code} {self.shape}"


@dataclass(frozen=True)
class Layout:
    """Which tensors a file holds, and where: the same object for files with equal ones.

    Args:
        tensors: name -> what it is, in the order of the file; not to be changed.
        begins: name -> where it starts, from the end of the header.
        size: how many bytes follow the header.
        listing: names and kinds, to compare files by.
    """

    tensors: dict[str, TensorInfo]
    begins: dict[str, int]
    size: int
    listing: Listing


@dataclass(frozen=True)
class Listing:
    """What to compare two files by.

    Args:
        text: every tensor's name and what it is.
        largest: the names, those of large tensors first.
    """

    text: bytes
    largest: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Mapping[str, TensorInfo]) -> Listing:
        """The listing of some tensors."""
        names = sorted(tensors)
        text = "".join(f"{name}\0{tensors[name]}\n" for name in names)
        return cls(text.encode(), tuple(sorted(names, key=lambda name: -tensors[name].bytes)))


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself.

    Args:
        layout: which tensors it holds, and where.
        length: of the header, in bytes.
        metadata: text by name.
    """

    layout: Layout
    length: int
    metadata: dict[str, str]

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """What every tensor is, in the order of the file."""
        return self.layout.tensors

    def start(self, name: str) -> int:
        """Where a tensor starts, from the start of the file."""
        return self.length + self.layout.begins[name]


#: Layouts that are in use, by a digest of the text that tells of them. Checkpoints of one network
#: have the same one, and to check each of hundreds of tensors takes longer than to add it up.
_IN_USE: WeakValueDictionary[str, Layout] = WeakValueDictionary()


def read_header(file: BinaryIO, path: Path) -> Header:
    """Reads and checks a header.

    Raises:
        WeightsError: if the file is not whole, or says of itself what can't be.
    """
    size = os.fstat(file.fileno()).st_size
    if size < _LENGTH:
        raise _damaged(path, f"it has {size} bytes")
    length = int.from_bytes(file.read(_LENGTH), "little")
    if length > min(size - _LENGTH, LONGEST):
        raise _damaged(path, f"a header of {length} bytes in {size}")
    found, metadata = _understood(file.read(length), path)
    length += _LENGTH
    if length + found.size != size:
        raise _damaged(path, f"it has {size} bytes, and its header tells of {length + found.size}")
    return Header(found, length, _metadata(metadata, path))


def _understood(text: bytes, path: Path) -> tuple[Layout, Any]:
    """What a header says of the tensors, which is checked, and its metadata, which are not."""
    metadata, key = _apart(text)
    known = _IN_USE.get(key) if key else None
    if known is not None:
        return known, metadata
    said = _parsed(text, path)
    metadata = said.pop(_METADATA, {})
    found = _layout(said, path)
    if key:
        _IN_USE[key] = found
    return found, metadata


def _apart(text: bytes) -> tuple[Any, str]:
    """A header's metadata, and a key of the rest; none if that is not to be had easily.

    Whether metadata came first is part of the key: what is right after them is wrong without.
    """
    try:
        whole = text.decode()
        if begin := _METADATA_FIRST.match(whole):
            metadata, end = _DECODER.raw_decode(whole, begin.end())
            return metadata, f"after metadata: {_digest(whole[end:])}"
    except (ValueError, RecursionError):
        return {}, ""
    # Metadata that stand elsewhere would be lost with the text around them.
    lost = f'"{_METADATA}"' in whole or "\\" in whole
    return {}, "" if lost else f"alone: {_digest(whole)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _layout(said: dict[str, Any], path: Path) -> Layout:
    places = sorted(
        ((*_placed(name, held, path), name) for name, held in said.items()),
        key=lambda place: (place[0], place[1], place[3]),
    )
    at = 0
    for begin, end, _, name in places:
        if begin != at:
            raise _damaged(path, f"{name!r} starts at byte {begin} of the tensors, not at {at}")
        at = end
    tensors = {name: info for _, _, info, name in places}
    return Layout(tensors, {name: begin for begin, _, _, name in places}, at, Listing.of(tensors))


def _damaged(path: Path, why: str) -> WeightsError:
    return WeightsError(
        f"{path}: not a whole safetensors file ({why})", remedy="copy or make it again"
    )


class _TwiceError(ValueError):
    """A name that a JSON object has twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        raise _TwiceError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return held


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        said = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except _TwiceError as error:
        name = _SHORT.repr(error.args[0])
        raise _damaged(path, f"its header names {name} twice") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise _damaged(path, "its header is no JSON object")
    return said


def _metadata(held: Any, path: Path) -> dict[str, str]:
    if not isinstance(held, dict) or not all(isinstance(text, str) for text in held.values()):
        raise _damaged(path, "its metadata is not text by name")
    try:
        "".join([*held, *held.values()]).encode()
    except UnicodeEncodeError as error:
        raise _damaged(path, "its metadata is not Unicode") from error
    return held


def _placed(name: str, held: Any, path: Path) -> tuple[int, int, TensorInfo]:
    check_name(name, path)
    if not _is_description(held):
        raise _damaged(path, f"{name!r} is described as {_SHORT.repr(held)}")
    kind = KINDS.get(held["dtype"]) if isinstance(held["dtype"], str) else None
    if kind is None:
        raise WeightsError(
            f"{path}: {name!r} holds numbers of kind {_SHORT.repr(held['dtype'])}",
            remedy=f"known are {', '.join(KINDS)}",
        )
    info, offsets = TensorInfo(kind, tuple(held["shape"])), held["data_offsets"]
    if offsets[1] - offsets[0] != info.bytes:
        raise _damaged(path, f"{name!r} is {info}, which is not {offsets[1] - offsets[0]} bytes")
    return offsets[0], offsets[1], info


def _is_description(held: Any) -> bool:
    if not isinstance(held, dict) or held.keys() != {"dtype", "shape", "data_offsets"}:
        return False
    shape, offsets = held["shape"], held["data_offsets"]
    if not (_counts(shape) and _counts(offsets) and len(offsets) == 2 and len(shape) <= MOST_SIDES):
        return False
    # Without the zeros, for NumPy multiplies the other sides even where there are no numbers.
    return math.prod(side for side in shape if side) * _WIDEST < 2**63


def _counts(held: Any) -> bool:
    return isinstance(held, list) and all(type(one) is int and 0 <= one < 2**63 for one in held)


def check_name(name: object, path: Path) -> None:
    """Refuses names that could do harm where they are printed or can't be written.

    Raises:
        WeightsError: for a name that is no text, or holds control characters.
    """
    if not isinstance(name, str) or len(name) > 4096 or name == _METADATA:
        # Of a name that is no text, what it is: it may be anything, even a tensor of many lines.
        said = ascii(name[:60]) if isinstance(name, str) else f"by a {type(name).__name__}"
        raise WeightsError(f"{path}: a tensor is called {said}", remedy="rename it and save again")
    # Nearly all names are plain; to look at each character of thousands would show in a merge.
    if name.isascii() and name.isprintable():
        return
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in name):
        raise WeightsError(
            f"{path}: the tensor name {name[:60]!a} holds control characters",
            remedy="rename it and save again, and mistrust the file",
        )


def layout(tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> tuple[bytes, Header]:
    """The bytes of a header, and where its tensors go; wide ones first, so that all are aligned.

    Example:
        >>> info = TensorInfo(KINDS["F32"], (2, 3))
        >>> text, header = layout({"w": info}, {})
        >>> len(text), header.start("w"), text[8:22]
        (72, 72, b'{"w":{"dtype":')
    """
    said: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    begins, at = {}, 0
    for name, info in sorted(tensors.items(), key=lambda item: (-item[1].kind.bytes, item[0])):
        said[name] = {
            "dtype": info.kind.code,
            "shape": list(info.shape),
            "data_offsets": [at, at + info.bytes],
        }
        begins[name] = at
        at += info.bytes
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = _LENGTH + len(text)
    found = Layout({name: tensors[name] for name in begins}, begins, at, Listing.of(tensors))
    return len(text).to_bytes(_LENGTH, "little") + text, Header(found, start, dict(metadata))
