"""What every form of output shows of a table, before it takes its own shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diwa.report.cells import Row, Table


class Layout(NamedTuple):
    """Which columns stand before the cells: none that would be empty.

    Args:
        headings: of those columns.
        fields: the rows' fields that they show.
    """

    headings: tuple[str, ...]
    fields: tuple[str, ...]

    def texts(self, row: Row) -> list[str]:
        """What a row has in those columns."""
        return [getattr(row, field) for field in self.fields]


_COLUMNS = (("Algorithm", "algorithm"), ("Weight selection", "selection"), ("Init", "init"))


def layout(table: Table) -> Layout:
    """The columns before a table's cells."""
    held = [
        (heading, field)
        for heading, field in _COLUMNS
        if field == "algorithm" or any(getattr(row, field) for row in table.rows)
    ]
    return Layout(tuple(heading for heading, _ in held), tuple(field for _, field in held))


def blocks(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in groups that start from one kind of initialisation, with a line between them."""
    found: list[list[Row]] = []
    for row in rows:
        if found and found[-1][0].init == row.init:
            found[-1].append(row)
        else:
            found.append([row])
    return found
