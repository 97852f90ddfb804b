"""`diwa soup`: average the runs and score every method on the unseen domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import tyro

from diwa.cli.console import progress, say, show, show_json
from diwa.cli.options import Device, OptionalPath

if TYPE_CHECKING:
    from diwa.runs.store import Run
    from diwa.sweep.harvest import Harvest


def soup(
    store: tyro.conf.Positional[Path],
    /,
    *,
    data: OptionalPath = None,
    target: tuple[str, ...] = (),
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    algorithm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    steps: tuple[int, ...] = (),
    leave_out: tuple[str, ...] = (),
    selection: Literal["training-domain", "oracle"] = "training-domain",
    out: OptionalPath = None,
    no_score: bool = False,
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Average a sweep's runs, uniformly and greedily, then score them on the unseen domain.

    Runs that share their initialisation are averaged together. Writes soup.safetensors (all of
    them), restricted.safetensors (those that helped on validation) and results.json. Runs of
    several trials that share it are averaged once more, all together. Of runs that don't share it,
    and of several averages, the predictions are averaged.

    The sweeps of a recipe are averaged one by one. What was done before for the same runs is shown,
    not done again.

    Args:
        store: the folder of a sweep; also one that DiWA's own code wrote.
        data: the folder of images; where the sweep found them by default.
        target: only these unseen domains.
        sweep: only the runs of these sweeps, by the names that their recipe gave them.
        algorithm: only runs that minimised one of these; with --out, or they replace the others.
        steps: only runs of that many steps.
        leave_out: runs to leave out, by the beginning of their key.
        selection: choose by the sources' validation images, or by the target's own 20 %.
        out: where to write; inside the store by default.
        no_score: leave the unseen domain unread.
        device: where to compute.
        json: print the results as JSON.
    """
    from diwa.cli.images import by_images, leaves_out, reopened
    from diwa.errors import SpecError, StoreError
    from diwa.runs.domainbed import is_domainbed
    from diwa.runs.store import Store
    from diwa.sweep.harvest import harvest

    if is_domainbed(store):
        from diwa.cli.foreign import soup_foreign

        if sweep or algorithm or steps or selection != "training-domain":
            raise SpecError(
                f"{store}: of runs of DiWA's own code, --sweep, --algorithm, --steps and "
                "--selection can't choose",
                remedy="use --target and --leave-out",
            )
        soup_foreign(store, data, target, leave_out, out, not no_score, device, json)
        return
    held = Store(store)

    every = held.runs()
    keys = [run.name for run in every]
    for begin in leave_out if keys else ():
        if not any(key.startswith(begin) for key in keys):
            raise StoreError(
                f"{store}: has no run {begin!r} to leave out", remedy=f"it has {', '.join(keys)}"
            )

    def wanted(run: Run) -> bool:
        return (
            leaves_out(run, target)
            and (not algorithm or run.spec.algorithm in algorithm)
            and (not steps or run.spec.steps in steps)
            and not run.name.startswith(leave_out or ("-",))
        )

    groups = by_images(held, wanted, sweep)
    reporting = progress()
    unfinished = sum(wanted(run) and not run.finished for run in every)
    if unfinished:
        reporting.say(f"left out, because not finished: {unfinished} of {len(every)} runs")
    results: list[Harvest] = []
    for (name, images), runs in groups.items():
        inside = "-".join(filter(None, (name, images.name, images.digest)))
        place = out / inside if out and len(groups) > 1 else out
        results += harvest(
            held,
            reopened(held, images, data, reporting),
            runs=runs,
            sweep=name,
            selection=selection,
            score_target=not no_score,
            out=place,
            device=device,
            progress=reporting,
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
    said = [
        result.sweep,
        f"{result.target} (unseen, {result.images:,} images)" if result.methods else "validation",
        "" if result.methods else f"{result.target} was not read",
        "all trials" if result.trial is None else f"trial {result.trial}" if result.trial else "",
        "chosen by the oracle" if result.selection == "oracle" else "",
        f"{len(result.members)} run{'s' * (len(result.members) > 1)}"
        + (f", the restricted soup keeps {kept}" if result.restricted_soup else ""),
    ]
    title = " · ".join(filter(None, said))
    if result.methods:
        others = {"on its 80 %": result.methods_80, "validation": result.validation}
        show(methods_table(title, result.methods, others))
    elif result.validation:
        show(methods_table(title, result.validation, {}))
    else:
        say(title)
    for method, why in result.missing.items():
        say(f"no {method}: {why}")
    if result.soup:
        say(f"all runs averaged: {result.soup}")
    if result.restricted_soup:
        say(f"the helpful ones:  {result.restricted_soup}")
