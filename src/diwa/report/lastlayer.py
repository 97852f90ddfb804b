"""The table of last-layer retraining: three encoders, and how much of the target trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from diwa.report.cells import Cell, Trials, cell
from diwa.report.record import Record
from diwa.spec import Spec
from diwa.sweep.retrain import Features, RetrainedPool

if TYPE_CHECKING:
    from rich.table import Table

_NAMES: dict[Features, str] = {
    "pretrained": "✗",
    "erm": "ERM",
    "diwa": "DiWA-uniform",
}
#: What rows and columns are, for below the tables.
LEGEND = (
    "✗: the pretrained encoder as it came; ERM: the run that validation picks; DiWA-uniform: all "
    "runs averaged. Only the last layer is trained; at 0 % it is as it was, on the same images."
)


class LayerCell(Spec, frozen=True, kw_only=True):
    """One number of the table, over the trials."""

    features: Features
    """The encoder."""
    percent: int
    """How much of the unseen domain trained the last layer."""
    tested_percent: int
    """The part of it that every cell of this number is tested on."""
    tested_on: int
    """How many images that is."""
    accuracy: Cell
    """The mean in percent, and the error over trials."""


class LayerTable(Spec, frozen=True, kw_only=True):
    """What last-layer retraining gains on one unseen domain, over all trials."""

    data: str
    """The benchmark."""
    target: str
    """The unseen domain."""
    images: int
    """How many images it has."""
    backbone: str
    """The network."""
    head: str
    """What the runs started from."""
    sweep: str = ""
    """The sweep that the runs are of, if it has a name."""
    trials: list[int]
    """Which trials the means are over."""
    runs: list[int]
    """How many runs are averaged, in each pool."""
    cells: list[LayerCell]
    """Columns that are tested on the same images stand side by side."""


def layer_tables(pools: Sequence[RetrainedPool]) -> list[LayerTable]:
    """One table for all pools of a sweep that differ in trial and seed only."""
    groups: dict[tuple[str, str], list[RetrainedPool]] = {}
    for pool in pools:
        groups.setdefault((pool.sweep, pool.alike), []).append(pool)
    return [_table(group) for group in groups.values()]


def _table(pools: list[RetrainedPool]) -> LayerTable:
    first = pools[0]
    trials = sorted({pool.trial for pool in pools})
    cells = [_cell(pools, len(trials), place) for place in range(len(first.scores))]
    return LayerTable(
        data=first.data,
        target=first.target,
        images=first.images,
        backbone=first.backbone,
        head=first.head,
        sweep=first.sweep,
        trials=trials,
        runs=[len(pool.runs) for pool in pools],
        cells=_ranked(cells),
    )


def _cell(pools: list[RetrainedPool], wanted: int, place: int) -> LayerCell:
    held: Trials = {}
    first = pools[0].scores[place]
    for pool in pools:
        score = pool.scores[place]
        record = Record(
            data=pool.data,
            domain=pool.target,
            trial=pool.trial,
            method=score.features,
            value=score.accuracy,
            runs=len(pool.runs),
        )
        held.setdefault(pool.trial, []).append(record)
    return LayerCell(
        features=first.features,
        percent=first.percent,
        tested_percent=first.tested_percent,
        tested_on=first.tested_on,
        accuracy=cell(held, wanted, max(len(pool.runs) for pool in pools)),
    )


def _ranked(cells: list[LayerCell]) -> list[LayerCell]:
    """The best of each column is marked, as printed."""
    ranked = []
    for one in cells:
        column = [float(c.accuracy.number) for c in cells if _column(c) == _column(one)]
        best = float(one.accuracy.number) == max(column) and len(column) > 1
        accuracy = msgspec.structs.replace(one.accuracy, rank=1 if best else 0)
        ranked.append(msgspec.structs.replace(one, accuracy=accuracy))
    return ranked


def _column(one: LayerCell) -> tuple[int, int]:
    return -one.tested_percent, one.percent


def shown(table: LayerTable) -> Table:
    """The table for a terminal; every heading says what trained and what tested."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    trials = "1 trial" if len(table.trials) == 1 else f"{len(table.trials)} trials"
    start = {"lp": "a probed head", "random": "a drawn head"}.get(table.head, table.head)
    sweep = f"{table.sweep} · " if table.sweep else ""
    made = Table(
        title=escape(
            f"{sweep}{table.data}, {table.target} ({table.images:,} images) · {table.backbone}, "
            f"{start} · {trials} of {_spread(table.runs)} runs"
        ),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
    )
    columns = sorted({_column(one) for one in table.cells})
    made.add_column("trained on\ntested on\nimages", no_wrap=True)
    for tested, percent in columns:
        images = next(one.tested_on for one in table.cells if one.tested_percent == -tested)
        made.add_column(f"{percent} %\n{-tested} %\n{images:,}", justify="right", no_wrap=True)
    for name, called in _NAMES.items():
        own = {_column(one): one.accuracy for one in table.cells if one.features == name}
        made.add_row(called, *(_text(own.get(column)) for column in columns))
    return made


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    error = f" ± {cell.error:.1f}" if cell.error is not None else ""
    return f"[bold]{cell.number}[/bold]{error}" if cell.rank else f"{cell.number}{error}"


def _spread(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
