"""Opening files that may be anything, and what to say when the system refuses."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from diwa.errors import WeightsError


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to be read; a pipe is refused, for to open one waits until somebody writes.

    Raises:
        OSError: if it can't be read, or is no file.
    """
    return open(path, "rb", opener=_at_once)


def _at_once(path: str, flags: int) -> int:
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(file).st_mode
    # Python itself refuses folders.
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        os.close(file)
        raise OSError(errno.ESPIPE, "Is a pipe or a device", path)
    return file


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
    return WeightsError(
        f"{path}: can't be read ({why})", remedy="check its path, its links and its permissions"
    )
