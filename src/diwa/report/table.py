"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

_NAMES = {
    "mean": "mean of the members",
    "erm": "ERM, the run that validation picks",
    "swad": "SWAD, the valley of the best run",
    "ma": "MA, the moving average of the best run",
    "eoa": "EoA, all moving averages' predictions averaged",
    "dens": "DENS, runs from different starts, predictions averaged",
    "ens": "ENS, the members' predictions averaged",
    "ens-dagger": "ENS†, all trials' runs, predictions averaged",
    "diwa-restricted": "DiWA-restricted, one model",
    "diwa-uniform": "DiWA-uniform, one model",
    "diwa-dagger": "DiWA†, all trials' runs, one model",
    "ens-diwa": "several DiWAs, predictions averaged",
}


def methods_table(
    title: str, methods: Mapping[str, float], others: Mapping[str, Mapping[str, float]]
) -> Table:
    """One row per method, the best in bold.

    Args:
        title: above the table.
        methods: accuracies that are ranked.
        others: further columns: heading -> method -> accuracy, where there is one.
    """
    table = Table(
        title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold"
    )
    table.add_column("method")
    table.add_column("accuracy", justify="right")
    for heading in others:
        table.add_column(heading, justify="right", style="dim")
    best = max(methods.values(), default=0.0)
    for name, value in methods.items():
        cells = [_cell(column.get(name)) for column in others.values()]
        style = "bold" if value == best else ""
        table.add_row(_NAMES.get(name, name), _cell(value), *cells, style=style)
    return table


def rows_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Any table: the first column to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD)
    for number, heading in enumerate(headings):
        # Folded where there is no room, because names cut short may be the same; first of all
        # those in the first column.
        table.add_column(
            heading,
            justify="right" if number else "left",
            overflow="fold",
            min_width=min(max(map(len, heading.split()), default=0), 12) if number else None,
        )
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:,}" for value in row))
    return table


def hyperparameters(values: Mapping[str, float]) -> str:
    """Hyperparameters in a line."""
    return "  ".join(f"{name} {value:g}" for name, value in values.items())


def _cell(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
