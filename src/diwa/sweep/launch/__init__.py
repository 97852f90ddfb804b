"""Where runs are done. A launcher is handed in; the sweep knows none by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from diwa.runs.spec import RunSpec
from diwa.runs.store import Run

#: Does one run, or finds it done; `wait` says whether to wait for another process that is at it.
Work = Callable[[RunSpec, bool], Run]


class Launcher(Protocol):
    """Does all runs of a sweep."""

    def __call__(self, specs: Sequence[RunSpec], work: Work) -> list[Run]:
        """Gives the runs, finished, in the order of `specs`."""
        ...
