"""What a terminal shows: progress and messages on stderr, results on stdout."""

from __future__ import annotations

import sys
import time
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

from diwa.progress import Progress, Task

_EVERY = 15.0


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
            TextColumn("{task.description}"),
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


class _Line:
    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = title, total
        self._done, self._note = 0, ""
        self._began = self._told = time.monotonic()

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        if time.monotonic() - self._told >= _EVERY:
            self.tell()

    def tell(self) -> None:
        self._told = now = time.monotonic()
        spent = now - self._began
        left = spent / self._done * (self._total - self._done) if self._done else 0.0
        note = f", {self._note}" if self._note else ""
        print(
            f"{self._title}: {self._done}/{self._total}, {spent:.0f} s, {left:.0f} s left{note}",
            file=sys.stderr,
            flush=True,
        )


class PlainProgress:
    """A line now and then, for a log file."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Task]:
        """Says how far it is every few seconds."""
        line = _Line(title, total)
        yield line
        if line._told > line._began or time.monotonic() - line._began >= 1:
            line.tell()

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=sys.stderr, flush=True)


def progress() -> Progress:
    """Whichever suits where stderr goes."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()


def show(text: object) -> None:
    """Prints a result."""
    Console(highlight=False, soft_wrap=True).print(text)


def show_json(content: bytes) -> None:
    """Prints a result for machines."""
    sys.stdout.write(content.decode().rstrip("\n") + "\n")
