"""MA: the running mean of every iterate from some step on, validated and kept like the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from diwa.models.network import Network
from diwa.runs.store import Averaged, Row, Scored
from diwa.train.averages.base import Average, Iterates, Tensors, Watched


class MovingAverage(Average):
    """The mean of all iterates so far, from step `ma_start` on.

    Of its own validations it keeps the first that no other one beats. It has none before it starts.
    """

    name = "ma"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._sum = Iterates(watched.device)
        self._best_step = -1
        self._best: Scored | None = None

    def after_step(self, step: int, network: Network) -> None:
        """Takes the iterate in."""
        if step >= self.watched.spec.ma_start:
            self._sum.add(network.weights())

    def scored(self, step: int, network: Network) -> Scored | None:
        """How well the mean does; None before there is one."""
        if not self._sum.count:
            return None
        return self.watched.score(self._sum.mean(network.weights()), step)

    def after_validation(self, row: Row, network: Network) -> None:
        """Keeps the mean, if it never was as good."""
        scored = row.averages.get(self.name)
        if scored is None or (self._best is not None and scored.score <= self._best.score):
            return
        self._best_step, self._best = row.step, scored
        self._write(self._part(), network, row.step, scored)

    def state(self) -> tuple[dict[str, torch.Tensor], Any]:
        """The sum, and which validation was the best."""
        told = {
            "count": self._sum.count,
            "best_step": self._best_step,
            "best": msgspec.to_builtins(self._best),
        }
        return self._sum.tensors(), told

    def restore(self, tensors: Tensors, told: Any) -> None:
        """Takes over what `state` gave."""
        self._sum.restore(tensors, told["count"])
        self._best_step = told["best_step"]
        self._best = msgspec.convert(told["best"], Scored | None)
        kept = self.watched.paths.kept(self.name)
        if self._best is not None and not self._part().is_file() and kept.is_file():
            # Killed while finishing, after the best mean had got its final name.
            kept.replace(self._part())

    def files(self) -> set[Path]:
        """The best mean so far."""
        return set() if self._best is None else {self._part()}

    def finish(self, network: Network) -> Averaged:
        """Gives the best mean its final name; keeps the last one too, for oracle selection."""
        watched, paths = self.watched, self.watched.paths
        # The specification makes sure that it starts, and the last step is always validated.
        assert self._best is not None
        if watched.spec.track_unseen:
            last = watched.spec.steps - 1
            self._write(paths.kept(f"{self.name}-last"), network, last, None)
        self._part().replace(paths.kept(self.name))
        return Averaged(first=watched.spec.ma_start, last=self._best_step, scored=self._best)

    def _part(self) -> Path:
        return self.watched.paths.part(self.name, "best", self._best_step)

    def _write(self, path: Path, network: Network, step: int, scored: Scored | None) -> None:
        score = None if scored is None else scored.score
        self.watched.write(path, self._sum.mean(network.weights()), step, score)
