"""From what somebody names on a command line to opened weights."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diwa.errors import WeightsError
from diwa.weights.disk import unreadable
from diwa.weights.hub import SCHEME, fetch
from diwa.weights.source import Source, open_source

#: Says which files of weights a folder stands for, if it is one of somebody's own kind, and a
#: path each that tells them apart. None for any other folder.
Folders = Callable[[Path], "Sequence[tuple[Path, Path]] | None"]


@dataclass(frozen=True)
class Located:
    """Opened weights and what to call them.

    Args:
        name: the end of the path they were named by, as long as it takes to tell them apart.
        source: the weights.
    """

    name: str
    source: Source


@dataclass(frozen=True)
class _Found:
    text: str
    label: Path
    path: Path


def locate(texts: Sequence[str | Path], *, folders: Folders | None = None) -> list[Located]:
    """Finds and opens weights.

    Args:
        texts: files; folders with one model; patterns with `*`, `?`, `[...]` or `**`; addresses
            on the hub, `hf://owner/repo[@revision][/file]`.
        folders: what knows folders of another kind, such as a store of runs.

    Returns:
        In the order of the arguments; what a pattern finds is sorted.

    Raises:
        WeightsError: if there is nothing, one can't be read, or the same file is named twice.

    Example:
        >>> pattern = example_members[0].with_name("*.safetensors")
        >>> [one.name for one in locate([pattern])]
        ['a.safetensors', 'b.safetensors']
    """
    found = [one for text in texts for one in _found(str(text), folders)]
    if not found:
        raise WeightsError("no weights given", remedy="name files, folders, patterns or runs")
    opened = [(one, open_source(one.path)) for one in found]
    _check_once(opened)
    names = _short_names([one.label for one in found])
    return [Located(name, source) for name, (_, source) in zip(names, opened, strict=True)]


def _found(text: str, folders: Folders | None) -> Iterator[_Found]:
    if text.startswith(SCHEME):
        # A root of its own: no local path has the same name.
        yield _Found(text, Path(os.sep, "hf:", text.removeprefix(SCHEME)), fetch(text))
        return
    for path in _expanded(text):
        inside = folders(path) if folders and path.is_dir() else None
        if inside is None:
            yield _Found(text, path, path)
        else:
            yield from (_Found(text, label, weights) for label, weights in inside)


def _expanded(text: str) -> list[Path]:
    """The paths that a pattern stands for; a path that exists stands for itself."""
    if not glob.has_magic(text) or os.path.lexists(text):
        return [Path(text)]
    found = sorted(glob.glob(text, recursive=True))
    if not found:
        raise WeightsError(
            f"{text}: no file matches", remedy="check the pattern, and where you are"
        )
    return [Path(path) for path in found]


def _check_once(opened: Sequence[tuple[_Found, Source]]) -> None:
    """Counted twice, a member would weigh double without anybody having said so."""
    known: dict[tuple[int, int], tuple[_Found, Path]] = {}
    for one, source in opened:
        for path in source.files.values():
            try:
                about = path.stat()
            except OSError as error:
                raise unreadable(path, error) from error
            # By what it is for the system: also the same through a link, or another folder.
            file = (about.st_dev, about.st_ino)
            if file not in known:
                known[file] = (one, path)
                continue
            first, earlier = known[file]
            if first is one:
                continue
            raise WeightsError(
                f"{path}: is the same file as {earlier}{_named_by(first, one)}",
                remedy="name each once; to weigh one more, give weights",
            )


def _named_by(first: _Found, second: _Found) -> str:
    texts = list(dict.fromkeys([first.text, second.text]))
    return f" (found by {' and '.join(texts)})"


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path that no other one has."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    names = []
    for own in parts:
        length = next(
            (n for n in range(1, len(own)) if sum(other[-n:] == own[-n:] for other in parts) == 1),
            len(own),
        )
        names.append(str(Path(*own[-length:])))
    return names
