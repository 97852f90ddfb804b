"""What a torch pickle holds, read without running any code."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import struct
import threading
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from diwa.errors import WeightsError
from diwa.weights.disk import open_file, refuse_others, unreadable
from diwa.weights.inert import stand_ins

if TYPE_CHECKING:
    import torch

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
_AGAIN = "copy or download it again"
_SAVE_AGAIN = "save its state_dict again with safetensors.torch.save_file"
#: What torch calls the thing that a pickle wants to call, in its several messages.
_GLOBAL = re.compile(r"GLOBAL ([^\s\"']+)")
#: How much of a refused pickle is searched for what it would call.
_LOOKED_AT = 1 << 20
_ZIP = b"PK\x03\x04"
#: Torch's list of what may be called is one for all threads, and so are Python's warnings.
_ALONE = threading.Lock()


def load(path: Path) -> Any:
    """Reads what `torch.save` wrote; tensors of a zip file stay on disk until they are looked at.

    Raises:
        WeightsError: if it is damaged, something else, or would have to run code to be read.

    Example:
        >>> import pathlib, tempfile, torch
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "w.pt"
        >>> torch.save({"epoch": 3}, path)
        >>> load(path)
        {'epoch': 3}
    """
    try:
        with open_file(path) as file:
            start, size = file.read(64), os.fstat(file.fileno()).st_size
            _check_start(start, size, path)
            records = _records(file, path) if start.startswith(_ZIP) else None
    except OSError as error:
        raise unreadable(path, error) from error
    import torch

    seen: list[torch.UntypedStorage] = []

    def here(storage: Any, _: str) -> Any:
        seen.append(storage)
        return storage

    try:
        with _allowing_stand_ins():
            held = torch.load(path, map_location=here, weights_only=True, mmap=records is not None)
    except _BROKEN as error:
        raise _refused(path, error) from error
    if records is not None:
        _check_storages(seen, records, path)
    return held


@contextmanager
def _allowing_stand_ins() -> Iterator[None]:
    from torch.serialization import safe_globals

    with _ALONE, warnings.catch_warnings(), safe_globals(stand_ins()):
        # Torch would warn of an unusual pickle, which the error says better.
        warnings.simplefilter("ignore")
        yield


def is_safetensors(start: bytes, size: int) -> bool:
    """Whether a file of that size that starts with these bytes is safetensors by its looks."""
    length = int.from_bytes(start[:8], "little")
    return len(start) > 8 and start[8:9] == b"{" and length <= size - 8


def _check_start(start: bytes, size: int, path: Path) -> None:
    if not start:
        raise WeightsError(f"{path}: empty", remedy=_AGAIN)
    if is_safetensors(start, size):
        raise WeightsError(
            f"{path}: a safetensors file by another name", remedy="let it end in .safetensors"
        )
    refuse_others(start, path)


def _records(file: BinaryIO, path: Path) -> list[int]:
    """How many bytes each storage has in a zip file, in the file's order."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, *_BROKEN) as e:
        raise WeightsError(f"{path}: not a whole zip file ({e})", remedy=_AGAIN) from e
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise WeightsError(f"{path}: holds {twice!a} twice", remedy=_AGAIN)
    root = names[0].partition("/")[0] if names else ""
    if f"{root}/constants.pkl" in names:
        raise WeightsError(f"{path}: a TorchScript archive, which holds code", remedy=_SAVE_AGAIN)
    if f"{root}/data.pkl" not in names:
        raise WeightsError(
            f"{path}: a zip file that torch.save did not write (no data.pkl in it)",
            remedy="give a file of weights",
        )
    for entry in entries:
        # Mapped into memory, compressed bytes would pass for numbers; unpacked, they might
        # be far more than there is room for.
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise WeightsError(
                f"{path}: {entry.filename!a} in it is compressed",
                remedy="unpack it and zip it again without compression (zip -0)",
            )
    entries.sort(key=lambda entry: entry.header_offset)
    return [e.file_size for e in entries if e.filename.startswith(f"{root}/data/") and e.file_size]


def _check_storages(seen: list[torch.UntypedStorage], records: list[int], path: Path) -> None:
    """Torch does not ask whether a mapped storage is as long as the pickle says; this does."""
    claimed = [s.nbytes() for s in sorted(seen, key=lambda s: s.data_ptr()) if s.nbytes()]
    left = iter(records)
    # A pickle need not use every record, but those it uses come in the file's order.
    if not all(size in left for size in claimed):
        raise WeightsError(
            f"{path}: its pickle tells of other lengths than its records have", remedy=_AGAIN
        )


def _refused(path: Path, error: BaseException) -> WeightsError:
    text = str(error)
    named = _GLOBAL.search(text)
    would_call = named[1] if named else ""
    unusual = "magic number" in text or "Unsupported operand" in text
    if unusual:
        would_call = _foreign_global(path)
    if would_call:
        return WeightsError(
            f"{path}: can't be read safely (it would call {_line(would_call)})",
            remedy=f"if you trust it, load it yourself and {_SAVE_AGAIN}",
        )
    if unusual:
        return WeightsError(
            f"{path}: can't be read safely (a pickle, but not as torch.save writes it)",
            remedy=_SAVE_AGAIN,
        )
    # The line that tells, of a page of advice; where torch stumbled over a byte, it tells nothing.
    text = "" if isinstance(error, LookupError) else text.rpartition("WeightsUnpickler error: ")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = lines[0] if lines else "not what torch.save writes"
    return WeightsError(f"{path}: can't be read safely ({_line(why)})", remedy=_AGAIN)


def _foreign_global(path: Path) -> str:
    """The first thing that a pickle of another protocol would call and that is not torch's own."""
    text: list[str] = []
    with suppress(*_BROKEN, zipfile.BadZipFile):
        content = io.BytesIO(_pickle_in(path))
        # Before torch had zip files, it wrote several pickles in a row.
        while content.tell() < len(content.getbuffer()):
            for code, argument, _ in pickletools.genops(content):
                if code.name in ("GLOBAL", "INST"):
                    text = str(argument).split(" ")
                elif isinstance(argument, str):
                    text.append(argument)
                named = ".".join(text[-2:])
                if code.name in ("GLOBAL", "INST", "STACK_GLOBAL") and not _is_ours(named):
                    return named
    return ""


def _is_ours(named: str) -> bool:
    return named.partition(".")[0] in ("torch", "collections", "numpy") or named == "_codecs.encode"


def _pickle_in(path: Path) -> bytes:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            with archive.open(names[0]) as file:
                return file.read(_LOOKED_AT)
    with path.open("rb") as file:
        return file.read(_LOOKED_AT)


def _line(text: str) -> str:
    return ascii(text[:200])[1:-1]
