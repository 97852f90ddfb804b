"""Which runs belong together, and in which way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from diwa.errors import StoreError
from diwa.runs.store import Run

#: One start: runs that can be averaged and chosen among. Apart: runs of one trial or of all, each
#: from a start of its own, whose predictions are averaged. Several: the same of several averages.
#: Trials: all runs from one start, whatever images they were trained on.
Kind = Literal["start", "apart", "several", "trials"]


@dataclass(frozen=True)
class Pool:
    """Runs that belong together.

    Args:
        kind: in which way.
        runs: all of them, best validation first.
        sweep: the name of their sweep, if it has one.
    """

    kind: Kind
    runs: tuple[Run, ...]
    sweep: str = ""

    @property
    def trial(self) -> int | None:
        """Which random split, if it is one."""
        trials = {run.spec.task.trial for run in self.runs}
        return trials.pop() if len(trials) == 1 else None

    @property
    def name(self) -> str:
        """What its folder is called; a later start or sweep must not rename an earlier one's."""
        first = self.runs[0].spec
        one_start = self.kind in ("start", "trials")
        parts = [
            re.sub(r"[^\w.-]+", "_", self.sweep),
            "+".join(first.task.unseen),
            "all" if self.trial is None else f"t{self.trial}",
            "" if one_start else self.kind,
            (first.init.key if one_start else self._family)[:8],
        ]
        return "-".join(part for part in parts if part)

    @property
    def _family(self) -> str:
        return _any_trial(self.runs[0]) if self.trial is None else family(self.runs[0])


def family(run: Run) -> str:
    """Names what all starts have in common that differ only in how the head was drawn."""
    return msgspec.structs.replace(run.spec.init, seed=0).key


def _any_trial(run: Run) -> str:
    """The same for the starts of all trials."""
    init = run.spec.init
    task = msgspec.structs.replace(init.task, trial=0)
    return msgspec.structs.replace(init, task=task, seed=0).key


def to_pool(runs: Sequence[Run], targets: Sequence[str] = (), *, where: Path) -> list[Run]:
    """The finished runs, without those that leave one more domain out, to choose others by.

    Args:
        runs: any.
        targets: only runs that leave these domains unseen; all by default.
        where: the store, for the error.

    Raises:
        StoreError: if there are none.
    """
    finished = [
        run
        for run in runs
        if run.finished and (not targets or set(run.spec.task.unseen) <= set(targets))
    ]
    if not finished:
        wanted = f" for {', '.join(targets)}" if targets else ""
        raise StoreError(
            f"{where}: none of its {len(runs)} runs is finished{wanted}",
            remedy="run diwa sweep on it first",
        )
    fewest = min(len(run.spec.task.unseen) for run in finished)
    return [run for run in finished if len(run.spec.task.unseen) == fewest]


def pools(runs: Iterable[Run], sweep: str = "") -> list[Pool]:
    """Sorts finished runs into pools, in the order of their names; a run may be in several.

    Args:
        runs: of one sweep, or of several without a name.
        sweep: the sweep's name, if it has one.
    """
    starts: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        starts.setdefault((run.spec.init.key, run.spec.task.trial), []).append(run)
    families: dict[tuple[str, int], list[list[Run]]] = {}
    inits: dict[str, list[list[Run]]] = {}
    for (init, trial), together in starts.items():
        families.setdefault((family(together[0]), trial), []).append(together)
        inits.setdefault(init, []).append(together)
    found: list[Pool] = []
    apart: dict[str, list[list[Run]]] = {}
    for held in families.values():
        averaged = [together for together in held if len(together) > 1]
        alone = [together for together in held if len(together) == 1]
        if len(alone) > 1:
            found.append(Pool("apart", _ranked(alone), sweep))
            apart.setdefault(_any_trial(alone[0][0]), []).append(list(found[-1].runs))
        shared = averaged if len(alone) > 1 else held
        found += [Pool("start", _ranked([together]), sweep) for together in shared]
        if len(averaged) > 1:
            found.append(Pool("several", _ranked(averaged), sweep))
    found += [Pool("trials", _ranked(held), sweep) for held in inits.values() if len(held) > 1]
    found += [Pool("apart", _ranked(held), sweep) for held in apart.values() if len(held) > 1]
    return sorted(found, key=lambda pool: (pool.kind == "several" or pool.trial is None, pool.name))


def _ranked(held: Sequence[Sequence[Run]]) -> tuple[Run, ...]:
    every = [run for together in held for run in together]
    return tuple(sorted(every, key=lambda run: (-run.result.score, run.name)))
