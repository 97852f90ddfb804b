"""Doing a sweep: whatever of it is not done yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError, StoreError, guess
from diwa.progress import QUIET, Progress
from diwa.runs.spec import RunSpec
from diwa.runs.store import Run, Store
from diwa.sweep.launch import Launcher
from diwa.sweep.launch.inline import inline
from diwa.sweep.plan import numbered, plan, weights_file
from diwa.sweep.spec import SweepSpec
from diwa.train.loop import train_run
from diwa.train.observers import Counting
from diwa.train.workplace import Workplace

#: Where the store keeps which runs belong to which named sweep.
_NAMED = "sweeps"


def run_sweep(
    spec: SweepSpec,
    benchmark: Benchmark,
    store: Store | Path | str,
    *,
    name: str = "",
    device: str = "auto",
    workers: int = -1,
    progress: Progress = QUIET,
    launch: Launcher = inline,
) -> list[Run]:
    """Does every run of a sweep that the store does not hold yet.

    Args:
        spec: the sweep.
        benchmark: the images.
        store: where runs go.
        name: what the store shall call these runs, as `runs_of` does; nothing if empty.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        workers: processes that make batches; -1 chooses.
        progress: who hears how it goes.
        launch: where the runs are done.

    Returns:
        All runs of the sweep, finished.

    Raises:
        DiwaError: if something in the specification, the images or the store is wrong.
        KeyboardInterrupt: after Ctrl-C; the same call goes on from there.
    """
    store = store if isinstance(store, Store) else Store(store)
    specs = plan(spec, benchmark, device=device)
    _label(store, name, specs)
    place = Workplace(
        benchmark=benchmark,
        store=store,
        device=device,
        weights=weights_file(spec),
        workers=workers,
        progress=progress,
    )
    missing = [run for run in specs if not store.run(run).finished]
    if len(missing) < len(specs):
        progress.say(f"{len(specs) - len(missing)} of {len(specs)} runs are done already")
    if not missing:
        return [store.run(run).tidy() for run in specs]
    numbers = {run.key: number for number, run in enumerate(specs, 1)}
    with progress.task(f"sweep of {len(missing)} runs", sum(run.steps for run in missing)) as task:

        def work(run: RunSpec, wait: bool) -> Run:
            title = f"run {numbers[run.key]} of {len(specs)}"
            return train_run(run, place, observers=[Counting(task)], wait=wait, title=title)

        return launch(specs, work)


def run_one(
    spec: SweepSpec,
    benchmark: Benchmark,
    store: Store | Path | str,
    *,
    run: int = 0,
    trial: int = 0,
    name: str = "",
    device: str = "auto",
    workers: int = -1,
    progress: Progress = QUIET,
) -> Run:
    """Does a single run of a sweep, as one job among many might.

    Args:
        spec: the sweep; how many runs it has does not matter, nor how many trials, unless they
            share one start that is probed for.
        benchmark: the images.
        store: where the run goes.
        run: its number, from 0.
        trial: the number of the random split, from 0.
        name: what the store shall call it and others, as `runs_of` does; nothing if empty.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        workers: processes that make batches; -1 chooses.
        progress: who hears how it goes.

    Raises:
        DiwaError: if something in the specification, the images or the store is wrong.
    """
    if run < 0 or trial < 0 or len(spec.target) != 1 or spec.target == ("all",):
        raise SpecError(
            f"run {run} of trial {trial} for {', '.join(spec.target)} is not one run",
            remedy="give one target, and numbers from 0",
        )
    if trial >= spec.trials and spec.probes_for_all_trials:
        # The start depends on how many trials there are: jobs that guess would start apart.
        raise SpecError(
            f"trial {trial} of {spec.trials}: trials that share their start are counted",
            remedy="give --trials, the same number for every run",
        )
    wide = msgspec.structs.replace(
        spec, runs=max(run + 1, spec.runs), trials=max(trial + 1, spec.trials)
    )
    planned = numbered(wide, benchmark, device=device)
    chosen = next(one.run for one in planned if (one.trial, one.number) == (trial, run))
    store = store if isinstance(store, Store) else Store(store)
    _label(store, name, [chosen])
    place = Workplace(
        benchmark=benchmark,
        store=store,
        device=device,
        weights=weights_file(spec),
        workers=workers,
        progress=progress,
    )
    return train_run(chosen, place, title=f"run {run}")


def runs_of(store: Store, name: str) -> list[Run]:
    """The runs that the store calls by a sweep's name, one of which may be in several.

    Raises:
        StoreError: if it calls none so.
    """
    named: dict[str, list[str]] = store.noted(_NAMED) or {}
    if name not in named:
        known = f"it has {', '.join(named)}" if named else "its sweeps have no names"
        raise StoreError(
            f"{store.root}: has no sweep called {name!r}", remedy=f"{guess(name, named)}{known}"
        )
    keys = set(named[name])
    return [run for run in store.runs() if run.name in keys]


def by_sweep(store: Store, names: Sequence[str] = ()) -> dict[str, list[Run]]:
    """The runs of every sweep with a name, then those of none, under the empty name.

    Args:
        store: the runs.
        names: only the sweeps of these names, and not the runs of none.

    Raises:
        StoreError: if the store calls none so.
    """
    every = store.runs()
    if names:
        return {name: runs_of(store, name) for name in names}
    named: dict[str, list[str]] = store.noted(_NAMED) or {}
    found = {name: [run for run in every if run.name in set(keys)] for name, keys in named.items()}
    taken = {key for keys in named.values() for key in keys}
    return {**found, "": [run for run in every if run.name not in taken]}


def _label(store: Store, name: str, specs: list[RunSpec]) -> None:
    if name:
        store.note(**{_NAMED: {name: list(dict.fromkeys(run.key for run in specs))}})
