"""From finished runs to networks whose last layer some images of the unseen domain trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from diwa.atomic import write_bytes
from diwa.data.benchmark import Benchmark
from diwa.errors import DataError, SpecError, StoreError
from diwa.evaluate.features import Headless, predict_with_features
from diwa.evaluate.predict import Weights
from diwa.evaluate.predictions import Predictions
from diwa.evaluate.retrain import OTHER_PART, retrained
from diwa.progress import QUIET, Progress
from diwa.runs.paths import RetrainedPaths
from diwa.runs.spec import InitSpec
from diwa.runs.store import Run, Store
from diwa.soup.uniform import uniform
from diwa.spec import Spec
from diwa.sweep.pools import Pool, pools, to_pool
from diwa.train.workplace import check_task
from diwa.weights.member import Member

Features = Literal["pretrained", "erm", "diwa"]
#: Which side of the split each percentage of the unseen domain is.
PARTS = {20: "out", 80: "in"}


class LayerScore(Spec, frozen=True, kw_only=True):
    """What one last layer scores."""

    features: Features
    """The encoder: as it came, of the run that validation picked, or of all runs averaged."""
    percent: int
    """How much of the unseen domain trained the layer: 20, 80, or 0 for the layer of before."""
    tested_percent: int
    """On how much of it, and none of what trained it, this was tested."""
    trained_on: int
    """The number of images that trained it."""
    tested_on: int
    """The number of images it was tested on."""
    accuracy: float
    """The share of these that is right."""
    strength: float | None = None
    """Of the penalty that cross-validation among the training images chose."""


class RetrainedPool(Spec, frozen=True, kw_only=True):
    """What came of the runs that share an initialisation and a trial."""

    data: str
    """The benchmark."""
    target: str
    """The unseen domain."""
    trial: int
    """Which random split."""
    init: str
    """The key of the initialisation."""
    backbone: str
    """The network."""
    head: str
    """The kind of head that the runs started from: "random" or "lp"."""
    alike: str
    """The same for pools of one sweep that differ in trial and seed only, and have a mean."""
    sweep: str = ""
    """What the store calls the sweep that the runs are of, if it has a name."""
    runs: list[str]
    """The keys of the averaged runs, best validation first: that one is ERM's."""
    images: int
    """How many images the unseen domain has."""
    scores: list[LayerScore]
    """What every last layer scores."""
    results: str
    """The file that holds this."""
    saved: list[str]
    """The files of the retrained averages, if they were asked for."""


def retrain_runs(
    store: Store | Path | str,
    benchmark: Benchmark,
    *,
    runs: Sequence[Run] | None = None,
    sweep: str = "",
    percents: Sequence[int] = (20, 80),
    out: Path | None = None,
    save: bool = False,
    device: str = "auto",
    progress: Progress = QUIET,
) -> list[RetrainedPool]:
    """Retrains the last layer on part of the unseen domain, for every pool of a store's runs.

    A pool are the finished runs that share an initialisation and a trial. The layer is trained
    over three encoders: the initialisation's, the best run's on validation, and the average's.
    Features are computed once and kept in the store.

    Args:
        store: the runs.
        benchmark: the images they were trained on.
        runs: only these; all of the store's by default.
        sweep: what to call these runs, as `runs_of` does; nothing if empty.
        percents: how much of the unseen domain trains the layer: 20, 80 or both. The other part
            tests it, and also what it is compared with.
        out: where results go; inside the store by default.
        save: whether to write the averages with their new last layers, too.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps"; of the features.
        progress: who hears how it goes.

    Returns:
        One result per pool; each also lies in a folder of its own as results.json.

    Raises:
        StoreError: if there are no finished runs.
        DiwaError: for another percentage, or if the runs and the images don't belong together.
    """
    for percent in percents:
        if percent not in PARTS:
            raise SpecError(f"images {percent}", remedy="choose 20, 80 or both")
    if not percents:
        raise SpecError("no share of the unseen domain to train on", remedy="choose 20, 80 or both")
    store = store if isinstance(store, Store) else Store(store)
    finished = to_pool(store.runs() if runs is None else runs, where=store.root)
    found = [
        pool
        for pool in pools(finished, sweep)
        if pool.kind == "start" and len(pool.runs[0].spec.task.unseen) == 1
    ]
    if not found:
        raise StoreError(
            f"{store.root}: none of its {len(finished)} finished runs leave one domain unseen and "
            "share a start",
            remedy="sweep without --share-init none",
        )
    results = []
    for pool in found:
        paths = RetrainedPaths((out or store.paths.retrained) / pool.name)
        encoders = _Encoders(store, pool, benchmark, device, progress)
        result = encoders.retrain(tuple(dict.fromkeys(percents)), paths, save)
        write_bytes(paths.results, result.to_json())
        results.append(result)
    return results


class _Encoders:
    """The encoders of a pool of runs, and what last layers over them score."""

    def __init__(
        self, store: Store, pool: Pool, benchmark: Benchmark, device: str, progress: Progress
    ) -> None:
        self.task = pool.runs[0].spec.task
        check_task(self.task, benchmark)
        self.runs = pool.runs
        self.sweep = pool.sweep
        self.init = pool.runs[0].spec.init
        self.store = store
        self.benchmark = benchmark
        self.device = device
        self.progress = progress
        self.domain = self.task.unseen[0]
        self.parts = benchmark.split(self.domain, trial=self.task.trial, holdout=self.task.holdout)

    def retrain(self, percents: Sequence[int], paths: RetrainedPaths, save: bool) -> RetrainedPool:
        for percent in percents:
            for part in (PARTS[percent], OTHER_PART[PARTS[percent]]):
                if not len(self._positions(part)):
                    raise DataError(
                        f"{self.domain}: has no images in its {_percent(part)} %",
                        remedy="add images",
                    )
        members = [run.member() for run in self.runs]
        encoders: dict[Features, Weights] = {
            # Trials differ in their heads only, so they share its features.
            "pretrained": Headless(Member.from_file(self.store.paths.init(self.init.key).weights)),
            "erm": members[0],
            "diwa": uniform(members),
        }
        scores: list[LayerScore] = []
        saved = []
        images = 0
        for name, weights in encoders.items():
            says = self._says(name, weights)
            images = len(says)
            for percent in percents:
                part = PARTS[percent]
                made = retrained(
                    weights,
                    self.domain,
                    says,
                    self._positions(part),
                    self._positions(OTHER_PART[part]),
                    len(self.benchmark.classes),
                )
                assert made.accuracy is not None
                assert made.before is not None
                score = LayerScore(
                    features=name,
                    percent=percent,
                    tested_percent=_percent(OTHER_PART[part]),
                    trained_on=made.trained_on,
                    tested_on=made.tested_on,
                    accuracy=made.accuracy,
                    strength=made.head.strength,
                )
                # The encoder as it came has no layer of before that is worth a score.
                if name != "pretrained":
                    scores.append(
                        msgspec.structs.replace(
                            score, percent=0, trained_on=0, accuracy=made.before, strength=None
                        )
                    )
                scores.append(score)
                if save and name == "diwa":
                    saved.append(str(made.save(paths.model(percent))))
        return RetrainedPool(
            data=self.benchmark.name,
            target=self.domain,
            trial=self.task.trial,
            init=self.init.key,
            backbone=self.init.backbone,
            head=self.init.head,
            alike=_alike(self.init),
            sweep=self.sweep,
            runs=[run.name for run in self.runs],
            images=images,
            scores=scores,
            results=str(paths.results),
            saved=saved,
        )

    def _says(self, name: Features, weights: Weights) -> Predictions:
        return predict_with_features(
            weights,
            self.benchmark,
            self.domain,
            kept=self.store.paths.features,
            device=self.device,
            # As the runs were scored, so that nothing but the last layer differs.
            precision=self.runs[0].spec.precision,
            progress=self.progress,
            title=f"{self.domain}, trial {self.task.trial}: features of {name}",
        )

    def _positions(self, part: str) -> np.ndarray:
        return self.parts.inner if part == "in" else self.parts.outer


def _percent(part: str) -> int:
    return next(percent for percent, side in PARTS.items() if side == part)


def _alike(init: InitSpec) -> str:
    """The key of what pools of several trials have in common."""
    task = msgspec.structs.replace(init.task, trial=0)
    return msgspec.structs.replace(init, task=task, seed=0).key
