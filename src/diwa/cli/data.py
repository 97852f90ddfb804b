"""`diwa data`: look at a folder or data set, and at what is cached of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from diwa.cli.console import progress, say, show_json
from diwa.cli.console import show as show_text
from diwa.cli.options import DataFlags, DataOptions, OptionalPath, open_data

if TYPE_CHECKING:
    from diwa.data.summary import Summary


def show(
    data: tyro.conf.Positional[Path],
    /,
    options: DataFlags = DataOptions(),  # noqa: B008 - frozen
    *,
    size: tuple[int, ...] = (224,),
    channels: Literal[1, 2, 3] = 3,
    list_only: bool = False,
    json: bool = False,
) -> None:
    """Check images: domains, classes, counts, broken files, the cache.

    Args:
        data: a folder of domain/class/image, a table (CSV, Parquet) of path, domain and label, or
            a name that diwa data list shows.
        options: how it is opened.
        size: pixels of the images' sides as the network will see them.
        channels: 1 for grey images, 2 for grey with alpha, 3 for colour.
        list_only: count files without opening any; else every image is decoded into the cache.
        json: print the counts as JSON.
    """
    import msgspec

    from diwa.data.summary import summarise
    from diwa.data.transforms import ImageSpec
    from diwa.errors import SpecError

    if not 1 <= len(size) <= 2:
        raise SpecError(f"size {size}", remedy="give one number, or height and width")
    told = progress()
    shape = ImageSpec(size=(size[0], size[-1]), channels=channels).size
    benchmark = open_data(data, options, size=shape, channels=channels, progress=told)
    summary = summarise(benchmark, decode=not list_only)
    if json:
        show_json(msgspec.json.format(msgspec.json.encode(summary), indent=2))
        return
    from rich.markup import escape

    from diwa.report.table import rows_table

    domains = summary.domains
    rows: list[tuple[object, ...]] = [
        (escape(name), *(domain.classes[name] for domain in domains)) for name in summary.classes
    ]
    rows.append(("all", *(sum(domain.classes.values()) for domain in domains)))
    if not list_only and summary.cache_dir:
        rows.append(("cached", *(_megabytes(domain.cached_bytes) for domain in domains)))
    headings = [summary.name, *(domain.name for domain in domains)]
    show_text(rows_table([escape(heading) for heading in headings], rows))
    for folder in summary.ignored:
        say(f"ignored, holds no images: {folder}")
    for path in summary.skipped:
        say(f"skipped, is no image: {path}")
    for line in _published(benchmark.names, summary):
        say(line)
    if summary.cache_dir:
        say(f"cache: {summary.cache_dir}, short side at most {summary.cache_side} px")


def _published(domains: list[str], summary: Summary) -> list[str]:
    """How the numbers compare with the published ones, for a data set that is known."""
    from diwa.cli.data_counts import verdict
    from diwa.data.published import compare
    from diwa.data.sets import alike

    known = alike(domains, tuple(summary.classes))
    if known is None:
        return []
    held = {domain.name: domain.classes for domain in summary.domains}
    return verdict(compare(known, held, where=Path(summary.name)))


def cache(
    cache_dir: OptionalPath = None,
    *,
    remove: tuple[str, ...] = (),
    clear: bool = False,
    json: bool = False,
) -> None:
    """Show or empty the cache of decoded images.

    Args:
        cache_dir: where it is; $DIWA_CACHE or the user's cache folder by default.
        remove: names of entries to delete.
        clear: delete all of it; it is made again when it is needed.
        json: print the entries as JSON.
    """
    import msgspec

    from diwa.data.cache import default_directory, list_caches
    from diwa.data.cache import remove as delete
    from diwa.errors import DataError

    directory = cache_dir or default_directory()
    held = list_caches(directory)
    unknown = set(remove) - {one.folder.name for one in held}
    if unknown:
        raise DataError(
            f"{directory}: has no entry {sorted(unknown)[0]!r}", remedy="diwa data cache lists them"
        )
    for one in held:
        if clear or one.folder.name in remove:
            delete(one)
    held = list_caches(directory)
    if json:
        content = [
            {"entry": c.folder.name, "root": c.root, "side": c.side, "bytes": c.bytes} for c in held
        ]
        show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))
        return
    from rich.markup import escape

    from diwa.report.table import rows_table

    rows = [
        (one.folder.name, f"{one.side} px", _megabytes(one.bytes), escape(one.root)) for one in held
    ]
    show_text(rows_table(["entry", "side", "size", "of"], rows))
    say(f"{_megabytes(sum(one.bytes for one in held))} in {directory}")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
