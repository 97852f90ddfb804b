"""The cells of tables: means, errors, what they lack, and which is the best of its column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from diwa.report.record import Chosen, Record, Scored
from diwa.spec import Spec

#: One cell's results, by trial.
Trials = dict[int | None, list[Record]]


class Cell(Spec, frozen=True, kw_only=True):
    """One number of a table."""

    mean: float | None = None
    """In percent; None if there is nothing to average."""
    error: float | None = None
    """The population standard deviation over the root of the number of trials, in percent; None
    where there is one trial."""
    trials: int = 0
    """How many trials it is the mean of; 1 for methods that take all of them together."""
    wanted: int = 0
    """How many trials it should have."""
    runs: int = 0
    """How many training runs are behind it."""
    wanted_runs: int = 0
    """How many there should be."""
    missing: str = ""
    """What an average can't be made for."""
    rank: Literal[0, 1, 2] = 0
    """1 for the best of its column as printed, 2 for the second, 0 for all others."""

    @property
    def number(self) -> str:
        """The mean as printed; empty if there is none."""
        return "" if self.mean is None else f"{self.mean:.1f}"

    @property
    def lacks(self) -> str:
        """How many there are of how many there should be; empty if none is missing."""
        if self.missing or self.trials < self.wanted:
            return self.missing or f"{self.trials} of {self.wanted}"
        return f"{self.runs}/{self.wanted_runs} runs" if self.runs < self.wanted_runs else ""


class Row(Spec, frozen=True, kw_only=True):
    """One method."""

    algorithm: str
    """Its name in the paper."""
    selection: str
    """How the weights that it averages were chosen."""
    init: str
    """What the runs started from."""
    cells: list[Cell]
    """One per column."""
    runs: str
    """How many runs are behind a cell that lacks none: trials x runs."""


class Table(Spec, frozen=True, kw_only=True):
    """One table."""

    title: str
    """What it is about, in a line."""
    data: str
    """The data set; empty for the averages over several."""
    chosen: Chosen
    """How runs and checkpoints were chosen."""
    scored: Scored
    """Which images of the unseen domains were classified."""
    network: str
    """The network and the length of its training, where that is known."""
    columns: list[str]
    """Headings of the cells."""
    rows: list[Row]
    """In the paper's order."""


def cell(held: Trials, wanted: int, most: int) -> Cell:
    """One domain's mean over the trials.

    Args:
        held: the results, by trial.
        wanted: how many trials there should be.
        most: how many runs each of them should have behind it.
    """
    values = [_value(held[trial]) for trial in _ordered(held)]
    return Cell(
        mean=float(100 * np.mean(values)) if values else None,
        error=_error(values),
        trials=len(values),
        wanted=wanted,
        runs=sum(record.runs for records in held.values() for record in records),
        wanted_runs=wanted * most,
    )


def average(cells: Sequence[Cell], held: Sequence[Trials]) -> Cell:
    """The mean over the domains, with the error of the trials' own means."""
    whole = mean_of(cells, "domains")
    if whole.mean is None:
        return whole
    common = set.intersection(*(set(trials) for trials in held))
    means = [float(np.mean([_value(trials[one]) for trials in held])) for one in _ordered(common)]
    return msgspec.structs.replace(whole, error=_error(means))


def mean_of(cells: Sequence[Cell], what: str) -> Cell:
    """The mean of several cells' means, if none of them lacks one; `what` is said of those."""
    means = [one.mean for one in cells if one.mean is not None]
    whole = len(means) == len(cells)
    return Cell(
        mean=sum(means) / len(means) if whole else None,
        trials=min(one.trials for one in cells),
        wanted=max(one.wanted for one in cells),
        runs=sum(one.runs for one in cells),
        wanted_runs=sum(one.wanted_runs for one in cells),
        missing="" if whole else f"{len(means)} of {len(cells)} {what}",
    )


def _value(records: Sequence[Record]) -> float:
    return float(np.mean([record.value for record in records]))


def _ordered(trials: Iterable[int | None]) -> list[int | None]:
    return sorted(trials, key=lambda trial: -1 if trial is None else trial)


def _error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return float(100 * np.std(np.asarray(values) / np.sqrt(len(values))))


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows with the best and the second of every column marked: equal ones as printed are."""
    cells = [list(row.cells) for row in rows]
    for column in range(len(cells[0]) if cells else 0):
        numbers = {float(row[column].number) for row in cells if row[column].number}
        places = dict(zip(sorted(numbers, reverse=True)[:2], (1, 2), strict=False))
        # Without another one to compare it with, nothing is the best.
        if sum(bool(row[column].number) for row in cells) < 2:
            continue
        for row in cells:
            rank = places.get(float(row[column].number), 0) if row[column].number else 0
            row[column] = msgspec.structs.replace(row[column], rank=rank)
    return [msgspec.structs.replace(row, cells=own) for row, own in zip(rows, cells, strict=True)]
