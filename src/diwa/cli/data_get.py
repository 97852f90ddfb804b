"""`diwa data get`: fetch a data set that is known by name."""

from __future__ import annotations

from typing import Annotated

import tyro

from diwa.cli.console import progress, say, show_json


def get(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    *,
    url: Annotated[tuple[str, ...], tyro.conf.arg(metavar="URL ...")] = (),
    keep: bool = False,
    json: bool = False,
) -> None:
    """Fetch a known data set from its official places, check and count it.

    Give the same command again to go on after a stop. When a place is gone, it says where to look
    for a copy; diwa data add takes that.

    Args:
        name: PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, ColoredMNIST or RotatedMNIST.
        url: other places to fetch from, if you know some; all files that belong to it.
        keep: keep the archives after they are unpacked.
        json: print the counts as JSON.
    """
    import msgspec

    from diwa.cli.data_counts import show_count
    from diwa.data.get import get_data

    got = get_data(name, urls=url, keep=keep, progress=progress())
    added = got.added
    if json:
        content = {
            "new": added.new,
            "notes": added.notes,
            "sha256": got.files,
            "unchecked": got.unchecked,
            "count": added.count,
        }
        show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))
        return
    show_count(added.count)
    for note in added.notes:
        say(note)
    for file in got.unchecked:
        say(f"{file}: no SHA-256 is published to check it by; it is {got.files[file]}")
    say(f"{'in' if added.new else 'was there already, in'} {added.count.root}")
    say(f"next: diwa sweep {added.count.name} --target {added.count.domains[0].name}")
