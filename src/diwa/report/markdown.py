"""Tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diwa.report.cells import Cell, Table
from diwa.report.domainbed import Results, grids
from diwa.report.forms import layout
from diwa.report.record import Chosen

#: What Markdown would not print as it stands.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def markdown_table(table: Table) -> str:
    """A heading and a table: the best in bold, the second underlined."""
    shape = layout(table)
    rows = [
        [*map(_plain, shape.texts(row)), *map(_cell, row.cells), _plain(row.runs)]
        for row in table.rows
    ]
    headings = [*shape.headings, *table.columns, "Runs per cell"]
    return _table(table.title, headings, rows, len(shape.headings))


def grid_markdown(results: Results, ways: Sequence[Chosen]) -> str:
    """DomainBed's tables, with its own text in the cells."""
    return "\n".join(
        _table(grid.title, grid.headings, [list(map(_plain, row)) for row in grid.rows], 1)
        for chosen in ways
        for grid in grids(results, chosen)
    )


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """The first `left` columns to the left, the others to the right."""
    rule = ["---" if place < left else "--:" for place in range(len(headings))]
    lines = [list(map(_plain, headings)), rule, *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"### {_plain(title)}\n\n{table}"


def _cell(cell: Cell) -> str:
    # Markdown has no underlining; <ins> is the element that its usual readers let through.
    number = {0: cell.number, 1: f"**{cell.number}**", 2: f"<ins>{cell.number}</ins>"}[cell.rank]
    error = f" ± {cell.error:.1f}" if cell.error is not None else ""
    lacks = f"({cell.lacks})" if cell.lacks else ""
    return " ".join(part for part in (number + error, lacks) if part)


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
