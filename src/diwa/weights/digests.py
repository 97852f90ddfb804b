"""SHA-256 of files, begun ahead of time where nothing else would keep a core busy.

To hash is the most that merging files takes, and starting up takes a fifth of a second in which
one core idles. This module imports nothing heavy, so that it can use that time.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from diwa.weights.disk import open_file

_BLOCK = 1 << 24

_lock = threading.Lock()
_stop = threading.Event()
_begun: dict[tuple[int, ...], Future[str]] = {}


def ahead(paths: Sequence[str]) -> None:
    """Hashes files in the background until somebody asks for a digest; what is no file is not."""
    _stop.clear()
    threading.Thread(target=_begin, args=(tuple(paths),), daemon=True).start()


def _begin(paths: Sequence[str]) -> None:
    for path in paths:
        if not os.path.isfile(path):
            continue
        job: Future[str] = Future()
        try:
            with open(path, "rb") as file, _lock:
                if _stop.is_set():
                    return
                _begun[_identity(file.fileno())] = job
            job.set_result(_hashed(path))
        except OSError as error:
            job.set_exception(error)


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file.

    Raises:
        OSError: if it can't be read.

    Example:
        >>> path = example_members[0]
        >>> sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
        True
    """
    _stop.set()  # who asks has threads of its own to go on with
    with open_file(path) as file, _lock:
        job = _begun.pop(_identity(file.fileno()), None)
    return job.result() if job else _hashed(path)


def _identity(file: int) -> tuple[int, ...]:
    about = os.fstat(file)
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _hashed(path: str | os.PathLike[str]) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for start in range(0, len(content), _BLOCK):
                    with memoryview(content)[start : start + _BLOCK] as block:
                        sha.update(block)
    return sha.hexdigest()
