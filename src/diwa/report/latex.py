r"""Tables as LaTeX, with booktabs; the preamble needs `\usepackage{booktabs}` and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diwa.report.cells import Cell, Table
from diwa.report.forms import blocks, layout

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "†": r"$^{\dagger}$",
    "·": r"$\cdot$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex_table(table: Table) -> str:
    """A table environment: the best in bold, the second underlined."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    shape = layout(table)
    yield r"\begin{table}"
    yield rf"  \caption{{{escaped(table.title)}}}"
    yield r"  \centering"
    count = len(table.columns) + 1
    yield rf"  \begin{{tabular}}{{{'l' * len(shape.headings)}{'c' * count}}}"
    yield r"    \toprule"
    headings = [*shape.headings, *table.columns, "Runs per cell"]
    yield _line([rf"\textbf{{{escaped(heading)}}}" for heading in headings])
    for block in blocks(table.rows):
        yield r"    \midrule"
        for row in block:
            before = [escaped(text) for text in shape.texts(row)]
            yield _line([*before, *map(_cell, row.cells), escaped(row.runs)])
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    yield r"\end{table}"


def _line(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _cell(cell: Cell) -> str:
    commands = {0: cell.number, 1: rf"\textbf{{{cell.number}}}", 2: rf"\underline{{{cell.number}}}"}
    error = rf" $\pm$ {cell.error:.1f}" if cell.error is not None else ""
    lacks = rf"{{\scriptsize ({escaped(cell.lacks)})}}" if cell.lacks else ""
    return " ".join(part for part in (commands[cell.rank] + error, lacks) if part)


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    Example:
        >>> escaped("80 % of art_painting")
        '80 \\% of art\\_painting'
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in text)
