"""Doing a sweep: whatever of it is not done yet."""

from __future__ import annotations

from pathlib import Path

import msgspec

from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError
from diwa.progress import QUIET, Progress
from diwa.runs.spec import RunSpec
from diwa.runs.store import Run, Store
from diwa.sweep.launch import Launcher
from diwa.sweep.launch.inline import inline
from diwa.sweep.plan import plan, weights_file
from diwa.sweep.spec import SweepSpec
from diwa.train.loop import train_run
from diwa.train.observers import Counting
from diwa.train.workplace import Workplace


def run_sweep(
    spec: SweepSpec,
    benchmark: Benchmark,
    store: Store | Path | str,
    *,
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
    device: str = "auto",
    workers: int = -1,
    progress: Progress = QUIET,
) -> Run:
    """Does a single run of a sweep, as one job among many might.

    Args:
        spec: the sweep; how many runs and trials it has does not matter.
        benchmark: the images.
        store: where the run goes.
        run: its number, from 0.
        trial: the number of the random split, from 0.
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
    wide = msgspec.structs.replace(spec, runs=run + 1, trials=trial + 1)
    chosen = plan(wide, benchmark, device=device)[-1]
    place = Workplace(
        benchmark=benchmark,
        store=store if isinstance(store, Store) else Store(store),
        device=device,
        weights=weights_file(spec),
        workers=workers,
        progress=progress,
    )
    return train_run(chosen, place, title=f"run {run}")
