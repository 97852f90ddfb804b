"""What sweeps will cost, before anything is trained: runs, images and, from a trial, time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diwa.data.benchmark import Benchmark
from diwa.data.split import Split, common
from diwa.progress import QUIET, Progress
from diwa.runs.spec import InitSpec, RunSpec, TaskSpec
from diwa.runs.store import Store
from diwa.spec import Spec
from diwa.sweep.plan import numbered
from diwa.sweep.spec import SweepSpec
from diwa.train.trial import Pace, pace
from diwa.train.workplace import Workplace


class Cost(Spec, frozen=True, kw_only=True):
    """What something takes."""

    training: int = 0
    """Images that are trained on, each as often as it is."""
    validation: int = 0
    """Images that are validated on."""
    probing: int = 0
    """Views that linear probing looks at, and images that it validates on."""
    seconds: float | None = None
    """On this machine; None if it was not tried."""

    def __add__(self, other: Cost) -> Cost:
        timed = self.seconds is not None and other.seconds is not None
        return Cost(
            training=self.training + other.training,
            validation=self.validation + other.validation,
            probing=self.probing + other.probing,
            seconds=(self.seconds or 0.0) + (other.seconds or 0.0) if timed else None,
        )


State = Literal["done", "begun", "missing"]


class RunForecast(Spec, frozen=True, kw_only=True):
    """One run that a sweep asks for."""

    sweep: str
    """The name of the sweep."""
    data: str
    """The benchmark."""
    target: str
    """The unseen domain."""
    trial: int
    """Which random split."""
    number: int
    """Which of the runs of that target and trial, from 0; `diwa train` takes it as --run."""
    algorithm: str
    """What is minimised."""
    hparams: dict[str, float]
    """Its hyperparameters."""
    steps: int
    """Updates."""
    run: str
    """Its key, which names it in the store."""
    init: str
    """The key of its initialisation."""
    state: State
    """How far it is."""
    cost: Cost
    """What it takes from start to end, without its initialisation."""


class InitForecast(Spec, frozen=True, kw_only=True):
    """One initialisation that runs share."""

    init: str
    """Its key, which names it in the store."""
    head: str
    """Drawn or probed."""
    done: bool
    """Whether it is there."""
    cost: Cost
    """What it takes."""


class Trial(Spec, frozen=True, kw_only=True):
    """What was timed."""

    data: str
    """The benchmark."""
    algorithm: str
    """What was minimised."""
    backbone: str
    """The network."""
    pace: Pace
    """How fast it went."""


class Forecast(Spec, frozen=True, kw_only=True):
    """What sweeps will cost; a run that several of them ask for counts once."""

    runs: list[RunForecast]
    """Every run of every sweep."""
    inits: list[InitForecast]
    """Every initialisation."""
    trials: list[Trial]
    """What was timed."""
    total: Cost
    """Of all runs and initialisations."""
    left: Cost
    """Of those that the store lacks; a begun run counts whole."""


@dataclass(frozen=True)
class Asked:
    """One sweep, by name, and its images; and where it was asked for, for messages."""

    name: str
    spec: SweepSpec
    benchmark: Benchmark
    where: str = ""


def forecast(
    sweeps: Sequence[Asked],
    store: Store | Path | str,
    *,
    trial: bool = True,
    device: str = "auto",
    workers: int = -1,
    progress: Progress = QUIET,
) -> Forecast:
    """Plans sweeps and says what they will cost. Nothing is written into the store.

    Args:
        sweeps: what is asked for.
        store: where runs may lie already.
        trial: whether to time a few steps; else nothing is opened and no time is given.
        device: where it will run.
        workers: processes that make batches; -1 chooses.
        progress: who hears how it goes.

    Raises:
        DiwaError: if something in the specifications or the images is wrong.
    """
    store = store if isinstance(store, Store) else Store(store)
    paces = _Paces(store, device, workers, progress if trial else None)
    runs: list[RunForecast] = []
    inits: dict[str, InitForecast] = {}
    for asked in sweeps:
        counted = _Counts(asked.benchmark)
        for target, number_of_trial, number, run in numbered(
            asked.spec, asked.benchmark, device=device
        ):
            tempo = paces.of(run, asked.benchmark)
            init = run.init
            if init.key not in inits:
                inits[init.key] = InitForecast(
                    init=init.key,
                    head=init.head,
                    done=store.paths.init(init.key).weights.is_file(),
                    cost=counted.of_init(init, tempo),
                )
            runs.append(
                RunForecast(
                    sweep=asked.name,
                    data=asked.benchmark.name,
                    target=target,
                    trial=number_of_trial,
                    number=number,
                    algorithm=run.algorithm,
                    hparams=run.hparams,
                    steps=run.steps,
                    run=run.key,
                    init=init.key,
                    state=_state(store, run),
                    cost=counted.of_run(run, tempo),
                )
            )
    total, left = costs(runs, list(inits.values()), timed=trial)
    return Forecast(
        runs=runs, inits=list(inits.values()), trials=paces.trials, total=total, left=left
    )


def costs(
    runs: Sequence[RunForecast], inits: Sequence[InitForecast], *, timed: bool
) -> tuple[Cost, Cost]:
    """What some runs and their initialisations take in all, and what is left of it.

    Args:
        runs: of which each counts once.
        inits: of which those count that a run starts from.
        timed: whether time is known.
    """
    distinct = list({run.run: run for run in runs}.values())
    wanted = {run.init for run in runs}
    waiting = {run.init for run in runs if run.state != "done"}
    nothing = Cost(seconds=0.0 if timed else None)
    total = [run.cost for run in distinct] + [i.cost for i in inits if i.init in wanted]
    left = [run.cost for run in distinct if run.state != "done"]
    left += [i.cost for i in inits if i.init in waiting and not i.done]
    return sum(total, nothing), sum(left, nothing)


def _state(store: Store, run: RunSpec) -> State:
    held = store.run(run)
    if held.finished:
        return "done"
    return "begun" if held.paths.state.is_file() else "missing"


class _Counts:
    """How many images things take, from the sizes of domains."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        self._known: dict[tuple[object, ...], list[Split]] = {}

    def of_run(self, run: RunSpec, tempo: Pace | None) -> Cost:
        sources = self._splits(run.task, [run.task.trial])
        batch = int(run.hparams["batch_size"]) * len(sources)
        unseen = run.task.unseen if run.track_unseen else ()
        looked = [*sources, *(self._split(name, run.task, run.task.trial) for name in unseen)]
        steps = {*range(0, run.steps, run.eval_every), run.steps - 1}
        # MA is scored at every validation from its start on, SWAD's average at the end.
        ours = sum(step >= run.ma_start for step in steps) if "ma" in run.averages else 0
        times = len(steps) + ours + ("swad" in run.averages)
        training = run.steps * batch
        validation = times * sum(len(parts.outer) for parts in looked)
        return Cost(
            training=training,
            validation=validation,
            seconds=tempo and training * tempo.step / tempo.images + validation * tempo.validated,
        )

    def of_init(self, init: InitSpec, tempo: Pace | None) -> Cost:
        if init.head != "lp":
            return Cost(seconds=tempo and 0.0)
        trials = range(init.trials) if init.trials > 1 else [init.task.trial]
        sources = self._splits(init.task, trials)
        draws = init.steps * init.batch_size
        views = sum(round(_distinct(len(one.inner) * init.views, draws)) for one in sources)
        validation = sum(len(parts.outer) for parts in sources)
        return Cost(
            probing=views + validation,
            seconds=tempo and views * tempo.probed + validation * tempo.validated,
        )

    def _splits(self, task: TaskSpec, trials: Sequence[int]) -> list[Split]:
        kind = (task.unseen, tuple(trials))
        if kind not in self._known:
            self._known[kind] = [
                common([self._split(name, task, trial) for trial in trials])
                for name in self._benchmark.names
                if name not in task.unseen
            ]
        return self._known[kind]

    def _split(self, name: str, task: TaskSpec, trial: int) -> Split:
        return self._benchmark.split(name, trial=trial, holdout=task.holdout)


def _distinct(kinds: int, draws: int) -> float:
    """How many of so many kinds turn up in so many draws, on average."""
    return kinds * -math.expm1(draws * math.log1p(-1 / kinds)) if kinds > 1 else float(kinds)


class _Paces:
    """Times one run of each kind."""

    def __init__(self, store: Store, device: str, workers: int, progress: Progress | None) -> None:
        self._store, self._device, self._workers = store, device, workers
        self._progress = progress
        self._known: dict[tuple[object, ...], Pace] = {}
        self.trials: list[Trial] = []

    def of(self, run: RunSpec, benchmark: Benchmark) -> Pace | None:
        """How fast such a run goes; nothing if nobody wants to know."""
        if self._progress is None:
            return None
        task, backbone = run.task, run.init.backbone
        kind = (task.digest, run.algorithm, backbone, task.image, run.precision)
        if kind not in self._known:
            self._progress.say(f"timing {run.algorithm} with {backbone} on {task.data} …")
            place = Workplace(
                benchmark=benchmark,
                store=self._store,
                device=self._device,
                workers=self._workers,
                progress=self._progress,
            )
            known = self._known[kind] = pace(run, place)
            self.trials.append(
                Trial(data=task.data, algorithm=run.algorithm, backbone=backbone, pace=known)
            )
        return self._known[kind]
