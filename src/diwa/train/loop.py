"""The training loop.

All randomness is a function of the run's seed and the step's number, so a run that was killed
and resumed draws what it would have drawn.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec
import torch

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.base import Batch
from diwa.algorithms.composed import Kind
from diwa.algorithms.hparams import checked
from diwa.atomic import write_bytes
from diwa.data.loaders import Source, TrainBatches, train_loader
from diwa.errors import DataError
from diwa.evaluate.predict import predict_network
from diwa.evaluate.predictions import Predictions
from diwa.models.device import Compute
from diwa.models.network import Network, restore_network
from diwa.runs.spec import RunSpec
from diwa.runs.store import Row, Run, RunResult, Scored
from diwa.seeding import seed_hash
from diwa.train import state
from diwa.train.averages import AVERAGES
from diwa.train.averages.base import Average, Watched
from diwa.train.init import shared_init
from diwa.train.observers import Observer
from diwa.train.state import Position
from diwa.train.workplace import Workplace, check_task
from diwa.weights import files


def train_run(
    spec: RunSpec,
    place: Workplace,
    *,
    observers: Sequence[Observer] = (),
    wait: bool = True,
    title: str = "training",
) -> Run:
    """Trains what a specification says, or goes on with it, or finds that it is done.

    Args:
        spec: the run.
        place: images, store, device and who hears how it goes.
        observers: who else watches.
        wait: if another process is at this run: wait for it, or return at once.
        title: what to call the run where progress is shown.

    Returns:
        The run; finished, unless another process is at it and `wait` is false.

    Raises:
        DiwaError: if something in the specification, the images or the store is wrong.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the state is saved first.
    """
    check_task(spec.task, place.benchmark)
    run = place.store.start(spec)
    if run.finished:
        return run.tidy()
    with run.hold(wait=wait) as mine:
        if mine and not run.finished:
            _Training(run, place, list(observers)).go(title)
    return run


class _Training:
    """One run under way."""

    def __init__(self, run: Run, place: Workplace, observers: list[Observer]) -> None:
        self.run, self.place, self.observers = run, place, observers
        self.spec = spec = run.spec
        self.compute: Compute = place.compute(spec.precision)
        # Before any image is decoded: weights that can't be had are then said at once.
        init = shared_init(spec.init, place)
        sources = list(place.sources(spec.task))
        self.training = [inner for _, inner, _ in sources]
        self.validation = [(name, outer) for name, _, outer in sources if len(outer.positions)]
        self.unseen: list[tuple[str, Source]] = (
            [(name, outer) for name, outer in place.unseen(spec.task) if len(outer.positions)]
            if spec.track_unseen
            else []
        )
        if not self.validation:
            raise DataError(
                f"{place.benchmark.name}: no source domain has images to validate on",
                remedy="add images",
            )
        kind: Kind = ALGORITHMS.get(spec.algorithm)
        self.hparams = checked(kind.space, spec.hparams, algorithm=spec.algorithm)
        self.init_digest = files.digest(init)[:16]
        self.model = files.about(init)["model"]
        self.network: Network = restore_network(
            {"model": self.model}, files.read(init), dropout=self.hparams["dropout"]
        )
        self.network.to(self.compute.device)
        with torch.random.fork_rng(devices=[]):
            # An algorithm may have a network of its own.
            torch.manual_seed(seed_hash(spec.seed, "algorithm"))
            self.algorithm = kind(self.network, self.hparams, len(self.training))
        self.algorithm.to(self.compute.device)
        self.averages = self._averages()
        #: The files of weights that the saved state speaks of.
        self.saved: set[Path] = set()
        self.at = self._resumed()

    def go(self, title: str) -> None:
        """Takes the steps that are left."""
        spec, at = self.spec, self.at
        batches = TrainBatches(
            self.training, int(self.hparams["batch_size"]), spec.task.image, spec.seed
        )
        loader = train_loader(
            batches, range(at.step, spec.steps), self.place.batch_workers(self.compute)
        )
        losses = torch.tensor(at.losses, dtype=torch.float64, device=_wide(self.compute))
        saved = time.monotonic()
        with (
            torch.random.fork_rng(devices=_seeded(self.compute)),
            _interruptible() as interrupted,
            self.place.progress.task(title, spec.steps) as task,
        ):
            task.advance(at.step)
            for pixels, labels in loader:
                step = at.step
                # Dropout and the algorithm draw from here.
                torch.manual_seed(seed_hash(spec.seed, "step", step))
                losses += self._step(pixels, labels, batches.sizes, step).to(losses.device)
                at.step, at.counted = step + 1, at.counted + 1
                note = ""
                for observer in self._watching:
                    observer.after_step(step, self.network)
                if step % spec.eval_every == 0 or at.step == spec.steps:
                    at.losses = losses.item()
                    losses.zero_()
                    note = f"validation {self._validate(step).score:.3f}"
                task.advance(note=note)
                due = time.monotonic() - saved >= self.place.save_every
                if at.step < spec.steps and (due or interrupted.is_set()):
                    at.losses = losses.item()
                    self._save()
                    saved = time.monotonic()
                if interrupted.is_set() and at.step < spec.steps:
                    raise KeyboardInterrupt
        self._finish()

    def _step(
        self, pixels: torch.Tensor, labels: torch.Tensor, sizes: list[int], step: int
    ) -> torch.Tensor:
        x = self.network.normalise(self.compute.pixels(pixels))
        batch = Batch(x, labels.to(self.compute.device), sizes)
        return self.algorithm.update(batch, step, self.compute.autocast())

    @property
    def _watching(self) -> list[Observer]:
        return [*self.averages, *self.observers]

    def _validate(self, step: int) -> Row:
        at = self.at
        says = self._says(self.validation, self._augmented(step))
        averages = {
            average.name: scored
            for average in self.averages
            if (scored := average.scored(step, self.network)) is not None
        }
        row = Row(
            step=step,
            loss=_finite(at.losses / at.counted),
            accuracy=_accuracies(says),
            losses={name: _finite(one.cross_entropy()) for name, one in says.items()},
            unseen=_accuracies(self._says(self.unseen)),
            averages=averages,
        )
        at.history.append(row)
        at.losses, at.counted = 0.0, 0
        if row.score > at.best_score:
            at.best_step, at.best_score = step, row.score
            best = self.run.paths.best(step)
            self._write(best, self.network.weights(), step, row.score)
        for observer in self._watching:
            observer.after_validation(row, self.network)
        self._forget()
        return row

    def _augmented(self, step: int) -> int | None:
        """The seed of augmented validation, where the protocol's preset has it."""
        if not self.spec.task.preset.augmented_validation:
            return None
        return seed_hash(self.spec.seed, "validation", step)

    def _says(
        self, sources: list[tuple[str, Source]], augmented: int | None = None
    ) -> dict[str, Predictions]:
        return {
            name: predict_network(
                self.network, source, self.spec.task.image, self.compute, augmented=augmented
            )
            for name, source in sources
        }

    def _averages(self) -> list[Average]:
        return [
            AVERAGES.get(name)(
                Watched(
                    spec=self.spec,
                    paths=self.run.paths,
                    device=_wide(self.compute),
                    score=self._scored,
                    write=partial(self._write, average=name),
                )
            )
            for name in self.spec.averages
        ]

    def _scored(self, weights: Mapping[str, torch.Tensor], step: int) -> Scored:
        """How well other weights do; the network has its own again afterwards, to the bit."""
        own = {name: tensor.clone() for name, tensor in self.network.weights().items()}
        self.network.load_weights(weights)
        try:
            return Scored(
                accuracy=_accuracies(self._says(self.validation, self._augmented(step))),
                unseen=_accuracies(self._says(self.unseen)),
            )
        finally:
            self.network.load_weights(own)

    def _write(
        self,
        path: Path,
        weights: Mapping[str, torch.Tensor],
        step: int,
        score: float | None,
        average: str | None = None,
    ) -> None:
        task = self.spec.task
        splits = {
            name: self.place.benchmark.split(name, trial=task.trial, holdout=task.holdout).digest
            for name, _ in self.validation
        }
        about = {
            "kind": "run",
            "model": self.model,
            "run": msgspec.to_builtins(self.spec),
            "step": step,
            "score": score,
            "split": "-".join(splits[name][:8] for name in sorted(splits)),
            "init": self.init_digest,
        }
        files.write(path, weights, about if average is None else {**about, "average": average})

    def _resumed(self) -> Position:
        paths, at = self.run.paths, Position()
        if paths.state.is_file():
            at = state.load(paths.state, self.algorithm, self.averages)
        best = paths.best(at.best_step)
        if at.best_step >= 0 and not best.is_file() and paths.weights.is_file():
            # Killed while finishing, after the best weights had got their final name.
            paths.weights.replace(best)
        self.saved = self._needed(at)
        self._forget(at)
        return at

    def _save(self) -> None:
        state.save(self.run.paths.state, self.algorithm, self.at, self.averages)
        self.saved = self._needed(self.at)
        self._forget()

    def _needed(self, at: Position) -> set[Path]:
        """The files of weights without which the run could not go on from here."""
        return {self.run.paths.best(at.best_step)}.union(*(one.files() for one in self.averages))

    def _forget(self, at: Position | None = None) -> None:
        """Removes files of weights that neither this moment nor the saved state needs."""
        keep = self.saved | self._needed(at or self.at)
        for path in self.run.paths.passing():
            if path not in keep:
                path.unlink()

    def _finish(self) -> None:
        paths, at, last = self.run.paths, self.at, self.spec.steps - 1
        best = next(row for row in at.history if row.step == at.best_step)
        write_bytes(paths.history, msgspec.json.format(msgspec.json.encode(at.history), indent=1))
        averages = {average.name: average.finish(self.network) for average in self.averages}
        if self.spec.track_unseen:
            # The oracle chooses among last checkpoints.
            self._write(paths.kept("last"), self.network.weights(), last, at.history[-1].score)
        paths.best(at.best_step).replace(paths.weights)
        result = RunResult(
            step=best.step, score=best.score, accuracy=best.accuracy, averages=averages
        )
        write_bytes(paths.result, result.to_json())
        self.run.tidy()


def _accuracies(says: Mapping[str, Predictions]) -> dict[str, float]:
    return {name: one.accuracy() for name, one in says.items()}


def _finite(loss: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return loss if math.isfinite(loss) else None


def _wide(compute: Compute) -> torch.device:
    """Where float64 sums live: Apple's GPU has no float64."""
    return torch.device("cpu") if compute.device.type == "mps" else compute.device


def _seeded(compute: Compute) -> list[torch.device]:
    """The devices besides the CPU whose generators a step seeds."""
    return [compute.device] if compute.device.type == "cuda" else []


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C or SIGTERM into an event; a second Ctrl-C is as hard as ever."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    kept = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
