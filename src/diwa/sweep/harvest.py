"""From finished runs to soups, and to what each method scores on the unseen domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from diwa.atomic import write_bytes
from diwa.data.benchmark import Benchmark
from diwa.errors import StoreError
from diwa.evaluate.predict import image_of, predict_network, source_of
from diwa.evaluate.predictions import Predictions, ensemble, pooled_accuracy
from diwa.models.device import Compute
from diwa.models.network import Network, restore_network
from diwa.progress import QUIET, Progress
from diwa.runs.paths import SoupPaths
from diwa.runs.spec import TaskSpec
from diwa.runs.store import Run, Store
from diwa.soup.greedy import greedy
from diwa.soup.soup import Soup
from diwa.soup.uniform import uniform
from diwa.spec import Spec
from diwa.train.workplace import check_task

METHODS = ("mean", "erm", "ens", "diwa-restricted", "diwa-uniform")


class MemberScore(Spec, frozen=True, kw_only=True):
    """One run in a harvest."""

    run: str
    """Its key."""
    hparams: dict[str, float]
    """Its hyperparameters."""
    validation: float
    """The mean of the source domains' validation accuracies."""
    target: float | None
    """Its accuracy on all of the unseen domain."""
    restricted: bool
    """Whether the restricted soup kept it."""


class Harvest(Spec, frozen=True, kw_only=True):
    """What came of the runs that share one initialisation."""

    data: str
    """The benchmark."""
    target: str
    """The unseen domain."""
    trial: int
    """Which random split."""
    init: str
    """The key of the initialisation."""
    images: int
    """How many images the unseen domain has."""
    methods: dict[str, float]
    """Accuracies on all (100 %) of the unseen domain; empty if it was not scored."""
    methods_80: dict[str, float]
    """Accuracies on its 80 % training split, which the paper's tables use."""
    validation: dict[str, float]
    """Pooled accuracies on the source domains' validation splits."""
    members: list[MemberScore]
    """Every run, best validation first."""
    soup: str
    """The file of the uniform average."""
    restricted_soup: str
    """The file of the restricted average."""


def harvest(
    store: Store | Path | str,
    benchmark: Benchmark,
    *,
    targets: Sequence[str] = (),
    runs: Sequence[Run] | None = None,
    score_target: bool = True,
    out: Path | None = None,
    device: str = "auto",
    progress: Progress = QUIET,
) -> list[Harvest]:
    """Averages the store's finished runs and scores every method on the unseen domain.

    Runs belong together if they share an initialisation. The unseen domain is read once all
    choices are made, and only if `score_target` is true.

    Args:
        store: the runs.
        benchmark: the images they were trained on.
        targets: only these unseen domains; all by default.
        runs: only these runs; all finished ones by default.
        score_target: whether to score the unseen domain at all.
        out: where soups and results go; inside the store by default.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        progress: who hears how it goes.

    Returns:
        One result per initialisation; each also lies beside its soup as results.json.

    Raises:
        StoreError: if there are no finished runs.
        DiwaError: if the runs and the images don't belong together.
    """
    store = store if isinstance(store, Store) else Store(store)
    pools = _pools(store, store.runs() if runs is None else runs, targets)
    results = []
    for name, together in pools.items():
        paths = store.paths.soup(name)
        if out is not None:
            paths = SoupPaths(out if len(pools) == 1 else out / name)
        steps = sorted({run.spec.steps for run in together})
        if len(steps) > 1:
            progress.say(f"{name}: averages runs of {' and '.join(map(str, steps))} steps")
        pool = _Pool(together, benchmark, device, progress)
        result = pool.harvest(paths, score_target)
        write_bytes(paths.results, result.to_json())
        results.append(result)
    return results


def _pools(store: Store, runs: Sequence[Run], targets: Sequence[str]) -> dict[str, list[Run]]:
    by_init: dict[str, list[Run]] = {}
    for run in runs:
        if run.finished and (not targets or set(run.spec.task.unseen) <= set(targets)):
            by_init.setdefault(run.spec.init.key, []).append(run)
    if not by_init:
        wanted = f" for {', '.join(targets)}" if targets else ""
        raise StoreError(
            f"{store.root}: none of its {len(runs)} runs is finished{wanted}",
            remedy="run diwa sweep on it first",
        )
    # The key is always in the name: a later initialisation must not rename an earlier one's soup.
    return {f"{_name(pool[0].spec.task)}-{key[:8]}": pool for key, pool in by_init.items()}


def _name(task: TaskSpec) -> str:
    return f"{'+'.join(task.unseen)}-t{task.trial}"


class _Pool:
    """The runs that share one initialisation, and a network to score weights with."""

    def __init__(
        self, runs: list[Run], benchmark: Benchmark, device: str, progress: Progress
    ) -> None:
        self.task = runs[0].spec.task
        check_task(self.task, benchmark)
        ranked = sorted(runs, key=lambda run: (-run.result.score, run.name))
        self.runs = ranked
        self.members = [run.member() for run in ranked]
        self.benchmark = benchmark
        self.progress = progress
        # All members of a pool are scored in one precision, or their scores could not be compared.
        self.compute = Compute.choose(device, runs[0].spec.precision)
        about = self.members[0].about
        self.image = image_of(about, benchmark)
        self.network: Network = restore_network(about, dict(self.members[0].tensors()))
        self.network.to(self.compute.device)

    def harvest(self, paths: SoupPaths, score_target: bool) -> Harvest:
        """Makes both soups, then looks at the unseen domain."""
        everyone = uniform(self.members)
        candidates = iter(range(1, len(self.members) + 1))
        chosen = greedy(
            self.members,
            score=lambda weights: self._validation(
                weights, f"restricted: {next(candidates)} of {len(self.members)}"
            ),
        )
        everyone.save(paths.uniform)
        chosen.save(paths.restricted)
        validation = {
            "diwa-uniform": self._validation(dict(everyone.tensors()), "uniform: validation"),
            "diwa-restricted": max(tried.score for tried in chosen.trace if tried.kept),
            "erm": chosen.trace[0].score,
        }
        says = self._unseen(everyone, chosen) if score_target else {}
        inner = self._inner_positions() if says else np.zeros(0, dtype=np.int64)
        alone = [says[member.name].accuracy() for member in self.members] if says else []
        kept = {member.name for member in chosen.members}
        return Harvest(
            data=self.benchmark.name,
            target="+".join(self.task.unseen),
            trial=self.task.trial,
            init=self.runs[0].spec.init.key,
            images=len(next(iter(says.values()))) if says else 0,
            methods=self._methods(says),
            methods_80=self._methods({name: one.at(inner) for name, one in says.items()}),
            validation=validation,
            members=[
                MemberScore(
                    run=run.name,
                    hparams=run.spec.hparams,
                    validation=run.result.score,
                    target=alone[place] if alone else None,
                    restricted=run.name in kept,
                )
                for place, run in enumerate(self.runs)
            ],
            soup=str(paths.uniform),
            restricted_soup=str(paths.restricted),
        )

    def _validation(self, weights: Mapping[str, torch.Tensor], title: str) -> float:
        """The pooled accuracy on what the source domains held out."""
        self.network.load_weights(weights)
        says = []
        for name in self.benchmark.names:
            if name in self.task.unseen:
                continue
            parts = self.benchmark.split(name, trial=self.task.trial, holdout=self.task.holdout)
            source = source_of(self.benchmark[name], parts.outer)
            says.append(
                predict_network(
                    self.network,
                    source,
                    self.image,
                    self.compute,
                    progress=self.progress,
                    title=f"{title}, {name}",
                )
            )
        return pooled_accuracy(says)

    def _unseen(self, everyone: Soup, chosen: Soup) -> dict[str, Predictions]:
        """What every member and both soups say of the whole unseen domain."""
        says: dict[str, Predictions] = {}
        scored = {member.name: member for member in self.members}
        for name, weights in {**scored, "uniform": everyone, "restricted": chosen}.items():
            self.network.load_weights(dict(weights.tensors()))
            parts = [
                predict_network(
                    self.network,
                    source_of(self.benchmark[domain]),
                    self.image,
                    self.compute,
                    progress=self.progress,
                    title=f"{domain}: {name}",
                )
                for domain in self.task.unseen
            ]
            says[name] = Predictions(
                torch.cat([part.logits for part in parts]),
                torch.cat([part.labels for part in parts]),
            )
        return says

    def _inner_positions(self) -> np.ndarray:
        """Where the unseen domains' 80 % are among all of their images."""
        found, before = [], 0
        for name in self.task.unseen:
            parts = self.benchmark.split(name, trial=self.task.trial, holdout=self.task.holdout)
            found.append(np.sort(parts.inner) + before)
            before += len(self.benchmark[name])
        return np.concatenate(found)

    def _methods(self, says: Mapping[str, Predictions]) -> dict[str, float]:
        if not says:
            return {}
        alone = [says[member.name] for member in self.members]
        scores = [one.accuracy() for one in alone]
        return {
            "mean": sum(scores) / len(scores),
            "erm": scores[0],
            "ens": ensemble(alone).accuracy(),
            "diwa-restricted": says["restricted"].accuracy(),
            "diwa-uniform": says["uniform"].accuracy(),
        }
