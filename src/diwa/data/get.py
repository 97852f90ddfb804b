"""Fetching a data set from its official places, and bringing it to where it is found by name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from diwa.data.fetch import fetch
from diwa.data.home import data_home
from diwa.data.install import Added, add_data
from diwa.data.published import count
from diwa.data.sets import known
from diwa.data.sets.base import DataSet, Remote
from diwa.errors import DataError
from diwa.progress import QUIET, Progress


@dataclass(frozen=True)
class Got:
    """What came of fetching a data set.

    Args:
        added: what came of unpacking it.
        files: the files that were fetched -> their SHA-256.
        unchecked: those of them whose SHA-256 nobody has published.
    """

    added: Added
    files: dict[str, str]
    unchecked: tuple[str, ...]


def get_data(
    name: str,
    *,
    urls: Sequence[str] = (),
    keep: bool = False,
    home: Path | None = None,
    progress: Progress = QUIET,
) -> Got:
    """Fetches a known data set; the same call goes on where one was stopped.

    Args:
        name: the data set's.
        urls: places of the user's own, instead of the official ones.
        keep: whether to keep the archives after they are unpacked.
        home: the folder of data sets; see `data_home`.
        progress: who hears how it goes.

    Raises:
        DataError: if no place gives it, with what to do then.
        SpecError: for an unknown name.
    """
    data_set = known(name)
    place = data_home(home)
    root = place / data_set.folder
    if data_set.is_there(root):
        return Got(Added(count(data_set, root), (), new=False), {}, ())
    folder = place / ".downloads" / data_set.folder
    notes, files, unchecked = [], {}, []
    remotes = _from(urls) if urls else data_set.remotes
    if not remotes:
        raise DataError(
            f"{data_set.name}: no place is known to fetch it from",
            remedy=f"diwa data add {data_set.name} PATH takes what you have of it",
        )
    if data_set.size and not urls:
        progress.say(f"{data_set.name}: about {data_set.size} to fetch, into {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            for remote in remotes:
                try:
                    fetched = fetch(
                        remote, folder / remote.name, remedy=_remedy(data_set), progress=progress
                    )
                except DataError as error:
                    if not remote.optional:
                        raise
                    notes.append(str(error).partition("; look for")[0])
                    continue
                files[remote.name] = fetched.sha256
                if not fetched.checked:
                    unchecked.append(remote.name)
            paths = [folder / remote.name for remote in remotes if remote.name in files]
            added = add_data(name, *paths, how="link", home=home, progress=progress)
            if not keep:
                shutil.rmtree(folder)
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: {error.strerror or error}",
            remedy="free some space or set DIWA_DATA to another folder, then the same again",
        ) from error
    merged = Added(added.count, (*notes, *added.notes), added.new)
    return Got(merged, files, tuple(unchecked))


def _from(urls: Sequence[str]) -> list[Remote]:
    remotes = []
    for number, url in enumerate(urls):
        if not url.startswith(("http://", "https://")):
            raise DataError(
                f"{url}: not an address of the web",
                remedy="give http://… or https://…; diwa data add takes files",
            )
        last = url.partition("?")[0].rpartition("/")[2]
        # Two places may call their files alike.
        remotes.append(Remote(name=f"{number}-{last or 'file'}", urls=(url,)))
    return remotes


def _remedy(data_set: DataSet) -> str:
    return (
        f"look for a copy at {data_set.homepage}, then diwa data add {data_set.name} FILE "
        f"(or diwa data get {data_set.name} --url ADDRESS)"
    )
