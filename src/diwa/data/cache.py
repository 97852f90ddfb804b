"""Every image decoded once, into one memory-mapped file per domain."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from PIL import UnidentifiedImageError

from diwa.atomic import replacing_folder, write_bytes
from diwa.data.decode import BROKEN, decode, pixels, shrink
from diwa.data.folder import File
from diwa.errors import DataError, StoreError
from diwa.progress import Progress

_FORMAT = 1
_PIXELS, _INDEX, _ABOUT = "pixels.u8", "index.npy", "about.json"
_TOLD = {"root", "domain", "side", "channels", "bytes"}

#: A training crop takes at least 70 % of the area, at most 4:3 off square; stored this much
#: larger than what the network sees, no crop of a square image has fewer pixels than that.
CROP_MARGIN = 1.4


def default_directory() -> Path:
    """Where caches go unless told: `$DIWA_CACHE`, else the user's cache folder."""
    if told := os.environ.get("DIWA_CACHE"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diwa"


class CachedImages:
    """A domain's decoded images; reading one touches only its own bytes on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = np.load(folder / _INDEX, allow_pickle=False)
        #: Which of the listed files are images.
        self.kept: np.ndarray = np.flatnonzero(index[:, 1])
        self._index = index[self.kept]
        self._about = json.loads((folder / _ABOUT).read_text())
        self._pixels = np.memmap(folder / _PIXELS, dtype=np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, position: int) -> np.ndarray:
        offset, height, width = (int(value) for value in self._index[position, :3])
        shape = (height, width, self._about["channels"])
        flat = self._pixels[offset : offset + height * width * shape[2]]
        return np.asarray(flat).reshape(shape)

    def original_size(self, position: int) -> tuple[int, int]:
        """Height and width of the image before it was stored."""
        return int(self._index[position, 3]), int(self._index[position, 4])

    @property
    def broken(self) -> list[list[str]]:
        """The files that could not be decoded, each with the reason."""
        return self._about["broken"]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return (self._folder / _PIXELS).stat().st_size

    def __reduce__(self) -> tuple[type[CachedImages], tuple[Path]]:
        # A worker process maps the file again; the pixels themselves are never sent.
        return CachedImages, (self._folder,)


@dataclass(frozen=True)
class Cache:
    """Where decoded images lie and how large they are kept.

    Args:
        directory: the folder of all caches.
        side: the longest short side that is stored; larger images are reduced to it.
        channels: 1, 2 or 3.
    """

    directory: Path
    side: int
    channels: int

    def open(
        self,
        root: Path,
        domain: str,
        files: Sequence[File],
        progress: Progress,
        *,
        origin: Path | None = None,
    ) -> CachedImages:
        """The images of one domain, decoded now if nobody has before.

        Of several processes that ask at once, one decodes and the others wait for it.

        Args:
            root: the folder that the files' paths are relative to.
            domain: the domain's name.
            files: its images.
            progress: who hears how it goes.
            origin: what named the files; what it named before is dropped. The folder by default.

        Raises:
            DataError: if a file can't be read, or the cache can't be written.
        """
        folder = self.directory / f"{domain}-{self._digest(files)}"
        if not _is_whole(folder):
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                with FileLock(_lock_of(folder)):
                    if not _is_whole(folder):
                        _remove_half_built(folder)
                        self._build(folder, root, domain, files, progress, origin or root)
            except (OSError, StoreError) as error:
                cause = error.__cause__ or error
                raise DataError(
                    f"{self.directory}: the cache can't be written "
                    f"({getattr(cause, 'strerror', None) or cause})",
                    remedy="free some space, or choose another place with --cache-dir",
                ) from error
        return CachedImages(folder)

    def _digest(self, files: Sequence[File]) -> str:
        sha = hashlib.sha256(f"{_FORMAT} {self.side} {self.channels}\n".encode())
        for file in files:
            told = f"{file.path}\0{file.size}\0{file.changed_ns}\n"
            sha.update(told.encode(errors="surrogateescape"))
        return sha.hexdigest()[:16]

    def _build(
        self,
        folder: Path,
        root: Path,
        domain: str,
        files: Sequence[File],
        progress: Progress,
        origin: Path,
    ) -> None:
        index = np.zeros((len(files), 5), dtype=np.int64)
        broken: list[list[str]] = []
        offset = 0
        with replacing_folder(folder) as part:
            with (
                (part / _PIXELS).open("wb") as out,
                progress.task(f"decoding {domain}", len(files)) as task,
                warnings.catch_warnings(),
            ):
                # A warning about odd metadata of one file among thousands helps nobody. Here, and
                # not around each file: threads would leave each other's filters behind.
                warnings.simplefilter("ignore")
                for row, (file, decoded) in enumerate(
                    zip(files, self._decoded(root, files), strict=True)
                ):
                    if isinstance(decoded, str):
                        # A name that is not UTF-8 could not be printed.
                        path = file.path.encode(errors="backslashreplace").decode()
                        broken.append([path, decoded])
                    else:
                        image, original = decoded
                        index[row] = (offset, *image.shape[:2], *original)
                        out.write(np.ascontiguousarray(image).data)
                        offset += image.size
                    task.advance()
                if not offset:
                    out.write(b"\0")  # an empty file can't be mapped
                out.flush()
                os.fsync(out.fileno())
            with (part / _INDEX).open("wb") as out:
                np.save(out, index)
                out.flush()
                os.fsync(out.fileno())
            about = {
                "format": _FORMAT,
                "root": str(origin.resolve()),
                "domain": domain,
                "side": self.side,
                "channels": self.channels,
                "bytes": max(offset, 1),
                "broken": broken,
            }
            write_bytes(part / _ABOUT, json.dumps(about, indent=2).encode())
        _remove_outdated(folder, about)

    def _decoded(
        self, root: Path, files: Sequence[File]
    ) -> Iterator[tuple[np.ndarray, tuple[int, int]] | str]:
        def one(file: File) -> tuple[np.ndarray, tuple[int, int]] | str:
            try:
                image = decode(root / file.path, self.channels)
            except BROKEN as error:
                return _why_broken(root / file.path, error)
            width, height = image.size
            return pixels(shrink(image, self.side)), (height, width)

        threads = os.cpu_count() or 1
        with ThreadPoolExecutor(threads) as pool:
            # In chunks, so that no more than a few images per thread wait to be written.
            for start in range(0, len(files), 8 * threads):
                yield from pool.map(one, files[start : start + 8 * threads])


def _why_broken(path: Path, error: Exception) -> str:
    """In a few words; raises for a file that can't be read, which is no fault of the image."""
    # Pillow's own errors have no number, but for a jump to nowhere that a bad file asked for.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise DataError(
            f"{path}: can't be read ({error.strerror})", remedy="check its permissions and the disk"
        ) from error
    if isinstance(error, UnidentifiedImageError):
        return "no image format that is known"  # Pillow names the path, which may change
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Cached:
    """One cache on disk, as `diwa data cache` shows it."""

    folder: Path
    root: str
    domain: str
    side: int
    bytes: int


def list_caches(directory: Path) -> list[Cached]:
    """Every cache in that directory."""
    return [
        Cached(folder, known["root"], known["domain"], known["side"], known["bytes"])
        for folder, known in _held(directory)
    ]


def remove(cached: Cached) -> None:
    """Deletes a cache; it is made again when it is next needed."""
    shutil.rmtree(cached.folder)
    _lock_of(cached.folder).unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _held(directory: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The folders of all caches, but for those under way, and what they say of themselves."""
    folders = [path for path in sorted(directory.glob("*")) if not path.name.startswith(".")]
    known = [(folder, _about(folder)) for folder in folders]
    return [(folder, about) for folder, about in known if about]


def _about(folder: Path) -> dict[str, Any] | None:
    """What a cache says of itself; nothing if it is damaged, or another process removes it."""
    try:
        about = json.loads((folder / _ABOUT).read_text())
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and about.keys() >= _TOLD else None


def _is_whole(folder: Path) -> bool:
    about = _about(folder)
    try:
        return (
            about is not None
            and (folder / _PIXELS).stat().st_size == about["bytes"]
            and (folder / _INDEX).is_file()
        )
    except OSError:
        return False


def _remove_half_built(folder: Path) -> None:
    """Drops what a decoding that was killed left; the caller holds the lock, so none is at work."""
    for left in (folder, *folder.parent.glob(f".{glob.escape(folder.name)}.*.part")):
        shutil.rmtree(left, ignore_errors=True)


def _remove_outdated(folder: Path, about: dict[str, object]) -> None:
    """Drops what the same place was decoded to before its files changed."""
    for other, old in _held(folder.parent):
        if other != folder and all(old[name] == about[name] for name in _TOLD - {"bytes"}):
            # Another process may be removing it as well, or still look at it.
            shutil.rmtree(other, ignore_errors=True)
            _lock_of(other).unlink(missing_ok=True)
