"""Folders of DomainBed and DiWA: their records, and DomainBed's own tables of them.

The tables are those that its `collect_results` prints, character for character, so that whoever
has used it finds the same lines here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diwa.report.record import CHOSEN, Chosen, Record
from diwa.report.selection import grouped, pick
from diwa.runs.domainbed import (
    ALGORITHMS,
    ENVIRONMENTS,
    Evaluation,
    environments,
    read_runs,
    unfinished,
)

_METHODS: dict[Chosen, str] = {
    "training-domain": "training-domain validation set",
    "leave-one-out": "leave-one-domain-out cross-validation",
    "oracle": "test-domain validation set (oracle)",
}
_MISSING = "X"
_WIDTH, _AVERAGES_WIDTH = 20, 25


@dataclass(frozen=True)
class Grid:
    """One of DomainBed's tables, as text in cells.

    Args:
        data: the data set; empty for the averages over all.
        chosen: how runs and checkpoints were chosen.
        headings: of the columns, that of the algorithms first.
        rows: an algorithm and its cells each.
    """

    data: str
    chosen: Chosen
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        """What DomainBed writes above it."""
        about = f"Dataset: {self.data}" if self.data else "Averages"
        return f"{about}, model selection method: {_METHODS[self.chosen]}"


@dataclass(frozen=True)
class Results:
    """What was read of one or several folders.

    Args:
        rows: every evaluation, in the order in which the folders came.
        records: what each way of choosing gives.
        notes: what a reader should know.
    """

    rows: tuple[Evaluation, ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...]

    @property
    def data(self) -> list[str]:
        """The data sets, in DomainBed's order; those it does not know come last."""
        held = {row.data for row in self.rows}
        return [name for name in ENVIRONMENTS if name in held] + sorted(held - ENVIRONMENTS.keys())

    @property
    def algorithms(self) -> list[str]:
        """The algorithms, in DomainBed's order; those it does not know come last."""
        held = dict.fromkeys(row.algorithm for row in self.rows)
        known = [name for name in ALGORITHMS if name in held]
        return known + [name for name in held if name not in known]

    def domains(self, data: str) -> tuple[str, ...]:
        """The names of a data set's domains."""
        counts = (len(row.outer) for row in self.rows if row.data == data)
        return environments(data, max(counts, default=0))


def read_results(paths: Sequence[Path]) -> Results:
    """Reads folders of runs and chooses among them, in each of DomainBed's three ways.

    Raises:
        StoreError: if one has no runs, or a line that is not DomainBed's.
    """
    rows: list[Evaluation] = []
    notes: list[str] = []
    inits: dict[tuple[str, str], set[str | None]] = {}
    for path in paths:
        runs, said = read_runs(path)
        notes += [*said, *unfinished(path, runs)]
        for run in runs:
            rows += run.rows
            for row in run.rows[:1]:
                inits.setdefault((row.data, row.algorithm), set()).add(run.init)
    results = Results(tuple(rows), (), ())
    records = [
        Record(
            data=data,
            domain=results.domains(data)[domain],
            trial=trial,
            method="erm",
            algorithm=algorithm,
            # A file tells that runs start alike, not whether linear probing has made it.
            init="Random" if inits[data, algorithm] == {None} else "Shared",
            chosen=chosen,
            value=picked.test,
            runs=picked.runs,
        )
        for chosen in CHOSEN
        for (trial, data, algorithm, domain), group in grouped(rows).items()
        if (picked := pick(group, chosen)) is not None
    ]
    notes += [
        f"{name}: not one of DomainBed's data sets, so its domains have numbers for names"
        for name in results.data
        if name not in ENVIRONMENTS
    ]
    return Results(tuple(rows), tuple(records), tuple(notes))


def grids(results: Results, chosen: Chosen, *, latex: bool = False) -> list[Grid]:
    """DomainBed's tables for one way of choosing: one per data set, then their averages."""
    held: dict[tuple[str, str], list[Record]] = {}
    for record in results.records:
        if record.chosen == chosen:
            held.setdefault((record.data, record.algorithm), []).append(record)
    tables = []
    for data in results.data:
        domains = results.domains(data)
        rows = []
        for algorithm in results.algorithms:
            records = held.get((data, algorithm), [])
            cells = [[one.value for one in records if one.domain == name] for name in domains]
            rows.append((algorithm, *_line(cells, latex)))
        tables.append(Grid(data, chosen, ("Algorithm", *domains, "Avg"), tuple(rows)))
    rows = []
    for algorithm in results.algorithms:
        cells = [_trial_means(held.get((data, algorithm), [])) for data in results.data]
        rows.append((algorithm, *_line(cells, latex)))
    tables.append(Grid("", chosen, ("Algorithm", *results.data, "Avg"), tuple(rows)))
    return tables


def _trial_means(records: Iterable[Record]) -> list[float]:
    by_trial: dict[int, list[float]] = {}
    for record in records:
        assert record.trial is not None
        by_trial.setdefault(record.trial, []).append(record.value)
    return [float(np.mean(by_trial[trial])) for trial in sorted(by_trial)]


def _line(cells: Sequence[Sequence[float]], latex: bool) -> list[str]:
    """Mean and error of each cell, then the mean of the means if none is missing."""
    means, texts = [], []
    between = r"$\pm$" if latex else "+/-"
    for values in cells:
        if not values:
            texts.append(_MISSING)
            continue
        # In the order of DomainBed's own operations, on which the last digit may depend.
        mean = 100 * np.mean(values)
        error = 100 * np.std(np.asarray(values) / np.sqrt(len(values)))
        means.append(mean)
        texts.append(f"{mean:.1f} {between} {error:.1f}")
    whole = len(means) == len(cells)
    return [*texts, f"{sum(means) / len(means):.1f}" if whole else _MISSING]


def as_text(results: Results, ways: Sequence[Chosen] = tuple(CHOSEN)) -> str:
    """What `collect_results` prints."""
    lines = [f"Total records: {len(results.rows)}"]
    for chosen in ways:
        for grid in grids(results, chosen):
            width = _WIDTH if grid.data else _AVERAGES_WIDTH
            lines += ["", f"-------- {grid.title}"]
            lines += [_row(cells, width, "  ", " ") for cells in (grid.headings, *grid.rows)]
    return "\n".join(lines) + "\n"


def as_latex(results: Results, ways: Sequence[Chosen] = tuple(CHOSEN)) -> str:
    """What `collect_results --latex` prints: a whole document."""
    return "\n".join(_latex(results, ways)) + "\n"


def _latex(results: Results, ways: Sequence[Chosen]) -> Iterator[str]:
    yield from (r"\documentclass{article}", r"\usepackage{booktabs}", r"\usepackage{adjustbox}")
    yield from (r"\begin{document}", r"\section{Full DomainBed results}")
    yield f"% Total records: {len(results.rows)}"
    for chosen in ways:
        yield from ("", rf"\subsection{{Model selection: {_METHODS[chosen]}}}")
        for grid in grids(results, chosen, latex=True):
            width = _WIDTH if grid.data else _AVERAGES_WIDTH
            yield from ("", rf"\subsubsection{{{grid.data or 'Averages'}}}")
            yield from ("", r"\begin{center}", r"\adjustbox{max width=\textwidth}{%")
            yield rf"\begin{{tabular}}{{l{'c' * (len(grid.headings) - 1)}}}"
            yield r"\toprule"
            bold = [rf"\textbf{{{text}}}".replace("%", r"\%") for text in grid.headings]
            yield _row(bold, width, " & ", r" \\")
            yield r"\midrule"
            yield from (_row(cells, width, " & ", r" \\") for cells in grid.rows)
            yield from (r"\bottomrule", r"\end{tabular}}", r"\end{center}")
    yield r"\end{document}"


def _row(cells: Sequence[str], width: int, between: str, end: str) -> str:
    # DomainBed cuts what is too long for its column, and leaves a blank at the end of each line.
    return between.join(cell.ljust(width)[:width] for cell in cells) + end
