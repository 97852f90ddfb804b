"""Tables as CSV: every number in full, and what is behind each of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from diwa.report.cells import Cell, Table
from diwa.report.domainbed import Results, grids
from diwa.report.record import Chosen

_BEFORE = ("data", "chosen by", "scored on", "network")
_PER_ROW = ("algorithm", "weight selection", "init")
_PER_CELL = ("", " error", " trials", " runs", " lacks")


def csv_table(table: Table) -> str:
    """One table, its heading first.

    A column of the table becomes five: its mean and its error in percent, the number of trials
    and of runs behind it, and what it lacks.
    """
    cells = [f"{name}{part}" for name in table.columns for part in _PER_CELL]
    about = (table.data or "all", table.chosen, table.scored, table.network)
    lines = [
        [*about, row.algorithm, row.selection, row.init]
        + [value for cell in row.cells for value in _values(cell)]
        for row in table.rows
    ]
    return _written([[*_BEFORE, *_PER_ROW, *cells], *lines])


def grid_csv(results: Results, ways: Sequence[Chosen]) -> str:
    """DomainBed's tables, with its own text in the cells."""
    return "\n".join(
        _written(
            [["Dataset", "Model selection method", *grid.headings]]
            + [[grid.data or "Averages", chosen, *row] for row in grid.rows]
        )
        for chosen in ways
        for grid in grids(results, chosen)
    )


def _written(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _values(cell: Cell) -> tuple[object, ...]:
    mean, error = ("" if one is None else one for one in (cell.mean, cell.error))
    return mean, error, cell.trials, cell.runs, cell.lacks
