"""Tables for a terminal, and for where there is no bold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diwa.report.cells import Cell, Table
from diwa.report.forms import blocks, layout

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

_STYLES = {0: "", 1: "bold", 2: "underline"}
_MARKS = {0: "", 1: "*", 2: "'"}
#: What the marks mean, for below the tables.
LEGEND = "* the best of a column, ' the second; below a number what it has of what it should have"


def text_table(table: Table, *, marks: bool = False, tight: bool = False) -> RichTable:
    """A table as rich draws it, without its title.

    Args:
        table: any.
        marks: whether marks stand for bold and underlined, where there is neither.
        tight: whether to leave less room between columns.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    shape = layout(table)
    made = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 0 if tight else 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    headings = [*shape.headings, *table.columns, "Runs\nper cell"]
    grid = [
        [*map(Text, shape.texts(row)), *(_cell(one, marks) for one in row.cells), Text(row.runs)]
        for row in table.rows
    ]
    for place, heading in enumerate(headings):
        # The one column that may be broken into lines; no word of it, and no number.
        breaks = shape.fields[place : place + 1] == ("selection",)
        held = "\n".join([heading, *(line[place].plain for line in grid)])
        least = max(map(cell_len, held.split(None if breaks else "\n")), default=0)
        style = "dim" if place == len(headings) - 1 else ""
        made.add_column(Text(heading), style=style, no_wrap=not breaks, min_width=least)
    lines = iter(grid)
    for block in blocks(table.rows):
        for row in block:
            made.add_row(*next(lines), end_section=row is block[-1])
    return made


def _cell(cell: Cell, marks: bool) -> Text:
    from rich.text import Text

    text = Text()
    if cell.number:
        text.append(cell.number, style=_STYLES[cell.rank])
        text.append(_MARKS[cell.rank] if marks else "")
        text.append(f" ± {cell.error:.1f}" if cell.error is not None else "")
    if cell.lacks:
        text.append("\n" if cell.number else "")
        text.append(cell.lacks, style="yellow")
    return text
