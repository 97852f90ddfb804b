"""Benchmarks that are computed once from other data, and mapped from disk ever after."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from diwa.atomic import replacing_folder, write_bytes
from diwa.data.benchmark import Benchmark, Domain
from diwa.errors import DataError, StoreError

_ABOUT = "about.json"

#: Domain -> (images of shape (N, H, W, C), labels).
Arrays = Mapping[str, tuple[np.ndarray, np.ndarray]]


class StoredImages:
    """Images of one size in one file; reading one touches only its own bytes on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._array = np.load(path, mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, position: int) -> np.ndarray:
        return np.array(self._array[position])

    def original_size(self, position: int) -> tuple[int, int]:
        """Height and width, the same for all."""
        del position
        return self._array.shape[1], self._array.shape[2]

    def __reduce__(self) -> tuple[type[StoredImages], tuple[Path]]:
        # A worker process maps the file again; the pixels themselves are never sent.
        return StoredImages, (self._path,)


def open_built(
    name: str,
    classes: tuple[str, ...],
    *,
    directory: Path,
    of: str,
    build: Callable[[], tuple[Arrays, str]],
) -> tuple[Benchmark, str]:
    """Opens a benchmark that `build` makes, making it now if nobody has before.

    Of several processes that ask at once, one builds and the others wait for it.

    Args:
        name: the benchmark's.
        classes: of the labels.
        directory: where builds are kept.
        of: names everything the build depends on; its first line says where that lies.
        build: gives the domains, and a note for people.

    Returns:
        The benchmark, and the note.

    Raises:
        DataError: if the build can't be written.
    """
    folder = directory / f"{name}-{hashlib.sha256(of.encode()).hexdigest()[:16]}"
    about = _about(folder)
    if about is None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f".{folder.name}.lock")):
                if _about(folder) is None:
                    shutil.rmtree(folder, ignore_errors=True)
                    _write(folder, name, of, *build())
        except (OSError, StoreError) as error:
            cause = error.__cause__ or error
            raise DataError(
                f"{directory}: {name} can't be built there "
                f"({getattr(cause, 'strerror', None) or cause})",
                remedy="free some space, or choose another place with --cache-dir",
            ) from error
        about = _about(folder)
        assert about is not None
    domains = []
    for number, domain in enumerate(about["domains"]):
        labels = np.load(folder / f"labels-{number}.npy", allow_pickle=False)
        load = partial(_load, folder / f"images-{number}.npy")
        domains.append(Domain(domain, labels, load))
    benchmark = Benchmark(
        name, classes, domains, digest=about["digest"], channels=int(about["channels"])
    )
    return benchmark, about["note"]


def _load(path: Path) -> tuple[StoredImages, np.ndarray]:
    images = StoredImages(path)
    return images, np.arange(len(images))


def _write(folder: Path, name: str, of: str, arrays: Arrays, note: str) -> None:
    sha = hashlib.sha256()
    total = 0
    with replacing_folder(folder) as part:
        for number, (domain, (images, labels)) in enumerate(arrays.items()):
            for kind, made in (("images", images), ("labels", labels)):
                array = np.ascontiguousarray(made)
                sha.update(f"{domain} {kind} {array.shape} {array.dtype.str}\n".encode())
                sha.update(array.data)
                np.save(part / f"{kind}-{number}.npy", array)
                total += array.nbytes
        _, height, _, channels = next(iter(arrays.values()))[0].shape
        about = {
            # What `diwa data cache` shows of every entry.
            "root": of.partition("\n")[0],
            "domain": name,
            "side": height,
            "channels": channels,
            "bytes": total,
            "domains": list(arrays),
            "digest": sha.hexdigest()[:16],
            "note": note,
        }
        write_bytes(part / _ABOUT, json.dumps(about, indent=2).encode())


def _about(folder: Path) -> dict[str, Any] | None:
    try:
        about = json.loads((folder / _ABOUT).read_text())
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and "digest" in about else None
