"""One run after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from diwa.runs.spec import RunSpec
from diwa.runs.store import Run
from diwa.sweep.launch import Work


def inline(specs: Sequence[RunSpec], work: Work) -> list[Run]:
    """Does the runs here.

    Several processes that sweep the same store share the runs out: each first does those that
    nobody is at, and only then waits for the others.
    """
    runs = [work(spec, False) for spec in specs]
    return [run if run.finished else work(run.spec, True) for run in runs]
