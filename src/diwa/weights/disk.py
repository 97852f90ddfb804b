"""Opening files that may be anything, and what to say when the system refuses."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from diwa.errors import WeightsError

Opened = TypeVar("Opened")

#: Open files that every system allows, whatever it says is the most.
_USUAL_MOST = 10_240
_SAVE_AGAIN = "save the weights with safetensors.torch.save_file"
#: How files start that are no weights in spite of their name, and what to do about each.
_OTHERS = {
    b"version https://git-lfs": ("a Git LFS pointer, not the weights", "run `git lfs pull` there"),
    b"<": ("a web page, not weights", "download the file itself"),
    b"\x89HDF\r\n": ("an HDF5 file", _SAVE_AGAIN),
    b"GGUF": ("a GGUF file", "get the model in safetensors instead"),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first"),
    b"\x93NUMPY": ("a NumPy array", _SAVE_AGAIN),
}
#: Those that are weights, but by another name.
_PICKLES = {
    b"PK\x03\x04": ("a zip file, as torch.save writes it", "let its name end in .pt"),
    b"\x80\x02": ("a pickle", "let its name end in .pkl"),
}


def refuse_others(start: bytes, path: Path, *, pickles: bool = False) -> None:
    """Says what a file is that starts like something known, and is not what its name promises.

    Args:
        start: its first bytes.
        path: the file.
        pickles: whether what `torch.save` writes is to be refused as well.

    Raises:
        WeightsError: if it is such a file.
    """
    for known, (what, remedy) in {**_OTHERS, **(_PICKLES if pickles else {})}.items():
        if start.lstrip().startswith(known):
            raise WeightsError(f"{path}: {what}", remedy=remedy)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to be read; a pipe is refused, for to open one waits until somebody writes.

    Raises:
        OSError: if it can't be read, or is no file.
    """
    return open(path, "rb", opener=_at_once)


def _at_once(path: str, flags: int) -> int:
    file = persistent(lambda: os.open(path, flags | getattr(os, "O_NONBLOCK", 0)))
    kind = os.fstat(file).st_mode
    # Python itself refuses folders.
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        os.close(file)
        raise OSError(errno.ESPIPE, "Is a pipe or a device", path)
    return file


def persistent(opening: Callable[[], Opened]) -> Opened:
    """Opens something, once more with as many open files as the system allows, if need be.

    Raises:
        OSError: if it can't be opened.
    """
    try:
        return opening()
    except OSError as error:
        if error.errno != errno.EMFILE or not _allow_more_files():
            raise
    return opening()


def _allow_more_files() -> bool:
    """Whether more files may be open than before: usually the limit is a default, not a must."""
    try:
        import resource
    except ImportError:  # as on Windows, where it is far away
        return False
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == most:
        return False
    for limit in (most, _USUAL_MOST):
        with suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
            return True
    return False


def unreadable(path: Path, error: OSError) -> WeightsError:
    """What to say when the system refuses to read a file."""
    why = error.strerror or error
    if isinstance(error, FileNotFoundError):
        return WeightsError(f"{path}: no such file", remedy="give the path of a file of weights")
    if error.errno in (errno.EISDIR, errno.ESPIPE):
        return WeightsError(
            f"{path}: not a file, can't be read ({why})",
            remedy="give the path of a file of weights",
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return WeightsError(
            f"{path}: can't be opened beside so many others ({why})",
            remedy="raise the limit (ulimit -n), or merge fewer files or larger shards",
        )
    return WeightsError(
        f"{path}: can't be read ({why})", remedy="check its path, its links and its permissions"
    )
