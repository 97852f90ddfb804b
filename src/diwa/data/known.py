"""Images by path or by name: a folder, a table, or a data set that was fetched or added."""

from __future__ import annotations

import os
from pathlib import Path

from diwa.data.benchmark import Benchmark, check_images, open_folder, open_listing
from diwa.data.home import data_home
from diwa.data.sets import alike, find, nearest
from diwa.data.sets.base import DataSet
from diwa.data.table import ENDINGS, is_table, list_table
from diwa.errors import DataError
from diwa.progress import QUIET, Progress


def locate(data: Path | str) -> tuple[Path, DataSet | None]:
    """Where data are, and which data set they are if they were named and not pointed at.

    A path that is there always wins over a name.

    Raises:
        DataError: if it is neither.
    """
    path = Path(data)
    if path.exists():
        return path, None
    told = os.fspath(data)
    if os.sep not in told and not (os.altsep and os.altsep in told):
        data_set = find(told)
        if data_set is not None:
            return data_home() / data_set.folder, data_set
        if (data_home() / told).is_dir():
            return data_home() / told, None
        near = nearest(told)
        guess = f"; did you mean {near}?" if near else ""
        raise DataError(
            f"{told}: no such folder",
            remedy="give a folder laid out as domain/class/image, a table of paths, or the name "
            f"of a data set{guess}",
        )
    raise DataError(
        f"{told}: no such folder", remedy="give a folder laid out as domain/class/image"
    )


def open_data(
    data: Path | str,
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
    """Opens a folder, a table or a data set that is known by name; no image is read yet.

    Args:
        data: a folder of `domain/class/image`; a CSV or Parquet file with the columns path, domain
            and label; or a name such as "PACS", after `diwa data get` or `diwa data add`.
        name: what it is called in seeds and tables; its own name by default.
        size: height and width that the network will see; decides how large images are cached.
        channels: 1 for grey, 2 for grey with alpha, 3 for colour; ColoredMNIST and RotatedMNIST
            have their own.
        cache_dir: where decoded images go; `$DIWA_CACHE` or the user's cache folder by default.
        cache_side: the longest short side to store; 1.4 times the larger of `size` by default.
        allow_missing_classes: whether a domain may lack a class that another one has.
        allow_small_domains: whether a domain may be too small for a validation split.
        skip_bad_files: whether to leave out files that are no images.
        progress: who hears how decoding goes.

    Raises:
        DataError: if there is no such thing, or it is not laid out like that.

    Example:
        >>> import diwa
        >>> diwa.open_data(example_folder).names
        ['cartoon', 'photo', 'sketch']
    """
    check_images(channels, cache_side)
    root, data_set = locate(data)
    rest = {
        "size": size,
        "channels": channels,
        "cache_dir": cache_dir,
        "cache_side": cache_side,
        "allow_small_domains": allow_small_domains,
        "skip_bad_files": skip_bad_files,
        "progress": progress,
    }
    if data_set is not None:
        _check_there(data_set, root)
        return data_set.open(root, name=name, allow_missing_classes=allow_missing_classes, **rest)
    if root.is_dir():
        benchmark = open_folder(
            root, name=name, allow_missing_classes=allow_missing_classes, **rest
        )
    else:
        _check_table(root)
        listing = list_table(root, allow_missing_classes=allow_missing_classes)
        benchmark = open_listing(listing, name or root.stem, **rest)
    same = alike(benchmark.names, benchmark.classes)
    if same is not None:
        benchmark.short = dict(same.domains)
    return benchmark


def whereabouts(data: Path | str) -> str:
    """How to name the same data from another folder: a whole path, or the data set's name."""
    root, data_set = locate(data)
    return data_set.name if data_set is not None and data_set.built else str(root.resolve())


def _check_there(data_set: DataSet, root: Path) -> None:
    if not data_set.can_open(root):
        raise DataError(
            f"{data_set.name}: not in {root.parent}",
            remedy=f"diwa data get {data_set.name} fetches it, "
            f"diwa data add {data_set.name} PATH takes what you have of it",
        )


def _check_table(path: Path) -> None:
    if is_table(path):
        return
    from diwa.data.archive import is_archive

    if is_archive(path):
        raise DataError(
            f"{path}: an archive", remedy=f"unpack it, or diwa data add NAME {path} for a known one"
        )
    raise DataError(
        f"{path}: neither a folder nor a table",
        remedy=f"give a folder laid out as domain/class/image, or one of {', '.join(ENDINGS)}",
    )
