"""Bringing what a user has of a data set to where diwa finds it by name."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from diwa.atomic import write_bytes
from diwa.data.folder import hidden
from diwa.data.home import MARK, data_home
from diwa.data.layout import Arrangement
from diwa.data.published import Count, count
from diwa.data.sets import known
from diwa.data.sets.base import DataSet
from diwa.data.sources import FolderSource, How, Sources, open_sources
from diwa.errors import DataError
from diwa.progress import QUIET, Progress


@dataclass(frozen=True)
class Added:
    """What came of adding a data set.

    Args:
        count: its images, against the published numbers.
        notes: what a person should know.
        new: whether it was brought there now, or was there before.
    """

    count: Count
    notes: tuple[str, ...]
    new: bool


def add_data(
    name: str,
    *paths: Path | str,
    how: How = "link",
    replace: bool = False,
    duplicates: Path | None = None,
    home: Path | None = None,
    progress: Progress = QUIET,
) -> Added:
    """Brings archives or folders of a known data set to where it is found by name.

    The user's own files stay as they are. Everything is written beside its place and renamed; the
    same call goes on with what a kill left.

    Args:
        name: the data set's.
        paths: archives, folders, single files: what the user has of it, in any known layout.
        how: "link" shares the bytes of a folder's files where the file system can, "copy" never
            does, "refer" only notes where the folder is.
        replace: whether to put it in place of one that was added before.
        duplicates: a list of images to leave out, for DomainNet.
        home: the folder of data sets; see `data_home`.
        progress: who hears how it goes.

    Raises:
        DataError: if the paths don't hold the data set, or there is no room.
        SpecError: for an unknown name.
    """
    data_set, sources = known(name), [Path(path) for path in paths]
    if not sources:
        raise DataError(f"{data_set.name}: nothing to add", remedy="name archives or a folder")
    root = data_home(home) / data_set.folder
    if [path.absolute() for path in sources] == [root.absolute()]:
        return Added(count(data_set, root), (), new=False)
    with _alone(root):
        asked = _identity(sources, how, duplicates)
        if data_set.is_there(root) and not replace:
            if _is_same(root, asked, sources):
                return Added(count(data_set, root), (), new=False)
            raise DataError(
                f"{root}: {data_set.name} is there already",
                remedy="pass --replace to put this one in its place",
            )
        _check_replaceable(root)
        held = open_sources(sources)
        arrangement = data_set.arrange(held, duplicates=duplicates)
        _check_whole(data_set, arrangement, sources)
        if how == "refer":
            _refer(root, held, arrangement)
        else:
            _bring(data_set, root, held, arrangement, asked, how, progress)
        notes = list(arrangement.notes)
        if arrangement.passed_over:
            images = "image" if arrangement.passed_over == 1 else "images"
            notes.append(
                f"{arrangement.passed_over:,} {images} of no known domain and class left out"
            )
        return Added(count(data_set, root), tuple(notes), new=True)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keeps others out, and mends what a kill between two renames left."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root.with_name(f".{root.name}.lock"))
        with lock:
            old = _old(root)
            if old.exists() or old.is_symlink():
                if root.exists() or root.is_symlink():
                    _remove(old)
                else:
                    old.rename(root)
            yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DataError(
            f"{error.filename or root.parent}: {error.strerror or error}",
            remedy="free some space, then give the same command again"
            if full
            else "check its permissions, or set DIWA_DATA to another folder",
        ) from error


def _bring(
    data_set: DataSet,
    root: Path,
    sources: Sources,
    arrangement: Arrangement,
    asked: dict[str, object],
    how: How,
    progress: Progress,
) -> None:
    part = root.with_name(f".{root.name}.part")
    begun = part.exists()
    if begun and _noted(part) != asked:
        shutil.rmtree(part)  # with something else
    part.mkdir(exist_ok=True)
    write_bytes(part / MARK, json.dumps(asked, indent=2).encode())
    _check_room(part, sources, arrangement, how)
    files = arrangement.files
    with progress.task(f"bringing {data_set.name}", len(files)) as task:
        sources.place(files, part, how, lambda _: task.advance())
    if begun:
        _drop_strangers(part, files)
    if root.is_symlink() or root.exists():
        root.rename(_old(root))
    part.rename(root)
    _remove(_old(root))


def _refer(root: Path, sources: Sources, arrangement: Arrangement) -> None:
    """Puts a link to the user's folder, if that is laid out right as it stands."""
    one = sources.parts[0]
    tops = {
        name[: -len(target)] for target, name in arrangement.files.items() if name.endswith(target)
    }
    as_it_is = all(name.endswith(target) for target, name in arrangement.files.items())
    if (
        len(sources.parts) != 1
        or not isinstance(one, FolderSource)
        or len(tops) != 1
        or not as_it_is
    ):
        raise DataError(
            f"{one.where}: its layout has to be changed, so it can't be referred to",
            remedy="leave --how out",
        )
    top = tops.pop()
    strangers = _strangers(top, sources, arrangement)
    if strangers:
        raise DataError(
            f"{one.where / strangers[0]}: no image of a known domain and class, and would count as "
            f"one if the folder were referred to{_more(strangers)}",
            remedy="move it away, or leave --how out, which takes over what is known only",
        )
    origin = (one.where / top).resolve()
    part = root.with_name(f".{root.name}.part")
    _remove(part)
    part.symlink_to(origin, target_is_directory=True)
    if root.is_symlink() or root.exists():
        root.rename(_old(root))
    part.rename(root)
    _remove(_old(root))


def _strangers(top: str, sources: Sources, arrangement: Arrangement) -> list[str]:
    """Files in class folders under `top` that belong to no known domain and class."""
    wanted = set(arrangement.files.values())
    return [
        name
        for name in sources.names("")
        if name.startswith(top)
        and name not in wanted
        and name.count("/", len(top)) >= 2
        and not any(map(hidden, name.split("/")))
    ]


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _check_whole(data_set: DataSet, arrangement: Arrangement, paths: Sequence[Path]) -> None:
    missing = data_set.lacking(arrangement)
    if not missing:
        return
    where = ", ".join(map(str, paths))
    if not arrangement.files:
        raise DataError(
            f"{where}: nothing in there looks like {data_set.name}",
            remedy=f"it should have folders {', '.join(data_set.domains)}, with classes in them",
        )
    raise DataError(
        f"{where}: has no images of {', '.join(missing)}",
        remedy=f"give everything of {data_set.name} at once, several paths if need be",
    )


def _check_room(part: Path, sources: Sources, arrangement: Arrangement, how: How) -> None:
    linked = how == "link" and all(isinstance(one, FolderSource) for one in sources.parts)
    if linked and all(one.where.stat().st_dev == part.stat().st_dev for one in sources.parts):
        return
    files = arrangement.files.items()
    needed = sum(sources.size(name) for target, name in files if not (part / target).exists())
    free = shutil.disk_usage(part).free
    if needed > free:
        raise DataError(
            f"{part.parent}: {needed / 1e9:,.1f} GB are needed and {free / 1e9:,.1f} GB are free",
            remedy="free some space, or set DIWA_DATA to another folder",
        )


def _check_replaceable(root: Path) -> None:
    if root.is_dir() and not root.is_symlink() and _noted(root) is None and any(root.iterdir()):
        raise DataError(
            f"{root}: was not made by diwa, so it is left alone",
            remedy="move it away, or add it from where it is",
        )


def _drop_strangers(part: Path, files: dict[str, str]) -> None:
    """Removes what an earlier start left and this one does not want."""
    for path in list(part.rglob("*")):
        name = path.relative_to(part).as_posix()
        if path.is_file() and name != MARK and name not in files:
            path.unlink()


def _identity(paths: Sequence[Path], how: How, duplicates: Path | None) -> dict[str, object]:
    """What was asked for, so that another start knows whether it is the same."""

    def told(path: Path) -> list[object]:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder", remedy="give what you have of it")
        stat = path.stat()
        return [str(path.resolve()), stat.st_mtime_ns, stat.st_size if path.is_file() else 0]

    return {
        "from": [told(path) for path in paths],
        "how": how,
        "duplicates": told(duplicates) if duplicates else None,
    }


def _is_same(root: Path, asked: dict[str, object], paths: Sequence[Path]) -> bool:
    if root.is_symlink():
        return asked["how"] == "refer" and root.resolve().is_relative_to(paths[0].resolve())
    return _noted(root) == asked


def _noted(root: Path) -> dict[str, object] | None:
    try:
        noted = json.loads((root / MARK).read_text())
    except (OSError, ValueError):
        return None
    return noted if isinstance(noted, dict) else None


def _old(root: Path) -> Path:
    return root.with_name(f".{root.name}.old")


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
