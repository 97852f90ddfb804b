"""The runs of a sweep as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from diwa.report.table import hyperparameters


@dataclass(frozen=True, kw_only=True)
class Line:
    """One run.

    Args:
        target: the unseen domain.
        trial: which random split.
        number: which of the runs of that target and trial.
        algorithm: what is minimised.
        hparams: its hyperparameters.
        run: its key.
        last: what stands in the last column.
    """

    target: str
    trial: int
    number: int
    algorithm: str
    hparams: dict[str, float]
    run: str
    last: str


def runs_table(title: str, lines: Sequence[Line], *, last: str) -> Table:
    """One row per run; what is the same for all of them stands above and below.

    Args:
        title: above the table.
        lines: the runs.
        last: the heading of the last column.
    """
    names = list(dict.fromkeys(name for line in lines for name in line.hparams))
    common = [name for name in names if all(name in line.hparams for line in lines)]
    same = {n: lines[0].hparams[n] for n in common if len({x.hparams[n] for x in lines}) == 1}
    varying = [name for name in common if name not in same]
    others = [name for name in names if name not in common]
    columns: dict[str, tuple[str, list[str]]] = {
        "target": ("left", [escape(line.target) for line in lines]),
        "trial": ("right", [str(line.trial) for line in lines]),
        "run": ("right", [str(line.number) for line in lines]),
        "algorithm": ("left", [line.algorithm for line in lines]),
        # With a space, a heading may wrap.
        **{
            name.replace("_", " "): ("right", [_number(line.hparams[name]) for line in lines])
            for name in varying
        },
        "and": ("left", [_few(line.hparams, others) for line in lines]),
        "key": ("left", [line.run[:8] for line in lines]),
        last: ("right", [line.last for line in lines]),
    }
    targets, algorithms = (set(columns[name][1]) for name in ("target", "algorithm"))
    if len(targets) == 1:
        del columns["target"]
        title = f"{title}, {lines[0].target} unseen"
    if len(algorithms) == 1:
        del columns["algorithm"]
    if not others:
        del columns["and"]
    shared = [*(algorithms if len(algorithms) == 1 else []), hyperparameters(same)]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=escape(title),
        title_justify="left",
        title_style="bold",
        caption=f"all: {'  '.join(filter(None, shared))}" if any(shared) else None,
        caption_justify="left",
    )
    for heading, (side, _) in columns.items():
        table.add_column(heading, justify="right" if side == "right" else "left")
    for row in zip(*(cells for _, cells in columns.values()), strict=True):
        table.add_row(*row)
    return table


def _few(values: Mapping[str, float], names: Sequence[str]) -> str:
    return "  ".join(f"{name} {_number(values[name])}" for name in names if name in values)


def _number(value: float) -> str:
    return f"{value:g}" if float(value).is_integer() else f"{value:.2g}"
