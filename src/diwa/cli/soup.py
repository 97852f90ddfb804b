"""`diwa soup`: average the runs and score every method on the unseen domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from diwa.cli.console import progress, show, show_json
from diwa.cli.options import DataOptions, Device, OptionalPath, open_data

if TYPE_CHECKING:
    from diwa.sweep.harvest import Harvest


def soup(
    store: tyro.conf.Positional[Path],
    /,
    *,
    data: OptionalPath = None,
    target: tuple[str, ...] = (),
    out: OptionalPath = None,
    no_score: bool = False,
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Average a sweep's runs, uniformly and greedily, then score them on the unseen domain.

    Writes soup.safetensors (all runs), restricted.safetensors (those that helped on validation)
    and results.json.

    Args:
        store: the folder of a sweep.
        data: the folder of images; where the sweep found them by default.
        target: only these unseen domains.
        out: where to write; inside the store by default.
        no_score: leave the unseen domain unread.
        device: where to compute.
        json: print the results as JSON.
    """
    import msgspec

    from diwa.errors import StoreError
    from diwa.runs.store import Store
    from diwa.sweep.harvest import harvest

    told = progress()
    held = Store(store)
    runs = held.runs()
    if not runs:
        raise StoreError(f"{store}: holds no runs", remedy="start with diwa sweep")
    root = data or held.noted("data")
    if root is None:
        raise StoreError(f"{store}: does not say where its images are", remedy="pass --data FOLDER")
    image = runs[0].spec.task.image
    options = msgspec.convert(held.noted("options") or {}, DataOptions)
    name = msgspec.structs.replace(options, name=runs[0].spec.task.data)
    benchmark = open_data(Path(root), name, size=image.size, channels=image.channels, progress=told)
    results = harvest(
        held,
        benchmark,
        targets=target,
        score_target=not no_score,
        out=out,
        device=device,
        progress=told,
    )
    if json:
        show_json(msgspec.json.format(msgspec.json.encode(results), indent=2))
        return
    for result in results:
        show_harvest(result)


def show_harvest(result: Harvest) -> None:
    """Prints a table of what each method scored, and where the soups are."""
    from diwa.report.table import methods_table

    kept = sum(member.restricted for member in result.members)
    runs = f"{len(result.members)} runs, the restricted soup keeps {kept}"
    if result.methods:
        title = f"{result.target} (unseen, {result.images:,} images) · {runs}"
        others = {"on its 80 %": result.methods_80, "validation": result.validation}
        show(methods_table(title, result.methods, others))
    else:
        title = f"validation; {result.target} was not read · {runs}"
        show(methods_table(title, result.validation, {}))
    show(f"all runs averaged: {result.soup}")
    show(f"the helpful ones:  {result.restricted_soup}")
