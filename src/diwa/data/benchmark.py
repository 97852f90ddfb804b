"""A benchmark: images by domain and class, opened only when they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from diwa.data.cache import CROP_MARGIN, Cache, CachedImages, default_directory
from diwa.data.folder import Listing, list_folder
from diwa.data.split import Split, split
from diwa.errors import DataError, guess
from diwa.progress import QUIET, Progress


class Images(Protocol):
    """Pixels by position: bytes, as height, width and channels."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> np.ndarray: ...

    def original_size(self, position: int) -> tuple[int, int]:
        """Height and width that crops are drawn for."""
        ...


class Domain:
    """One domain: labels, and images that are opened when first asked for.

    Args:
        name: the domain's name.
        labels: the class of each image.
        load: gives the images, and which of `labels` they belong to.
        certain: whether every label has its image; else counting them opens the images.
    """

    def __init__(
        self,
        name: str,
        labels: np.ndarray,
        load: Callable[[], tuple[Images, np.ndarray]],
        *,
        certain: bool = True,
    ) -> None:
        self.name = name
        self._labels = labels
        self._load = load
        self._certain = certain

    @cached_property
    def _held(self) -> tuple[Images, np.ndarray]:
        images, kept = self._load()
        return images, self._labels[kept]

    @property
    def images(self) -> Images:
        """The pixels; the first look decodes them or maps the cache."""
        return self._held[0]

    @property
    def labels(self) -> np.ndarray:
        """The class of every image."""
        return self._labels if self._certain else self._held[1]

    @property
    def listed(self) -> np.ndarray:
        """The class of every file, before any was opened."""
        return self._labels

    def __len__(self) -> int:
        return len(self.labels)


class Benchmark:
    """Several domains that share their classes.

    Args:
        name: its name; seeds are derived from it.
        classes: the names of the classes, in the order of the labels.
        domains: the domains, in the order that numbers them.
        digest: names the content.
        channels: how many channels the images have.
        ignored: folders that were passed over.
        cache: where decoded images are kept, if they are.

    Example:
        >>> import diwa
        >>> photos = diwa.open_folder(example_folder)
        >>> photos.names, photos.classes
        (['cartoon', 'photo', 'sketch'], ('cat', 'dog'))
        >>> len(photos["sketch"]), photos["sketch"].images[0].shape
        (12, (40, 40, 3))
    """

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        domains: Sequence[Domain],
        *,
        digest: str,
        channels: int = 3,
        ignored: Sequence[str] = (),
        cache: Cache | None = None,
    ) -> None:
        self.name = name
        self.classes = tuple(classes)
        self.digest = digest
        self.channels = channels
        self.ignored = tuple(ignored)
        self.cache = cache
        #: Domain -> the short name that tables and protocols use for it, where it has one.
        self.short: Mapping[str, str] = {}
        #: Settings of a sweep that suit these images unless somebody says otherwise.
        self.suits: Mapping[str, Any] = {}
        #: Height and width that its images must be seen at, if only one makes sense.
        self.only_size: tuple[int, int] | None = None
        self._domains = {domain.name: domain for domain in domains}

    @property
    def names(self) -> list[str]:
        """The domains' names, in order."""
        return list(self._domains)

    def __getitem__(self, name: str) -> Domain:
        if name in self._domains:
            return self._domains[name]
        for domain, short in self.short.items():
            if short == name and domain in self._domains:
                return self._domains[domain]
        known = ", ".join(map(self._called, self.names))
        raise DataError(
            f"{self.name}: has no domain {name!r}",
            remedy=f"{guess(name, self.names)}it has {known}",
        )

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._domains.values())

    def __len__(self) -> int:
        return len(self._domains)

    def _called(self, name: str) -> str:
        short = self.short.get(name, name)
        return name if short == name else f"{name} ({short})"

    def index(self, name: str) -> int:
        """The domain's number, which its split is drawn with."""
        return self.names.index(self[name].name)

    def split(self, name: str, *, trial: int, holdout: float = 0.2) -> Split:
        """Which images of a domain are trained on and which validate, in that trial."""
        return split(len(self[name]), trial=trial, domain=self.index(name), holdout=holdout)


def open_folder(
    root: Path | str,
    *,
    name: str | None = None,
    size: tuple[int, int] = (224, 224),
    channels: int = 3,
    cache_dir: Path | None = None,
    cache_side: int | None = None,
    allow_missing_classes: bool = False,
    allow_small_domains: bool = False,
    skip_bad_files: bool = False,
    progress: Progress = QUIET,
) -> Benchmark:
    """Opens a folder of `domain/class/image` as a benchmark; no image is read yet.

    Args:
        root: the folder.
        name: what it is called in seeds and tables; the folder's own name by default.
        size: height and width that the network will see; decides how large images are cached.
        channels: 1 for grey, 2 for grey with alpha, 3 for colour.
        cache_dir: where decoded images go; `$DIWA_CACHE` or the user's cache folder by default.
        cache_side: the longest short side to store; 1.4 times the larger of `size` by default.
        allow_missing_classes: whether a domain may lack a class that another one has.
        allow_small_domains: whether a domain may be too small for a validation split.
        skip_bad_files: whether to leave out files that are no images.
        progress: who hears how decoding goes.

    Raises:
        DataError: if the folder is not laid out like that.
    """
    root = Path(root)
    check_images(channels, cache_side)
    listing = list_folder(
        root, allow_missing_classes=allow_missing_classes, skip_bad_files=skip_bad_files
    )
    return open_listing(
        listing,
        name or root.resolve().name,
        size=size,
        channels=channels,
        cache_dir=cache_dir,
        cache_side=cache_side,
        allow_small_domains=allow_small_domains,
        skip_bad_files=skip_bad_files,
        progress=progress,
    )


def check_images(channels: int, cache_side: int | None) -> None:
    """Refuses what no image can be.

    Raises:
        DataError: for another number of channels than 1, 2 or 3, or a side of a few pixels.
    """
    if channels not in (1, 2, 3):
        raise DataError(f"channels={channels}", remedy="images have 1, 2 or 3 of them here")
    if cache_side is not None and cache_side < 8:
        raise DataError(f"cache_side={cache_side}", remedy="store at least 8 pixels")


def open_listing(
    listing: Listing,
    name: str,
    *,
    size: tuple[int, int],
    channels: int,
    cache_dir: Path | None,
    cache_side: int | None,
    allow_small_domains: bool,
    skip_bad_files: bool,
    progress: Progress,
) -> Benchmark:
    """Opens files that were listed somehow; see `open_folder` for the arguments."""
    for domain, files in listing.domains.items():
        _check_count(listing.root / domain, len(files), allow_small_domains)
    cache = Cache(
        cache_dir or default_directory(), cache_side or round(max(size) * CROP_MARGIN), channels
    )
    return Benchmark(
        name,
        listing.classes,
        [
            Domain(
                domain,
                np.array([file.label for file in files], dtype=np.int64),
                partial(
                    _load, cache, listing, domain, skip_bad_files, allow_small_domains, progress
                ),
                certain=not skip_bad_files,
            )
            for domain, files in listing.domains.items()
        ],
        digest=listing.digest,
        channels=channels,
        ignored=listing.ignored,
        cache=cache,
    )


def _load(
    cache: Cache,
    listing: Listing,
    domain: str,
    skip_bad_files: bool,
    allow_small_domains: bool,
    progress: Progress,
) -> tuple[CachedImages, np.ndarray]:
    images = cache.open(
        listing.root, domain, listing.domains[domain], progress, origin=listing.origin
    )
    if images.broken and not skip_bad_files:
        path, why = images.broken[0]
        more = f" (and {len(images.broken) - 1} more files)" if len(images.broken) > 1 else ""
        raise DataError(
            f"{listing.root / path}: can't be decoded ({why}){more}",
            remedy="replace or remove it, or pass --skip-bad-files",
        )
    _check_count(listing.root / domain, len(images), allow_small_domains)
    return images, images.kept


def _check_count(folder: Path, count: int, allow_small: bool) -> None:
    if count == 0:
        raise DataError(
            f"{folder}: none of its files is an image", remedy="add images, or remove the folder"
        )
    if int(count * 0.2) == 0 and not allow_small:
        raise DataError(
            f"{folder}: {_counted(count)}, too few to hold out 20 % for validation",
            remedy="add images, remove the folder, or pass --allow-small-domains",
        )


def _counted(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"
