"""Files and folders that are either whole or not there."""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diwa.errors import StoreError


def _beside(path: Path) -> Path:
    host = re.sub(r"\W", "_", socket.gethostname())
    return path.parent / f".{path.name}.{host}-{os.getpid()}-{uuid.uuid4().hex[:6]}.part"


def _remove_left_over(path: Path) -> None:
    """Removes what processes of this machine that are no more have left beside a folder."""
    own = _beside(path).name.rsplit("-", 2)[0]
    for part in path.parent.glob(glob.escape(f"{own}-") + "*.part"):
        number = part.name.removeprefix(f"{own}-").partition("-")[0]
        if number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(part, ignore_errors=True)


def _runs(process: int) -> bool:
    if os.name == "nt":  # where to ask is to kill
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


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
def swapping_folder(path: Path, *, in_the_way: Callable[[Path], str]) -> Iterator[Path]:
    """The same for a folder that may be there already; a foreign one is never replaced.

    Args:
        path: the folder; where it is a link, what that leads to.
        in_the_way: what an existing folder holds that must not be lost; empty if nothing.

    Raises:
        StoreError: if it may not be, or the place can't be written.
    """
    place = Path(os.path.realpath(path))
    part = _beside(place)
    try:
        _check_free(path, in_the_way)
        part.mkdir(parents=True)
        yield part
        for written in part.iterdir():
            with written.open("rb") as file:
                os.fsync(file.fileno())
        # Somebody may have put something there while this was being written.
        _check_free(path, in_the_way)
        _swap(part, place)
        # Not earlier, for it may be all there is of the folder that was to be replaced.
        _remove_left_over(place)
    except OSError as error:
        raise StoreError(
            f"{path}: can't be written ({error.strerror or error})",
            remedy="free some space or choose another place",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_free(path: Path, in_the_way: Callable[[Path], str]) -> None:
    if not path.is_dir():
        return
    held = in_the_way(path) if any(path.iterdir()) else ""
    if held:
        raise StoreError(f"{path}: is a folder with {held} in it", remedy="choose a new place")
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
