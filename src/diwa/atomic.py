"""Files and folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diwa.errors import StoreError


def _beside(path: Path) -> Path:
    return path.parent / f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:6]}.part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to; renames it to `path` when the block succeeds.

    Raises:
        StoreError: if the place can't be written (full disk, no permission, a folder in the way).

    Example:
        >>> import pathlib, tempfile
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> with replacing(target) as part:
        ...     _ = part.write_text("whole")
        >>> target.read_text(), [p.name for p in target.parent.iterdir()]
        ('whole', ['a.txt'])
    """
    part = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path}: can't be written ({error.strerror or error})",
            remedy="free some space or choose another place",
        ) from error
    finally:
        # Nothing to remove, or no way to: either must not hide the error above.
        with suppress(OSError):
            part.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file beside its place and renames it there."""
    with replacing(path) as part:
        part.write_bytes(content)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """The same for a folder that is not there yet; an existing one wins over the new one.

    Raises:
        StoreError: if the place can't be written.
    """
    part = _beside(path)
    try:
        part.mkdir(parents=True)
        yield part
        _rename_unless_there(part, path)
    except OSError as error:
        raise StoreError(
            f"{path}: can't be written ({error.strerror or error})",
            remedy="free some space or choose another place",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _rename_unless_there(part: Path, path: Path) -> None:
    if path.is_dir():
        return
    try:
        part.rename(path)
    except OSError:
        # Another process may have been quicker since we looked.
        if not path.is_dir():
            raise


@contextmanager
def swapping_folder(path: Path, *, mark: Callable[[Path], bool]) -> Iterator[Path]:
    """The same for a folder that may be there already; a foreign one is never replaced.

    Args:
        path: the folder; where it is a link, what that leads to.
        mark: whether an existing folder may be replaced.

    Raises:
        StoreError: if it may not be, or the place can't be written.
    """
    place = Path(os.path.realpath(path))
    part = _beside(place)
    try:
        _check_free(path, mark)
        part.mkdir(parents=True)
        yield part
        for written in part.iterdir():
            with written.open("rb") as file:
                os.fsync(file.fileno())
        # Somebody may have put something there while this was being written.
        _check_free(path, mark)
        _swap(part, place)
    except OSError as error:
        raise StoreError(
            f"{path}: can't be written ({error.strerror or error})",
            remedy="free some space or choose another place",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_free(path: Path, mark: Callable[[Path], bool]) -> None:
    if not path.is_dir():
        return
    if any(path.iterdir()) and not mark(path):
        raise StoreError(
            f"{path}: is a folder with other things in it", remedy="choose a new place"
        )
    # A shell would be left in a folder that is gone.
    if path.samefile(Path()):
        raise StoreError(f"{path}: is the folder you are in", remedy="choose a new place")


def _swap(part: Path, place: Path) -> None:
    """Puts a folder where another one may be; that one is then gone, or where the first was."""
    if not place.is_dir():
        part.rename(place)
    elif not _exchanged(part, place):
        old = _beside(place)
        try:
            place.rename(old)
            part.rename(place)
        except BaseException:
            if old.is_dir() and not place.exists():
                old.rename(place)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two folders could change places in one step: there is no moment without either."""
    if sys.platform != "linux":
        return False
    import ctypes

    # Python has no name for this call, nor have all of Linux's C libraries or file systems.
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2
    return rename is not None and not rename(
        here, os.fsencode(one), here, os.fsencode(other), exchange
    )
