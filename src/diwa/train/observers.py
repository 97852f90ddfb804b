"""Who may watch a run. An observer is handed in; the loop knows none by name."""

from __future__ import annotations

from typing import Protocol

from diwa.models.network import Network
from diwa.progress import Task
from diwa.runs.store import Row


class Observer(Protocol):
    """Hears of every step and every validation."""

    def after_step(self, step: int, network: Network) -> None:
        """An update is done."""

    def after_validation(self, row: Row, network: Network) -> None:
        """The source domains were scored."""


class Counting:
    """Advances a task with every step, so that a sweep knows how far it is as a whole."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def after_step(self, step: int, network: Network) -> None:
        """Counts the step."""
        del step, network
        self._task.advance()

    def after_validation(self, row: Row, network: Network) -> None:
        """Needs nothing of it."""
