"""`diwa data add`: take what the user has of a data set that is known by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from diwa.cli.console import progress, say, show_json
from diwa.cli.options import OptionalPath


def add(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH [PATH ...]")
    ],
    /,
    *,
    how: Literal["link", "copy", "refer"] = "link",
    replace: bool = False,
    duplicates: OptionalPath = None,
    json: bool = False,
) -> None:
    """Take archives or folders of a known data set, so that it is found by name from then on.

    Knows the layouts that are about: a root some levels down, DomainBed's names, kfold, train and
    test folders, TerraIncognita's raw images with their json. Counts the images against the
    published numbers. Your own files stay as they are; the same command goes on after a stop.

    Args:
        name: PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, ColoredMNIST or RotatedMNIST.
        paths: archives (zip, tar), folders or files; all that belongs to it at once.
        how: link shares a folder's bytes where it can, copy never does, refer only remembers where
            the folder is.
        replace: put it in place of what was added before.
        duplicates: DomainBed's list of images to leave out, for DomainNet.
        json: print the counts as JSON.
    """
    import msgspec

    from diwa.cli.data_counts import show_count
    from diwa.data.install import add_data

    added = add_data(
        name, *paths, how=how, replace=replace, duplicates=duplicates, progress=progress()
    )
    if json:
        content = {"new": added.new, "notes": added.notes, "count": added.count}
        show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))
        return
    show_count(added.count)
    for note in added.notes:
        say(note)
    say(f"{'in' if added.new else 'was there already, in'} {added.count.root}")
    say(f"next: diwa sweep {added.count.name} --target {added.count.domains[0].name}")
