"""Writing a soup: one file or a folder, with a manifest, and never over what it is made from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from diwa.atomic import replacing, swapping_folder
from diwa.errors import WeightsError
from diwa.progress import Progress
from diwa.soup import folder, recipe
from diwa.soup.engine import Plan, blend
from diwa.weights.member import Member
from diwa.weights.source import METADATA_KEY
from diwa.weights.writer import FileWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diwa.soup.soup import Soup

_UNKNOWN = "0" * 64


def save(
    soup: Soup,
    path: Path,
    plans: Sequence[Plan],
    *,
    shard_size: int | None,
    progress: Progress,
) -> Path:
    """Writes a soup as a file, or as a folder with what lay beside the first member's weights."""
    if shard_size is not None and (not isinstance(shard_size, int) or shard_size < 1):
        raise WeightsError(f"shard size {shard_size!r}", remedy="give a number of bytes")
    _refuse_what_is_read(soup, path)
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        if os.path.isdir(path):
            raise WeightsError(f"{path}: is a folder", remedy="choose another name for the file")
        if shard_size is not None:
            raise WeightsError(
                f"{path}: shards need a folder", remedy="leave .safetensors off the name"
            )
        with replacing(path) as part:
            _write(soup, plans, {part: list(soup.infos)}, progress)
        return path
    if suffix in folder.WEIGHTS or (os.path.exists(path) and not os.path.isdir(path)):
        raise WeightsError(
            f"{path}: not the name of a safetensors file or a new folder",
            remedy="let it end in .safetensors",
        )
    kept = folder.beside(soup.members, soup.rules.target)
    with swapping_folder(path, in_the_way=partial(folder.in_the_way, kept=kept)) as part:
        files = folder.shards(soup.infos, shard_size)
        _write(soup, plans, {part / file: names for file, names in files.items()}, progress)
        folder.complete(part, files, soup.infos, kept)
    return path


def _refuse_what_is_read(soup: Soup, path: Path) -> None:
    # The path itself may lead through folders that are only about to be made.
    place = os.path.realpath(path)
    for role, member in _involved(soup):
        files = member.source.files.values()
        if any(_same(place, file) for file in files):
            raise WeightsError(f"{path}: is {role}", remedy="choose another place")
        ways = [way for file in files for way in (file.absolute(), file.resolve())]
        if any(_same(place, above) for above in {above for way in ways for above in way.parents}):
            raise WeightsError(f"{path}: holds {role}", remedy="choose another place")


def _same(place: str, other: Path) -> bool:
    """Whether both are the same for the system: by links as well, or in capitals."""
    try:
        return os.path.samefile(place, other)
    except OSError:
        return False


def _involved(soup: Soup) -> Iterator[tuple[str, Member]]:
    """Everything that is read, and what it is."""
    yield from (("one of the members", member) for member in soup.members)
    yield from (("one of the statistics", member) for member in soup.recipe.statistics)
    yield from (("what tensors are taken from", member) for member, _ in soup.taken)
    if soup.base is not None:
        yield "the base", soup.base


def _write(
    soup: Soup, plans: Sequence[Plan], files: Mapping[Path, Sequence[str]], progress: Progress
) -> None:
    involved = [member for _, member in _involved(soup)]
    unknown = {str(member.path): _UNKNOWN for member in involved}
    infos = soup.infos
    writers: dict[str, FileWriter] = {}
    aliases = {plan.name: plan.written for plan in plans}
    with ExitStack() as stack:
        opened = []
        for path, names in files.items():
            held = {name: infos[name] for name in names}
            writer = stack.enter_context(FileWriter(path, held, _metadata(soup, unknown)))
            opened.append(writer)
            writers.update(dict.fromkeys(names, writer))

        written = _Countdown(sum(plan.info.size for plan in plans))

        def sink(name: str, start: int, numbers: NDArray) -> None:
            for alias in aliases[name]:
                writers[alias].put(alias, start, numbers)
            written.count(numbers.size)

        def hashed(member: Member) -> int:
            _ = member.source.digest
            return sum(info.size for info in member.source.tensors.values())

        # Each file's SHA-256 is worked out by the same threads, while its pages are warm.
        hashing = [partial(hashed, member) for member in involved]
        total = sum(plan.info.size * len(plan.members) for plan in plans)
        total += sum(info.size for one in involved for info in one.source.tensors.values())
        # Closed whatever happens, for no thread may write to what is closed after it.
        with (
            progress.task(f"merging {len(soup.members)} files", total) as task,
            closing(blend(plans, sink, beside=hashing)) as working,
        ):
            for done in working:
                task.advance(done)
                if written.is_over():
                    for writer in opened:
                        writer.flush()
        known = {str(member.path): member.source.digest for member in involved}
        for writer in opened:
            writer.describe(_metadata(soup, known))


class _Countdown:
    """Tells, once, when as many things were counted as there were to be."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._turn = Lock()

    def count(self, things: int) -> None:
        """So many are done."""
        with self._turn:
            self._left -= things

    def is_over(self) -> bool:
        """Whether nothing is left, and nobody was told so."""
        with self._turn:
            over = self._left == 0
            self._left -= over
            return over


def _metadata(soup: Soup, digests: Mapping[str, str]) -> dict[str, str]:
    first = soup.members[0].source
    # Copies that safetensors' own `save_model` left out are still known by these entries.
    left_out = {name: kept for name, kept in first.aliases.items() if name not in first.tensors}
    said = json.dumps(recipe.about(soup, digests), sort_keys=True)
    return {**left_out, "format": "pt", METADATA_KEY: said}
