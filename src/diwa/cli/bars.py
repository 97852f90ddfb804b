"""Progress bars for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from diwa.progress import Task


class _Bar:
    def __init__(self, bars: Bars, number: int) -> None:
        self._bars, self._number = bars, number

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        self._bars.advance(self._number, amount)  # pyright: ignore[reportArgumentType]
        if note:
            self._bars.update(self._number, note=note)  # pyright: ignore[reportArgumentType]


class RichProgress:
    """Bars with elapsed and remaining time, for a terminal."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._open = 0

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Task]:
        """A bar that goes away when the work is done."""
        if not self._open:
            self._bars.start()
        self._open += 1
        number = self._bars.add_task(title, total=total, note="")
        try:
            yield _Bar(self._bars, number)
        finally:
            self._bars.remove_task(number)
            self._open -= 1
            if not self._open:
                self._bars.stop()

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)
