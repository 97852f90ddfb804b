"""Stores: the records of their soups, and of single runs by their histories.

Read as plain JSON, and no more of it than tables need: building the objects of `runs` would load
torch, which takes longer than all of the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from diwa.errors import StoreError
from diwa.report import names
from diwa.report.record import CHOSEN, Chosen, Record, Scored
from diwa.report.selection import grouped, pick
from diwa.runs.domainbed import Evaluation
from diwa.runs.paths import RunPaths, StorePaths

AnyTold = TypeVar("AnyTold")

_FORMAT = 1
_HEADS = {"random": "Random", "lp": "LP"}


class _Image(msgspec.Struct, frozen=True):
    size: tuple[int, int] = (224, 224)


class _Task(msgspec.Struct, frozen=True):
    data: str
    unseen: tuple[str, ...]
    trial: int = 0
    image: _Image = _Image()
    protocol: str = "fixed"


class _Init(msgspec.Struct, frozen=True):
    task: _Task
    backbone: str = ""
    head: str = "random"
    seed: int = 0


class _Spec(msgspec.Struct, frozen=True):
    init: _Init
    hparams: dict[str, float]
    algorithm: str = "ERM"
    hparams_seed: int | None = None
    steps: int = 0
    track_unseen: bool = False
    trial: int | None = None


class _Row(msgspec.Struct, frozen=True):
    step: int
    accuracy: dict[str, float]
    unseen: dict[str, float] = {}


class _About(msgspec.Struct, frozen=True):
    format: int = 1
    sweeps: dict[str, list[str]] = {}


class _Member(msgspec.Struct, frozen=True):
    run: str


class _Soup(msgspec.Struct, frozen=True):
    data: str
    target: str
    trial: int | None
    members: list[_Member]
    methods: dict[str, float]
    methods_80: dict[str, float]
    sweep: str = ""
    selection: Chosen = "training-domain"


@dataclass(frozen=True)
class _Run:
    """One run, as far as its files tell."""

    name: str
    spec: _Spec
    rows: tuple[_Row, ...]
    finished: bool

    @property
    def pool(self) -> _Pool:
        task = self.spec.init.task
        trial = task.trial if self.spec.trial is None else self.spec.trial
        protocol = "" if task.protocol == "fixed" else f", protocol {task.protocol}"
        height, width = task.image.size
        side = f"{height} px" if height == width else f"{height} x {width} px"
        return _Pool(
            data=task.data,
            unseen=task.unseen,
            trial=trial,
            init=_HEADS.get(self.spec.init.head, self.spec.init.head),
            network=f"{self.spec.init.backbone}, {side}{protocol}",
        )


@dataclass(frozen=True)
class _Pool:
    """Runs that a soup may be made of: same task, same kind of start."""

    data: str
    unseen: tuple[str, ...]
    trial: int
    init: str
    network: str

    def __str__(self) -> str:
        return f"{self.data}, {'+'.join(self.unseen)}, trial {self.trial}"


@dataclass
class StoreResults:
    """What was read of stores.

    Args:
        records: what their soups and their runs score.
        domains: the domains of each data set, in order.
        sweeps: the names that sweeps have.
        notes: what a reader should know, and what is left to do.
    """

    records: list[Record] = field(default_factory=list)
    domains: dict[str, list[str]] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_store(path: Path) -> bool:
    """Whether a folder is a store, or has soups where a store has them."""
    store = StorePaths(path)
    return store.about.is_file() or bool(_all(store, store.soup("*").results))


def read_stores(paths: Sequence[Path]) -> StoreResults:
    """Reads what the soups of stores score, and how their runs validated.

    Raises:
        StoreError: if a file in one is damaged, or of a later version.
    """
    results = StoreResults()
    for path in paths:
        _read_store(StorePaths(path), results)
    return results


def _read_store(store: StorePaths, results: StoreResults) -> None:
    about = _read(store.about, _About) if store.about.is_file() else _About()
    if about.format != _FORMAT:
        raise StoreError(f"{store.about}: format {about.format} is not known", remedy="update diwa")
    runs = {path.parent.name: _run(path.parent) for path in _all(store, store.run("*").spec)}
    soups = [_read(path, _Soup) for path in _all(store, store.soup("*").results)]
    for run in runs.values():
        known = results.domains.setdefault(run.pool.data, [])
        seen = {name for row in run.rows[:1] for name in row.accuracy} | set(run.pool.unseen)
        known[:] = sorted({*known, *seen})
    for soup in soups:
        members = [runs[member.run] for member in soup.members if member.run in runs]
        results.records += _of_soup(soup, members)
    for sweep, held in _by_sweep(list(runs.values()), about.sweeps).items():
        results.records += _of_runs(held, results.domains, sweep)
    results.sweeps += [*about.sweeps, *(soup.sweep for soup in soups if soup.sweep)]
    results.notes += _notes(store.root, list(runs.values()), soups)


def _all(store: StorePaths, pattern: Path) -> list[Path]:
    return sorted(store.root.glob(str(pattern.relative_to(store.root))))


def _run(folder: Path) -> _Run:
    paths = RunPaths(folder)
    finished = paths.result.is_file()
    rows = _read(paths.history, list[_Row]) if finished and paths.history.is_file() else []
    return _Run(folder.name, _read(paths.spec, _Spec), tuple(rows), finished)


def _read(path: Path, kind: type[AnyTold]) -> AnyTold:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise StoreError(f"{path}: can't be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: {error}", remedy="restore the file, or make it again") from error


def _of_soup(soup: _Soup, members: Sequence[_Run]) -> list[Record]:
    """What every method scores; a soup whose runs are elsewhere does not tell what they were."""
    pool = members[0].pool if members else None
    if pool is not None and len(pool.unseen) > 1:
        return []
    scores: dict[Scored, dict[str, float]] = {"in": soup.methods_80, "full": soup.methods}
    return [
        Record(
            data=soup.data,
            domain=soup.target,
            trial=None if names.is_pooled(method) else soup.trial,
            method=method,
            algorithm=names.objectives(run.spec.algorithm for run in members) or "ERM",
            init=_start(members),
            sweep=soup.sweep,
            chosen=soup.selection,
            scored=scored,
            value=value,
            runs=len(soup.members),
            network=pool.network if pool else "",
            steps=_steps(members),
        )
        for scored, values in scores.items()
        for method, value in values.items()
    ]


def _start(members: Sequence[_Run]) -> str:
    """What the runs of a soup started from, and whether each from a head of its own."""
    if not members:
        return ""
    seeds = {run.spec.init.seed for run in members}
    apart = len(members) > 1 and len(seeds) == len(members)
    return names.OWN.format(members[0].pool.init) if apart else members[0].pool.init


def _by_sweep(
    runs: Sequence[_Run], sweeps: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[_Run]]:
    """The runs of every sweep with a name, then those of none, as soups are made of them."""
    taken = {key for keys in sweeps.values() for key in keys}
    named = {sweep: [run for run in runs if run.name in keys] for sweep, keys in sweeps.items()}
    return {**named, "": [run for run in runs if run.name not in taken]}


def _of_runs(
    runs: Iterable[_Run], domains: Mapping[str, Sequence[str]], sweep: str
) -> list[Record]:
    """Single runs, chosen by their histories, where these tell of the unseen domain too."""
    alike: dict[tuple[str, str, str, str], list[_Run]] = {}
    for run in runs:
        if run.rows and all(row.unseen for row in run.rows):
            key = (run.pool.data, run.pool.network, run.pool.init, _steps([run]))
            alike.setdefault(key, []).append(run)
    return [
        Record(
            data=data,
            domain=domains[data][domain],
            trial=trial,
            method="erm",
            algorithm=algorithm,
            init=init,
            sweep=sweep,
            chosen=chosen,
            scored="out",
            value=picked.test,
            runs=picked.runs,
            network=network,
            steps=steps,
        )
        for (data, network, init, steps), held in alike.items()
        for (trial, _, algorithm, domain), group in grouped(_rows(held, domains[data])).items()
        for chosen in CHOSEN
        if (picked := pick(group, chosen)) is not None
    ]


def _rows(runs: Sequence[_Run], domains: Sequence[str]) -> list[Evaluation]:
    """Histories as DomainBed would have written them."""
    drawn: dict[str, tuple[int, list[tuple[str, float]], int]] = {}
    again: Counter[tuple[object, ...]] = Counter()
    for run in runs:
        draw, values = run.spec.hparams_seed or 0, sorted(run.spec.hparams.items())
        # Runs may be alike in all but their start, say: each is one to choose.
        alike = (run.pool.unseen, run.pool.trial, run.spec.algorithm, draw, tuple(values))
        drawn[run.name] = (draw, values, again[alike])
        again[alike] += 1
    draws = sorted(drawn.values())
    found = []
    for run in runs:
        for row in run.rows:
            known = {**row.accuracy, **row.unseen}
            if any(name not in known for name in domains):
                continue
            accuracies = [known[name] for name in domains]
            found.append(
                Evaluation(
                    data=run.pool.data,
                    algorithm=run.spec.algorithm,
                    unseen=tuple(domains.index(name) for name in run.pool.unseen),
                    trial=run.pool.trial,
                    draw=draws.index(drawn[run.name]),
                    step=row.step,
                    # A run of ours looks at the 20 % of each domain only.
                    inner=accuracies,
                    outer=accuracies,
                )
            )
    return found


def _steps(runs: Sequence[_Run]) -> str:
    return f"{names.spread([run.spec.steps for run in runs])} steps" if runs else ""


def _notes(root: Path, runs: Sequence[_Run], soups: Sequence[_Soup]) -> Iterator[str]:
    """What is left to do in a store."""
    taken = {member.run for soup in soups for member in soup.members}
    fewest = min((len(run.pool.unseen) for run in runs if run.finished), default=1)
    pools: dict[_Pool, list[_Run]] = {}
    for run in runs:
        pools.setdefault(run.pool, []).append(run)
    started, bare, grown = [], [], []
    for pool, held in pools.items():
        done = [run.name for run in held if run.finished]
        left = [name for name in done if name not in taken]
        if len(done) < len(held):
            started.append(f"{pool} ({len(held) - len(done)} of {len(held)})")
        if len(pool.unseen) > fewest:
            # Such runs are there to choose others by, and go into no soup.
            continue
        if done and len(left) == len(done):
            bare.append(f"{pool} ({len(done)} {'run' if len(done) == 1 else 'runs'})")
        elif left:
            grown.append(f"{pool} ({len(left)} of {len(done)})")
    unread = [f"{soup.data}, {soup.target}" for soup in soups if not soup.methods]
    again = f"; run diwa soup {root}"
    if started:
        yield f"{root}: runs that have not finished: {_some(started)}; run the same sweep again"
    if bare:
        yield f"{root}: finished runs without a soup: {_some(bare)}{again}"
    if grown:
        yield f"{root}: finished runs that are in no soup: {_some(grown)}{again}"
    if unread:
        yield f"{root}: soups that were not scored: {_some(unread)}{again}"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more
