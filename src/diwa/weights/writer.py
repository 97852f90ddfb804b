"""Writing safetensors piece by piece, in any order, from several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from diwa.weights.header import TensorInfo, layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: No more than this in one call, so that other threads and Ctrl-C get their turn.
_AT_ONCE = 1 << 24
#: Opens a file without a name, and where to find it while it is open.
_NAMELESS: int = getattr(os, "O_TMPFILE", 0)
_OPEN_FILES = "/proc/self/fd"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)


class FileWriter:
    """One safetensors file that is written piece by piece.

    The header comes first in the file but is written last, so that a digest that is only known
    at the end can be in it. Where the system can do that, the file has no name before it is whole:
    then even a kill leaves nothing of it.

    Args:
        path: where to; see `replacing` for writing beside and renaming.
        tensors: what will be written.
        metadata: text by name.

    Example:
        >>> import pathlib, tempfile
        >>> from diwa.weights.kinds import KINDS
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "w.safetensors"
        >>> with FileWriter(path, {"w": TensorInfo(KINDS["F32"], (3,))}, {}) as writer:
        ...     writer.put("w", 1, np.array([2, 3], dtype=np.float32))
        ...     writer.put("w", 0, np.array([1], dtype=np.float32))
        >>> from diwa.weights.source import open_source
        >>> open_source(path).array("w").tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> None:
        self._path = path
        self._tensors = tensors
        self._text, self._header = layout(tensors, metadata)
        self._file = -1
        self._named = True
        self._turn = threading.Lock()

    def __enter__(self) -> FileWriter:
        self._open()
        try:
            # Its full length at once, for a tensor without numbers may be the last.
            os.ftruncate(self._file, len(self._text) + sum(t.bytes for t in self._tensors.values()))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._write(memoryview(self._text), 0)
                if not self._named:
                    self._name()
        finally:
            self._close()

    def _open(self) -> None:
        self._named = True
        if _NAMELESS and os.path.isdir(_OPEN_FILES):
            # Not every file system can do it, and the error that says so is not always the same.
            with suppress(OSError):
                self._file = os.open(self._path.parent, os.O_RDWR | _NAMELESS, 0o666)
                self._named = False
                return
        self._file = os.open(self._path, _FLAGS, 0o666)

    def _name(self) -> None:
        """Gives the file its name; one that is there already is replaced, as if written over."""
        os.fsync(self._file)
        self._path.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            # With a folder to start from, for only then does Python follow the link.
            os.link(f"{_OPEN_FILES}/{self._file}", self._path.name, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def _close(self) -> None:
        os.close(self._file)
        self._file = -1

    def describe(self, metadata: Mapping[str, str]) -> None:
        """Replaces the metadata by others of the same length."""
        text, _ = layout(self._tensors, metadata)
        assert len(text) == len(self._text), "the tensors would have to move"
        self._text = text

    def put(self, name: str, at: int, numbers: NDArray) -> None:
        """Writes some of a tensor's numbers, from number `at` on in C order."""
        kind = self._header.tensors[name].kind
        assert numbers.dtype == kind.numpy(), (name, numbers.dtype, kind)
        flat = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        self._write(flat.data, self._header.start(name) + at * kind.bytes)

    def flush(self) -> None:
        """Waits until the disk has what was put so far, so that there is less to wait for later."""
        os.fsync(self._file)

    def _write(self, content: memoryview, at: int) -> None:
        while content:
            done = self._write_some(content[:_AT_ONCE], at)
            content, at = content[done:], at + done

    def _write_some(self, content: memoryview, at: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._file, content, at)
        with self._turn:  # Windows can't write at a place without going there
            os.lseek(self._file, at, os.SEEK_SET)
            return os.write(self._file, content)
