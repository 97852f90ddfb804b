"""How and where to train: everything that does not change what comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diwa.data.benchmark import Benchmark
from diwa.data.loaders import Source
from diwa.data.split import common
from diwa.errors import DataError
from diwa.models.device import Compute
from diwa.progress import QUIET, Progress
from diwa.runs.spec import TaskSpec
from diwa.runs.store import Store


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """What training needs besides a specification.

    Args:
        benchmark: the images.
        store: where runs go.
        device: "auto", "cpu", "cuda", "cuda:1", "mps".
        weights: the file of the encoder's weights, where they are from one.
        workers: processes that make batches; 0 makes them in this one, -1 chooses.
        progress: who hears how it goes.
        save_every: seconds between saves of a run's state; what a kill may cost.
    """

    benchmark: Benchmark
    store: Store
    device: str = "auto"
    weights: Path | None = None
    workers: int = -1
    progress: Progress = QUIET
    save_every: float = 60.0

    def compute(self, precision: str) -> Compute:
        """The device, with a run's precision."""
        return Compute.choose(self.device, precision)

    def batch_workers(self, compute: Compute) -> int:
        """How many processes make batches: a GPU of NVIDIA's is kept fed.

        Elsewhere none, because there they would be spawned, which a plain script can't bear.
        """
        if self.workers >= 0:
            return self.workers
        return min(8, os.cpu_count() or 1) if compute.device.type == "cuda" else 0

    def sources(self, task: TaskSpec, *, trials: int = 1) -> Iterator[tuple[str, Source, Source]]:
        """Every source domain with its part for training and its part for validation.

        Args:
            task: which domains, and which split of them.
            trials: of several, from the first: what all of these train on, and everything else.

        Raises:
            DataError: if the benchmark is not the one the task is about, or has too few images.
        """
        check_task(task, self.benchmark)
        for name in self.benchmark.names:
            if name in task.unseen:
                continue
            numbers = range(trials) if trials > 1 else (task.trial,)
            parts = common(
                [self.benchmark.split(name, trial=t, holdout=task.holdout) for t in numbers]
            )
            if not len(parts.inner):
                raise DataError(
                    f"{name}: has no image that all {trials} trials train on",
                    remedy="add images, or give fewer --trials, or --share-init trial",
                )
            yield name, self.source(name, parts.inner), self.source(name, parts.outer)

    def unseen(self, task: TaskSpec) -> Iterator[tuple[str, Source]]:
        """The 20 % of every unseen domain; only for who was asked to look at it."""
        for name in task.unseen:
            parts = self.benchmark.split(name, trial=task.trial, holdout=task.holdout)
            yield name, self.source(name, parts.outer)

    def source(self, name: str, positions: np.ndarray) -> Source:
        """Some images of a domain."""
        domain = self.benchmark[name]
        return Source(domain.images, domain.labels, positions)


def check_task(task: TaskSpec, benchmark: Benchmark) -> None:
    """Makes sure that a task is about this benchmark.

    Raises:
        DataError: if its images are others, or it leaves no domain to learn from.
    """
    if task.digest != benchmark.digest:
        raise DataError(
            f"{benchmark.name}: the images are not those the runs were planned for "
            f"({benchmark.digest}, not {task.digest})",
            remedy="restore the folder, or start a new store",
        )
    for name in task.unseen:
        benchmark[name]
    if len(task.unseen) >= len(benchmark):
        raise DataError(
            f"{benchmark.name}: no domain is left to learn from",
            remedy="leave at least one out of --target",
        )
