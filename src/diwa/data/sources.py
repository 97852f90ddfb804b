"""What a user has of a data set: folders, archives, single files, all read the same way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from diwa.data.folder import IMAGE_ENDINGS, hidden
from diwa.errors import DataError

How = Literal["link", "copy", "refer"]
#: What is read into memory as a whole: annotations of a quarter of a million images are 0.1 GB.
_SMALL = 2**30

#: Called after each file with its bytes.
Step = Callable[[int], None]


class Source(Protocol):
    """Files by name; names have forward slashes and never lead outside."""

    where: Path

    def sizes(self) -> Mapping[str, int]:
        """Name -> bytes of every file."""
        ...

    def open(self, name: str) -> BinaryIO:
        """One file's bytes, for small ones."""
        ...

    def place(self, wanted: Mapping[str, Sequence[Path]], how: How, step: Step) -> None:
        """Puts files where they are wanted, in whatever order is quickest; whole ones stay."""
        ...


class Sources:
    """Several sources as one; where two have a file of one name, the first one's counts.

    Args:
        parts: the sources.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        self.parts = list(parts)
        self._owner: dict[str, Source] = {}
        self._sizes: dict[str, int] = {}
        for part in self.parts:
            for name, size in part.sizes().items():
                if name not in self._owner:
                    self._owner[name] = part
                    self._sizes[name] = size

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def images(self) -> dict[str, int]:
        """Name -> bytes of whatever has an image's ending and is not hidden."""
        return {
            name: size
            for name, size in self._sizes.items()
            if name.lower().endswith(IMAGE_ENDINGS) and not any(map(hidden, name.split("/")))
        }

    def names(self, *endings: str) -> list[str]:
        """The files with one of these endings, sorted."""
        return sorted(
            name
            for name in self._owner
            if name.lower().endswith(endings) and not hidden(name.rpartition("/")[2])
        )

    def size(self, name: str) -> int:
        """A file's bytes."""
        return self._sizes[name]

    def read(self, name: str) -> bytes:
        """A small file.

        Raises:
            DataError: if it is not small.
        """
        if self._sizes[name] > _SMALL:
            raise DataError(
                f"{self._owner[name].where}: {name} is {self._sizes[name] / 1e9:,.1f} GB",
                remedy="no annotations are that large; look at what it is",
            )
        with self._owner[name].open(name) as file:
            return file.read()

    def place(self, files: Mapping[str, str], into: Path, how: How, step: Step) -> None:
        """Puts files into a folder.

        Args:
            files: where under `into` -> name.
            into: the folder.
            how: "link" shares the bytes of files in folders where that is possible.
            step: called after each file with its bytes.

        Raises:
            DataError: if a source is damaged.
        """
        wanted: dict[int, dict[str, list[Path]]] = {}
        made: set[Path] = set()
        for target, name in files.items():
            path = into / target
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            places = wanted.setdefault(id(self._owner[name]), {})
            places.setdefault(name, []).append(path)
        for part in self.parts:
            if id(part) in wanted:
                part.place(wanted[id(part)], how, step)


class FolderSource:
    """The files under a folder."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def sizes(self) -> Mapping[str, int]:
        """Every file, links followed."""
        found: dict[str, int] = {}
        for folder, names in _walk(self.where):
            for name in names:
                path = folder / name
                # A dangling link is no file; if it should be an image, the count will tell.
                with suppress(FileNotFoundError):
                    found[path.relative_to(self.where).as_posix()] = path.stat().st_size
        return found

    def open(self, name: str) -> BinaryIO:
        """The file itself."""
        return (self.where / name).open("rb")

    def place(self, wanted: Mapping[str, Sequence[Path]], how: How, step: Step) -> None:
        """Links or copies; falls back to copying where the file system can't link."""
        for name, targets in wanted.items():
            origin = self.where / name
            size = origin.stat().st_size
            for target in targets:
                if not is_whole(target, size):
                    linked = how == "link" and _linked(origin, target)
                    if not linked:
                        shutil.copyfile(origin, target)
                step(size)


class FileSource:
    """A single file."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def sizes(self) -> Mapping[str, int]:
        """Just this one."""
        return {self.where.name: self.where.stat().st_size}

    def open(self, name: str) -> BinaryIO:
        """The file."""
        del name
        return self.where.open("rb")

    def place(self, wanted: Mapping[str, Sequence[Path]], how: How, step: Step) -> None:
        """As a folder would."""
        FolderSource(self.where.parent).place(wanted, how, step)


def open_sources(paths: Sequence[Path]) -> Sources:
    """Looks what each path is: a folder, an archive, a folder of archives, or a file.

    Raises:
        DataError: for a path that is not there, and an archive that can't be read.
    """
    from diwa.data.archive import is_archive, open_archive

    parts: list[Source] = []
    for path in paths:
        if path.is_dir():
            parts.append(FolderSource(path))
            inside = Sources(parts[-1:])
            if not inside.images():
                held = sorted(name for name in path.iterdir() if name.is_file())
                parts += [open_archive(name) for name in held if is_archive(name)]
        elif path.is_file():
            parts.append(open_archive(path) if is_archive(path) else FileSource(path))
        else:
            raise DataError(f"{path}: no such file or folder", remedy="give what you have of it")
    return Sources(parts)


def is_whole(target: Path, size: int) -> bool:
    """Whether a file is there already; one that a kill cut short is smaller."""
    try:
        return target.stat().st_size == size
    except FileNotFoundError:
        return False


def _linked(origin: Path, target: Path) -> bool:
    target.unlink(missing_ok=True)
    try:
        os.link(origin.resolve(), target)
    except OSError:
        return False
    return True


def _walk(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder below, links followed once, with its files."""
    seen: set[tuple[int, int]] = set()

    def refuse(error: OSError) -> None:
        raise DataError(
            f"{error.filename}: can't be read ({error.strerror})", remedy="check its permissions"
        ) from error

    for folder, below, names in os.walk(top, followlinks=True, onerror=refuse):
        stat = os.stat(folder)
        if (stat.st_dev, stat.st_ino) in seen:
            below.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        below[:] = sorted(name for name in below if not hidden(name))
        yield Path(folder), sorted(names)
