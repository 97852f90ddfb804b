"""What scores weights: a network to put them in, and the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from diwa.data.benchmark import Benchmark
from diwa.data.split import Split
from diwa.evaluate.predict import Weights, image_of, predict_network, source_of
from diwa.evaluate.predictions import Predictions, Sum, pooled_accuracy
from diwa.models.device import Compute
from diwa.models.network import restore_network
from diwa.progress import Progress
from diwa.runs.spec import TaskSpec
from diwa.runs.store import Run
from diwa.train.workplace import check_task


@dataclass(frozen=True)
class Blend:
    """A method, as a blend of models.

    Args:
        of: the models' names.
        together: whether their predictions are averaged, and not their accuracies.
    """

    of: tuple[str, ...]
    together: bool = False


class Scores(NamedTuple):
    """How well methods do on the unseen domain."""

    images: int = 0
    """How many it has."""
    full: Mapping[str, float] = {}
    """Method -> accuracy on all of them."""
    inner: Mapping[str, float] = {}
    """On the 80 % that would be trained on if the domain were not unseen; over several trials, the
    mean of theirs."""
    models: Mapping[str, float] = {}
    """Model -> accuracy on all of them."""


class Judge:
    """Scores weights of one network on one benchmark, all in one precision.

    Args:
        run: one of the runs whose weights, or averages, are scored.
        benchmark: the images.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        progress: who hears how it goes.

    Raises:
        DiwaError: if the run and the images don't belong together.
    """

    def __init__(self, run: Run, benchmark: Benchmark, device: str, progress: Progress) -> None:
        self._task: TaskSpec = run.spec.task
        check_task(self._task, benchmark)
        self._benchmark = benchmark
        self._progress = progress
        self._compute = Compute.choose(device, run.spec.precision)
        member = run.member()
        self._image = image_of(member.about, benchmark)
        self._network = restore_network(member.about, dict(member.tensors()))
        self._network.to(self._compute.device)

    def validation(
        self, weights: Mapping[str, torch.Tensor], trial: int, title: str, *, oracle: bool = False
    ) -> float:
        """The pooled accuracy on what a trial held out.

        Args:
            weights: what to score.
            trial: which random split.
            title: what to call it where progress is shown.
            oracle: of the unseen domains, not of the others.
        """
        self._network.load_weights(weights)
        names = [n for n in self._benchmark.names if (n in self._task.unseen) == oracle]
        return pooled_accuracy(
            [self._says(name, f"{title}, {name}", self._split(name, trial).outer) for name in names]
        )

    def _unseen(self, weights: Weights, title: str) -> Predictions:
        self._network.load_weights(dict(weights.tensors()))
        says = [self._says(name, f"{name}: {title}") for name in self._task.unseen]
        return Predictions(
            torch.cat([one.logits for one in says]), torch.cat([one.labels for one in says])
        )

    def scores(
        self,
        models: Mapping[str, Weights],
        methods: Mapping[str, Blend],
        trials: Sequence[int],
        sums: dict[frozenset[str], Sum] | None = None,
    ) -> Scores:
        """Scores models on the unseen domain, and the methods that are blends of them.

        Each model looks at it once, and no more than a sum of their predictions is kept.

        Args:
            models: by name.
            methods: by name.
            trials: whose 80 % to score as well.
            sums: of predictions for the same images, by the names of their models: what is in
                them need not be predicted again, and new ones are put there.
        """
        splits = [self._inner(trial) for trial in trials]
        sums = {} if sums is None else sums
        together: dict[str, Sum] = {}
        left: dict[str, set[str]] = {}
        for method, blend in methods.items():
            if blend.together:
                together[method], left[method] = _begun(blend, sums)
        wanted = {one for blend in methods.values() if not blend.together for one in blend.of}
        wanted = wanted.union(*left.values())
        alone: dict[str, tuple[float, float]] = {}
        for name, weights in models.items():
            if name not in wanted:
                continue
            says = self._unseen(weights, name)
            alone[name] = _accuracies(says, splits)
            for method, total in together.items():
                if name in left[method]:
                    total.add(says)
        sums |= {frozenset(methods[method].of): total for method, total in together.items()}
        both = {
            name: _accuracies(together[name].mean(), splits)
            if blend.together
            else _mean([alone[one] for one in blend.of])
            for name, blend in methods.items()
        }
        return Scores(
            images=sum(len(self._benchmark[name]) for name in self._task.unseen),
            full={name: full for name, (full, _) in both.items()},
            inner={name: inner for name, (_, inner) in both.items()},
            models={name: full for name, (full, _) in alone.items()},
        )

    def _says(self, name: str, title: str, positions: np.ndarray | None = None) -> Predictions:
        source = source_of(self._benchmark[name], positions)
        return predict_network(
            self._network,
            source,
            self._image,
            self._compute,
            progress=self._progress,
            title=title,
        )

    def _split(self, name: str, trial: int) -> Split:
        return self._benchmark.split(name, trial=trial, holdout=self._task.holdout)

    def _inner(self, trial: int) -> np.ndarray:
        """Where the unseen domains' 80 % are among all of their images."""
        found, before = [], 0
        for name in self._task.unseen:
            found.append(np.sort(self._split(name, trial).inner) + before)
            before += len(self._benchmark[name])
        return np.concatenate(found)


def _begun(blend: Blend, sums: Mapping[frozenset[str], Sum]) -> tuple[Sum, set[str]]:
    """What is known of a blend's predictions, and the models that it still lacks."""
    total, left = Sum(), set(blend.of)
    for names, one in sums.items():
        if names <= left:
            total.take(one)
            left -= names
    return total, left


def _accuracies(says: Predictions, splits: Sequence[np.ndarray]) -> tuple[float, float]:
    """On all images, and the mean of those on several parts of them."""
    parts = [says.at(positions).accuracy() for positions in splits]
    return says.accuracy(), sum(parts) / len(parts)


def _mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    full, inner = zip(*pairs, strict=True)
    return sum(full) / len(full), sum(inner) / len(inner)
