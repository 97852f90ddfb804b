"""What a terminal shows: progress and messages on stderr, results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from diwa.progress import Progress, Task

_EVERY = 15.0


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
    if not sys.stderr.isatty():
        return PlainProgress()
    from diwa.cli.bars import RichProgress

    return RichProgress()


def say(text: str) -> None:
    """Prints a line as it stands, at once, where rich would take longer than the work."""
    print(text)


def show(text: object) -> None:
    """Prints a result: a table, or text with rich's markup."""
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(text)


def show_json(content: bytes) -> None:
    """Prints a result for machines."""
    sys.stdout.write(content.decode().rstrip("\n") + "\n")
