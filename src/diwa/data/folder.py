"""A folder of `domain/class/image`, listed and checked; no image is opened here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from diwa.errors import DataError

#: The endings that DomainBed (through torchvision) takes for images; the order of a domain's
#: images, and so every split, depends on them.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_LEFT_BY_SYSTEMS = {"__MACOSX", "Thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class File:
    """One image: where it is under the root, its class, and what its state was."""

    path: str
    label: int
    size: int
    changed_ns: tuple[int, int]


@dataclass(frozen=True)
class Listing:
    """Everything a folder of domains holds, or a table in a folder names."""

    root: Path
    classes: tuple[str, ...]
    domains: dict[str, tuple[File, ...]]
    ignored: tuple[str, ...]
    table: Path | None = None

    @property
    def origin(self) -> Path:
        """What was listed."""
        return self.table or self.root

    @property
    def digest(self) -> str:
        """Names the content wherever it lies and whenever it was copied there."""
        sha = hashlib.sha256()
        for files in self.domains.values():
            for file in files:
                told = f"{file.path}\0{file.label}\0{file.size}\n"
                sha.update(told.encode(errors="surrogateescape"))
        return sha.hexdigest()[:16]


def list_folder(
    root: Path, *, allow_missing_classes: bool = False, skip_bad_files: bool = False
) -> Listing:
    """Lists the images under `root`, in DomainBed's order.

    Hidden files, and folders without any image, are not domains.

    Args:
        root: the folder that holds one folder per domain.
        allow_missing_classes: whether a domain may lack a class that another one has.
        skip_bad_files: whether to leave out files that are no images.

    Raises:
        DataError: if there are no domains, or a file or class is not as it should be.
    """
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder", remedy="give a folder laid out as domain/class/image"
        )
    found = {domain: _classes(root, domain, skip_bad_files) for domain in _folders(root)}
    domains = {name: classes for name, classes in found.items() if any(classes.values())}
    ignored = tuple(name for name in found if name not in domains)
    for name in ignored:
        if domains and _holds_images(root / name):
            raise DataError(
                f"{root / name}: holds images, but not in class folders",
                remedy="move them into class folders, or the folder away",
            )
    if not domains:
        raise DataError(_why_empty(root), remedy="lay it out as domain/class/image")
    names = sorted({c for classes in domains.values() for c, files in classes.items() if files})
    _check_depth(root, domains)
    if not allow_missing_classes:
        _check_classes(root, domains, names)
    number = {name: label for label, name in enumerate(names)}
    return Listing(
        root=root,
        classes=tuple(names),
        domains={
            domain: tuple(
                File(path, number[name], stat.st_size, (stat.st_mtime_ns, stat.st_ctime_ns))
                for name, files in sorted(classes.items())
                for path, stat in files
            )
            for domain, classes in domains.items()
        },
        ignored=ignored,
    )


def _check_depth(
    root: Path, domains: dict[str, dict[str, list[tuple[str, os.stat_result]]]]
) -> None:
    """Refuses what looks like domains and classes in a folder of their own.

    Read as it stands, it would be a single domain, with the domains for classes.
    """
    if len(domains) > 1:
        return
    held = [
        {path.split("/")[2] if path.count("/") > 2 else "" for path, _ in files}
        for files in next(iter(domains.values())).values()
        if files
    ]
    if any("" in below for below in held) or any(below != held[0] for below in held):
        return
    place = root
    while len(inside := _folders(place)) == 1:
        place = place / inside[0]
    raise DataError(
        f"{root}: one domain only, with folders in its class folders and no images",
        remedy=f"if domains are further down, give {place}",
    )


def _folders(parent: Path) -> list[str]:
    try:
        entries = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    except OSError as error:
        _refuse(error)
    names = sorted(name for name in entries if not hidden(name))
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            # It would be the name of a domain or a class, which tables and files of weights hold.
            raise DataError(
                f"{parent}: the name of a folder in it is not UTF-8 ({name!a})", remedy="rename it"
            ) from error
    return names


def _holds_images(folder: Path) -> bool:
    return any(
        entry.is_file() and entry.name.lower().endswith(IMAGE_ENDINGS) and not hidden(entry.name)
        for entry in os.scandir(folder)
    )


def hidden(name: str) -> bool:
    """Whether a file or folder is not meant to be looked at."""
    return name.startswith(".") or name in _LEFT_BY_SYSTEMS


def _classes(root: Path, domain: str, skip: bool) -> dict[str, list[tuple[str, os.stat_result]]]:
    """Class -> its images as (path, stat), in the order of torchvision's ImageFolder."""
    held: dict[str, list[tuple[str, os.stat_result]]] = {}
    for name in _folders(root / domain):
        images = held.setdefault(name, [])
        for folder, names in _walk(root / domain / name):
            for file in names:
                path = folder / file
                if hidden(file):
                    continue
                if not file.lower().endswith(IMAGE_ENDINGS):
                    if skip:
                        continue
                    raise DataError(
                        f"{path}: not an image",
                        remedy="move it away, or pass --skip-bad-files",
                    )
                images.append((path.relative_to(root).as_posix(), _stat(path)))
    return held


def _walk(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder from `top` on that is not hidden, with its files, in ImageFolder's order."""
    above: dict[str, tuple[tuple[int, int], ...]] = {}
    found = []
    for folder, _, names in os.walk(top, followlinks=True, onerror=_refuse):
        stat = os.stat(folder)
        chain, own = above.get(os.path.dirname(folder), ()), (stat.st_dev, stat.st_ino)
        if own in chain:
            # Or every image below would be there some forty times.
            raise DataError(
                f"{folder}: links lead back to a folder above it", remedy="remove the link"
            )
        above[folder] = (*chain, own)
        found.append((folder, sorted(names)))
    for folder, names in sorted(found):
        place = Path(folder)
        if not any(hidden(part) for part in place.relative_to(top).parts):
            yield place, names


def _refuse(error: OSError) -> NoReturn:
    raise DataError(
        f"{error.filename}: can't be read ({error.strerror})", remedy="check its permissions"
    ) from error


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise DataError(
            f"{path}: can't be read ({error.strerror})", remedy="mend the link or remove it"
        ) from error


def _check_classes(
    root: Path, domains: dict[str, dict[str, list[tuple[str, os.stat_result]]]], names: list[str]
) -> None:
    for domain, classes in domains.items():
        missing = [name for name in names if not classes.get(name)]
        if missing:
            holder = next(d for d, held in domains.items() if held.get(missing[0]))
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(
                f"{root / domain}: no images of class {missing[0]!r}{more}, which {holder!r} has",
                remedy="add them, remove the folder, or pass --allow-missing-classes",
            )


def _why_empty(root: Path) -> str:
    folders = _folders(root)
    direct = [name for name in folders if not _folders(root / name) and _files(root / name)]
    if direct:
        return f"{root}: {direct[0]!r} holds files but no class folders"
    return f"{root}: no folders with images" if folders else f"{root}: holds no folders"


def _files(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if path.is_file() and not hidden(path.name)]
