"""Flags that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import tyro

from diwa.errors import StoreError
from diwa.progress import Progress
from diwa.spec import Spec

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark

Device = Annotated[str, tyro.conf.arg(metavar="auto|cpu|cuda[:N]|mps")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]


class DataOptions(Spec, frozen=True, kw_only=True):
    """How a folder or table of images is opened."""

    name: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """What the data set is called in seeds and tables; the folder's name by default."""
    cache_dir: OptionalPath = None
    """Where decoded images are kept; $DIWA_CACHE or the user's cache folder by default."""
    cache_side: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None
    """The longest short side to keep, in pixels; 1.4 times --size by default."""
    allow_missing_classes: bool = False
    """A domain may lack a class that another one has."""
    allow_small_domains: bool = False
    """A domain may be too small to hold out 20 % for validation."""
    skip_bad_files: bool = False
    """Leave out files that are no images."""


def told(noted: object) -> DataOptions:
    """The flags that a store remembers.

    Raises:
        StoreError: if they are not ones that this version knows.
    """
    try:
        return msgspec.convert(noted or {}, DataOptions, dec_hook=lambda kind, text: kind(text))
    except (msgspec.ValidationError, TypeError) as error:
        raise StoreError(
            f"the store's note of how its images were opened: {error}",
            remedy="make a new store, or update diwa",
        ) from error


Flat = tyro.conf.arg(name="")
DataFlags = Annotated[DataOptions, Flat]


def open_data(
    root: Path, options: DataOptions, *, size: tuple[int, int], channels: int, progress: Progress
) -> Benchmark:
    """Opens a folder, a table or a data set known by name, as the flags say."""
    from diwa.data.known import open_data

    settings: dict[str, Any] = {
        field: getattr(options, field) for field in options.__struct_fields__
    }
    return open_data(root, **settings, size=size, channels=channels, progress=progress)
