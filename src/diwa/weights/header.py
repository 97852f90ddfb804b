"""The header of a safetensors file: read without trust, written to the same bytes every time.

Own code and not the safetensors package, because that one gives tensors, and to merge files larger
than memory in an instant one needs to know where each tensor lies.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diwa.errors import WeightsError
from diwa.weights.kinds import KINDS, Kind

#: The longest header that the safetensors package reads.
LONGEST = 100_000_000
_LENGTH = 8
_METADATA = "__metadata__"
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
class Header:
    """What a safetensors file holds, and where.

    Args:
        tensors: name -> what it is, in the order of the file.
        starts: name -> where it starts, from the start of the file.
        metadata: text by name.
    """

    tensors: dict[str, TensorInfo]
    starts: dict[str, int]
    metadata: dict[str, str]


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
    said = _parsed(file.read(length), path)
    metadata = _metadata(said.pop(_METADATA, {}), path)
    start = _LENGTH + length
    places = sorted(
        ((*_placed(name, held, path), name) for name, held in said.items()),
        key=lambda place: (place[0], place[1], place[3]),
    )
    at = 0
    for begin, end, _, name in places:
        if begin != at:
            raise _damaged(path, f"{name!r} starts at byte {begin} of the tensors, not at {at}")
        at = end
    if start + at != size:
        raise _damaged(path, f"it has {size} bytes, and its header tells of {start + at}")
    return Header(
        {name: info for _, _, info, name in places},
        {name: start + begin for begin, _, _, name in places},
        metadata,
    )


def _damaged(path: Path, why: str) -> WeightsError:
    return WeightsError(
        f"{path}: not a whole safetensors file ({why})", remedy="copy or make it again"
    )


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        held = dict(pairs)
        if len(held) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise _damaged(path, f"its header names {_SHORT.repr(twice)} twice")
        return held

    try:
        said = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except WeightsError:
        raise
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
        >>> len(text), header.starts["w"], text[8:22]
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
    return len(text).to_bytes(_LENGTH, "little") + text, Header(
        {name: tensors[name] for name in begins},
        {name: start + begin for name, begin in begins.items()},
        dict(metadata),
    )
