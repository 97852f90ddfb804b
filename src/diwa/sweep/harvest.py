"""From finished runs to soups, and to what each method scores on the unseen domain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec

from diwa.atomic import write_bytes
from diwa.data.benchmark import Benchmark
from diwa.errors import DiwaError
from diwa.evaluate.predictions import Sum
from diwa.progress import QUIET, Progress
from diwa.runs.paths import SoupPaths
from diwa.runs.store import Run, Store
from diwa.spec import Spec
from diwa.sweep.choose import Choices, Chooser
from diwa.sweep.judge import Judge, Scores
from diwa.sweep.pools import Pool, pools, to_pool

#: How checkpoints and runs are chosen: by the sources' validation images, or by the target's.
Selection = Literal["training-domain", "oracle"]


class MemberScore(Spec, frozen=True, kw_only=True):
    """One run in a harvest."""

    run: str
    """Its key."""
    algorithm: str = "ERM"
    """What it minimised."""
    hparams: dict[str, float]
    """Its hyperparameters."""
    trial: int = 0
    """Which random split it was trained on."""
    validation: float
    """The mean of the source domains' validation accuracies."""
    target: float | None
    """Its accuracy on all of the unseen domain, where members were scored one by one."""
    restricted: bool
    """Whether the restricted soup kept it."""


class Harvest(Spec, frozen=True, kw_only=True):
    """What came of runs that belong together."""

    data: str
    """The benchmark."""
    target: str
    """The unseen domain."""
    trial: int | None
    """Which random split; None where runs of several are taken together."""
    init: str
    """The key of the initialisation; empty where there are several."""
    sweep: str = ""
    """What the store calls the sweep that the runs are of, if it has a name."""
    selection: Selection = "training-domain"
    """How checkpoints and runs were chosen."""
    images: int
    """How many images the unseen domain has."""
    methods: dict[str, float]
    """Accuracies on all (100 %) of the unseen domain; empty if it was not scored."""
    methods_80: dict[str, float]
    """Accuracies on its 80 % training split, which the paper's tables use."""
    validation: dict[str, float]
    """Pooled accuracies on the images that runs and soups were chosen by."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """Methods that can't be had of these runs, and why."""
    members: list[MemberScore]
    """Every run, best validation first."""
    soup: str
    """The file of the uniform average; empty if there is none."""
    restricted_soup: str
    """The file of the restricted average; empty if there is none."""


def harvest(
    store: Store | Path | str,
    benchmark: Benchmark,
    *,
    targets: Sequence[str] = (),
    runs: Sequence[Run] | None = None,
    sweep: str = "",
    selection: Selection = "training-domain",
    score_target: bool = True,
    out: Path | None = None,
    device: str = "auto",
    progress: Progress = QUIET,
) -> list[Harvest]:
    """Averages the store's finished runs and scores every method on the unseen domain.

    Runs of one initialisation and trial are averaged, all and greedily; those of one
    initialisation over several trials as well (DiWA-dagger). Of these, of runs from
    initialisations of their own, and of the averages of several initialisations, the predictions
    are averaged (ENS, DENS, ensembles of DiWAs). Where runs kept averages of their iterates, MA,
    EoA and SWAD are scored too.

    The unseen domain is read once all choices are made, and only if `score_target` is true. What
    an earlier call has left for the very same runs is taken from its results.json.

    Args:
        store: the runs.
        benchmark: the images they were trained on.
        targets: only these unseen domains; all by default.
        runs: only these runs; all finished ones by default.
        sweep: what to call these runs, as `runs_of` does; nothing if empty.
        selection: by "training-domain" validation, or by that of the "oracle", who looks at the
            unseen domain's 20 %; runs must have tracked it.
        score_target: whether to score the unseen domain at all.
        out: where soups and results go; inside the store by default.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        progress: who hears how it goes.

    Returns:
        One result per pool of runs; each also lies beside its soup as results.json.

    Raises:
        StoreError: if there are no finished runs, or they did not keep what is asked for.
        DiwaError: if the runs and the images don't belong together.
    """
    store = store if isinstance(store, Store) else Store(store)
    oracle = selection == "oracle"
    if oracle and not score_target:
        raise DiwaError("the oracle chooses by the unseen domain", remedy="leave --no-score out")
    every = store.runs() if runs is None else runs
    found = pools(to_pool(every, targets, where=store.root), sweep)
    places: dict[Pool, SoupPaths] = {}
    results: dict[Pool, Harvest] = {}
    chosen: dict[Pool, Choices] = {}
    for pool in found:
        name = f"{pool.name}-oracle" if oracle else pool.name
        inside = store.paths.soup(name)
        places[pool] = inside if out is None else SoupPaths(out / name if len(found) > 1 else out)
        earlier = _earlier(pool, places[pool], selection, score_target)
        if earlier is not None:
            progress.say(f"{name}: its {len(pool.runs)} runs were averaged and scored before")
            results[pool] = earlier
            continue
        # It would speak of soups that are about to be others; nothing may stop us in between.
        places[pool].results.unlink(missing_ok=True)
        steps = sorted({run.spec.steps for run in pool.runs})
        if len(steps) > 1:
            progress.say(f"{name}: averages runs of {' and '.join(map(str, steps))} steps")
        judge = partial(Judge, pool.runs[0], benchmark, device, progress)
        chosen[pool] = Chooser(pool, places[pool], judge, progress, oracle=oracle).choose()
    for _, group in groupby(sorted(chosen, key=_unseen), key=_unseen):
        # An ensemble of all trials is the sum of those of each.
        sums: dict[frozenset[str], Sum] = {}
        for pool in group:
            made, scores = chosen[pool], Scores()
            if score_target:
                trials = sorted({run.spec.task.trial for run in pool.runs})
                judge = Judge(pool.runs[0], benchmark, device, progress)
                scores = judge.scores(made.models, made.methods, trials, sums)
            results[pool] = _told(made, scores, benchmark, selection)
            write_bytes(places[pool].results, results[pool].to_json())
    return [results[pool] for pool in found]


def _unseen(pool: Pool) -> tuple[str, ...]:
    return pool.runs[0].spec.task.unseen


def _earlier(
    pool: Pool, paths: SoupPaths, selection: Selection, score_target: bool
) -> Harvest | None:
    """What an earlier call left for the very same runs, if it lacks nothing."""
    try:
        held = Harvest.from_file(paths.results)
    except DiwaError:
        return None
    # A run that was removed and done again may have come out otherwise.
    runs = {(run.name, run.result.score) for run in pool.runs}
    asked = (pool.sweep, selection, pool.trial, runs)
    members = {(member.run, member.validation) for member in held.members}
    told = (held.sweep, held.selection, held.trial, members)
    # Where the store is now; it may have been moved or copied since.
    held = msgspec.structs.replace(
        held,
        soup=str(paths.uniform) if held.soup else "",
        restricted_soup=str(paths.restricted) if held.restricted_soup else "",
    )
    files = [Path(file) for file in (held.soup, held.restricted_soup) if file]
    whole = all(file.is_file() for file in files) and (bool(held.methods) or not score_target)
    return held if asked == told and whole else None


def _told(made: Choices, scores: Scores, benchmark: Benchmark, selection: Selection) -> Harvest:
    pool, task = made.pool, made.pool.runs[0].spec.task
    starts = {run.spec.init.key for run in pool.runs}
    return Harvest(
        data=benchmark.name,
        target="+".join(task.unseen),
        trial=pool.trial,
        init=starts.pop() if len(starts) == 1 else "",
        sweep=pool.sweep,
        selection=selection,
        images=scores.images,
        methods=dict(scores.full),
        methods_80=dict(scores.inner),
        validation=made.validation,
        missing=made.missing,
        members=[
            MemberScore(
                run=run.name,
                algorithm=run.spec.algorithm,
                hparams=run.spec.hparams,
                trial=run.spec.task.trial,
                validation=run.result.score,
                # Each trial's own result tells it.
                target=None if pool.trial is None else scores.models.get(run.name),
                restricted=run.name in made.kept,
            )
            for run in made.ranked
        ],
        soup=str(made.soup or ""),
        restricted_soup=str(made.restricted or ""),
    )
