"""Files and folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diwa.errors import StoreError


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:6]}.part")


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
