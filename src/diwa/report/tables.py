"""From records to tables of cells: one pure function, whose result every form of output prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from diwa.errors import SpecError
from diwa.report import names
from diwa.report.cells import Cell, Row, Table, Trials, average, cell, mean_of, ranked
from diwa.report.record import CHOSEN, SCORED, Chosen, Record, Scored

AVERAGE = "Avg"


class _RowKey(NamedTuple):
    """What tells rows apart, in the order of the paper's rows."""

    init: str
    method: str
    algorithm: str
    variant: str = ""

    @classmethod
    def of(cls, record: Record) -> _RowKey:
        return cls(record.init, record.method, record.algorithm)

    @property
    def rank(self) -> tuple[object, ...]:
        objective = names.algorithm_rank(self.algorithm)
        method, steps = names.method_rank(self.method), names.steps_rank(self.variant)
        return names.init_rank(self.init), method, objective, steps


class _About(NamedTuple):
    """What all records of one table have in common."""

    chosen: Chosen
    scored: Scored
    network: str
    data: str
    steps: str

    @classmethod
    def of(cls, record: Record) -> _About:
        return cls(record.chosen, record.scored, record.network, record.data, record.steps)

    @property
    def rank(self) -> tuple[object, ...]:
        ways, images = list(CHOSEN), list(SCORED)
        data, steps = names.data_rank(self.data), names.steps_rank(self.steps)
        return ways.index(self.chosen), images.index(self.scored), self.network, data, steps


def build(
    records: Iterable[Record],
    *,
    domains: Mapping[str, Sequence[Sequence[str]]] | None = None,
    want_trials: int | None = None,
) -> list[Table]:
    """Makes the paper's tables: per data set, and over all.

    Args:
        records: any, in any order; where a trial has several results in one cell, it has their
            mean.
        domains: the domains of each data set, in order, once for each way to name them; those of
            the records by default.
        want_trials: how many trials a cell should have; the most that any has by default.

    Raises:
        SpecError: if want_trials is not positive.

    Example:
        >>> known = dict(data="PACS", domain="S", method="erm", runs=20)
        >>> (table,) = build(Record(trial=t, value=v, **known) for t, v in enumerate((0.7, 0.8)))
        >>> cell = table.rows[0].cells[0]
        >>> f"{cell.mean:.1f} ± {cell.error:.1f}, {cell.runs} runs"
        '75.0 ± 3.5, 40 runs'
    """
    if want_trials is not None and want_trials < 1:
        raise SpecError(f"want_trials={want_trials}", remedy="give 1 or more")
    held: dict[_About, list[Record]] = {}
    for record in records:
        held.setdefault(_About.of(record), []).append(record)
    several = _several(held)
    parts = [
        _Part(about, held[about], (domains or {}).get(about.data, ()), several)
        for about in sorted(held, key=lambda about: about.rank)
    ]
    wanted = want_trials or max((part.most_trials for part in parts), default=1)
    tables: list[Table] = []
    for _, group in groupby(parts, key=lambda part: part.about[:3]):
        alike = list(group)
        for part in alike:
            tables.append(part.table(wanted))
            tables += part.by_objective(wanted)
        if len({part.about.data for part in alike}) > 1:
            tables.append(_over_all(alike, wanted))
    return tables


def twice(records: Iterable[Record]) -> list[str]:
    """Which trials have several results in one cell, a line each."""
    seen = Counter(
        (*_About.of(one), one.domain, one.trial, one.init, one.method, one.algorithm, one.sweep)
        for one in records
    )
    found = (
        f"{data}, {domain}, trial {trial}{f' from {init}' if init else ''}: {count} results of "
        "one method, whose mean counts"
        for (_, _, _, data, _, domain, trial, init, *_), count in seen.items()
        if count > 1
    )
    return list(dict.fromkeys(found))


def _several(held: Mapping[_About, Sequence[Record]]) -> set[tuple[object, ...]]:
    """The rows of which some data set has several sweeps, such as 5 of 20 runs, and all of them.

    They are told apart in the tables of all data sets, or averages would not find them.
    """
    found = set()
    for about, records in held.items():
        sweeps: dict[_RowKey, set[str]] = {}
        for record in records:
            sweeps.setdefault(_RowKey.of(record), set()).add(record.sweep)
        found |= {(*about[:3], key) for key, names in sweeps.items() if len(names) > 1}
    return found


class _Part:
    """The records of one data-set table, sorted into its cells."""

    def __init__(
        self,
        about: _About,
        records: Sequence[Record],
        domains: Sequence[Sequence[str]],
        several: set[tuple[object, ...]],
    ) -> None:
        self.about = about
        self.rows: dict[_RowKey, dict[str, Trials]] = {}
        for record in records:
            key = _RowKey.of(record)
            if (*about[:3], key) in several:
                key = key._replace(variant=record.sweep or "other runs")
            trials = self.rows.setdefault(key, {}).setdefault(record.domain, {})
            trials.setdefault(record.trial, []).append(record)
        there = {record.domain for record in records}
        # Whoever leaves out one and the same domain always wants no columns for the others.
        whole = next((list(named) for named in domains if there <= set(named)), [])
        known = whole if len(there) > 1 else []
        self.domains = [*known, *sorted(there - set(known))]

    @property
    def most_trials(self) -> int:
        """How many trials the cell with the most has."""
        return max(len(trials) for cells in self.rows.values() for trials in cells.values())

    def runs(self, key: _RowKey) -> list[int]:
        """How many runs are behind each result of a row."""
        trials = (one for held in self.rows[key].values() for one in held.values())
        return [record.runs for records in trials for record in records]

    def cells(self, key: _RowKey, wanted: int) -> list[Cell]:
        """A row's cells, the average last where there are several."""
        wanted = 1 if names.is_pooled(key.method) else wanted
        held = [self.rows[key].get(domain, {}) for domain in self.domains]
        most = max(self.runs(key))
        cells = [cell(trials, wanted, most) for trials in held]
        return cells if len(cells) == 1 else [*cells, average(cells, held)]

    def table(self, wanted: int) -> Table:
        """The data set's table."""
        columns = self.domains if len(self.domains) == 1 else [*self.domains, AVERAGE]
        rows = [
            _row(key, self.runs(key), self.cells(key, wanted), wanted)
            for key in sorted(self.rows, key=lambda key: key.rank)
        ]
        return _table(self.about, self.about.data, columns, rows)

    def by_objective(self, wanted: int) -> list[Table]:
        """How each method does with runs of each objective, if there are several."""
        kinds = {key._replace(method="") for key in self.rows}
        if len({kind.algorithm for kind in kinds}) < 2:
            return []
        methods = sorted({key.method for key in self.rows}, key=names.method_rank)
        if len(methods) < 2:
            return []
        rows = []
        for kind in sorted(kinds, key=lambda kind: kind.rank):
            keys = [kind._replace(method=method) for method in methods]
            cells = [self.cells(key, wanted)[-1] if key in self.rows else Cell() for key in keys]
            runs = [count for key in keys if key in self.rows for count in self.runs(key)]
            row = Row(
                algorithm=", ".join(filter(None, (kind.algorithm, kind.variant))),
                selection="",
                init=kind.init,
                cells=cells,
                runs=names.spread(runs),
            )
            rows.append(row)
        which = AVERAGE if len(self.domains) > 1 else self.domains[0]
        title = f"{self.about.data} ({which}) by objective"
        return [_table(self.about, title, [names.short(method) for method in methods], rows)]


def _over_all(parts: Sequence[_Part], wanted: int) -> Table:
    """Every data set's average, and their average."""
    several = Counter(part.about.data for part in parts)
    # Runs of different lengths are told apart only where a data set has such.
    mixed = max(several.values()) > 1
    columns = list(several)
    rows: dict[_RowKey, dict[str, Cell]] = {}
    runs: dict[_RowKey, list[int]] = {}
    for part in parts:
        for key in part.rows:
            told = (key.variant, part.about.steps if mixed else "")
            whole = key._replace(variant=", ".join(filter(None, told)))
            rows.setdefault(whole, {})[part.about.data] = part.cells(key, wanted)[-1]
            runs.setdefault(whole, []).extend(part.runs(key))
    made = []
    for key in sorted(rows, key=lambda key: key.rank):
        cells = [rows[key].get(data, Cell(missing="none")) for data in columns]
        made.append(_row(key, runs[key], [*cells, mean_of(cells, "data sets")], wanted))
    return _table(parts[0].about._replace(data="", steps=""), "", [*columns, AVERAGE], made)


def _row(key: _RowKey, runs: Sequence[int], cells: list[Cell], wanted: int) -> Row:
    algorithm, selection = names.named(key.method, key.algorithm, runs)
    wanted = 1 if names.is_pooled(key.method) else wanted
    most = f"{wanted} x {max(runs)}" if wanted > 1 else str(max(runs))
    if key.variant:
        algorithm = f"{algorithm}, {key.variant}"
    return Row(algorithm=algorithm, selection=selection, init=key.init, cells=cells, runs=most)


def _table(about: _About, what: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    saw = ", by which it was chosen" if (about.chosen, about.scored) == ("oracle", "out") else ""
    network = ", ".join(part for part in (about.network, about.steps) if part)
    said = [
        what or "Averages",
        CHOSEN[about.chosen],
        f"accuracy in % on {SCORED[about.scored]}{saw}",
        network,
    ]
    return Table(
        title=" · ".join(part for part in said if part),
        data=about.data,
        chosen=about.chosen,
        scored=about.scored,
        network=network,
        columns=list(columns),
        rows=ranked(rows),
    )
