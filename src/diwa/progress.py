"""How long work is reported: a protocol that is handed in, and the one that says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work with a known length."""

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        """Counts `amount` more as done; `note` is a short word on how it goes."""


class Progress(Protocol):
    """Whoever wants to know how far the work is."""

    def task(self, title: str, total: int) -> AbstractContextManager[Task]:
        """Opens a piece of work of `total` parts."""
        ...

    def say(self, text: str) -> None:
        """A line worth keeping, outside of any task."""


class _Silent:
    def advance(self, amount: int = 1, *, note: str = "") -> None:
        pass


class Quiet:
    """Reports nothing."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Task]:
        """Opens a piece of work nobody hears of."""
        del title, total
        yield _Silent()

    def say(self, text: str) -> None:
        """Says nothing."""


QUIET = Quiet()
