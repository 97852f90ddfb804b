"""Doing a sweep: whatever of it is not done yet."""

from __future__ import annotations

from pathlib import Path

from diwa.data.benchmark import Benchmark
from diwa.progress import QUIET, Progress, Task
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
        return [store.run(run) for run in specs]
    numbers = {run.key: number for number, run in enumerate(specs, 1)}
    with progress.task(f"sweep of {len(missing)} runs", sum(run.steps for run in missing)) as task:

        def work(run: RunSpec, wait: bool) -> Run:
            return _work(run, place, task, wait, f"run {numbers[run.key]} of {len(specs)}")

        return launch(specs, work)


def _work(spec: RunSpec, place: Workplace, task: Task, wait: bool, title: str) -> Run:
    if place.store.run(spec).finished:
        return place.store.run(spec)
    return train_run(spec, place, observers=[Counting(task)], wait=wait, title=title)
