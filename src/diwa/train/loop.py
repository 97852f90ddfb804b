"""The training loop.

All randomness is a function of the run's seed and the step's number, so a run that was killed
and resumed draws what it would have drawn.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import msgspec
import torch

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.hparams import checked
from diwa.atomic import write_bytes
from diwa.data.loaders import Source, TrainBatches, train_loader
from diwa.errors import DataError
from diwa.evaluate.predict import predict_network
from diwa.models.device import Compute
from diwa.models.network import Network, restore_network
from diwa.runs.spec import RunSpec
from diwa.runs.store import Row, Run, RunResult
from diwa.seeding import seed_hash
from diwa.train import state
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
        kind: type[Algorithm] = ALGORITHMS.get(spec.algorithm)
        self.hparams = checked(kind.space, spec.hparams, algorithm=spec.algorithm)
        self.init_digest = files.digest(init)[:16]
        self.model = files.about(init)["model"]
        self.network: Network = restore_network(
            {"model": self.model}, files.read(init), dropout=self.hparams["dropout"]
        )
        self.network.to(self.compute.device)
        self.algorithm = kind(self.network, self.hparams, len(self.training))
        self.algorithm.to(self.compute.device)
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
                # Dropout is all that draws from here.
                torch.manual_seed(seed_hash(spec.seed, "step", step))
                losses += self._step(pixels, labels, batches.sizes, step).to(losses.device)
                at.step, at.counted = step + 1, at.counted + 1
                note = ""
                if step % spec.eval_every == 0 or at.step == spec.steps:
                    at.losses = losses.item()
                    losses.zero_()
                    note = f"validation {self._validate(step).score:.3f}"
                for observer in self.observers:
                    observer.after_step(step, self.network)
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

    def _validate(self, step: int) -> Row:
        at = self.at
        row = Row(
            step=step,
            loss=at.losses / at.counted,
            accuracy=self._scores(self.validation),
            unseen=self._scores(self.unseen),
        )
        at.history.append(row)
        at.losses, at.counted = 0.0, 0
        if row.score > at.best_score:
            at.best_step, at.best_score = step, row.score
            self._write_best(row)
        for observer in self.observers:
            observer.after_validation(row, self.network)
        return row

    def _scores(self, sources: list[tuple[str, Source]]) -> dict[str, float]:
        return {
            name: predict_network(
                self.network, source, self.spec.task.image, self.compute
            ).accuracy()
            for name, source in sources
        }

    def _write_best(self, row: Row) -> None:
        task = self.spec.task
        splits = {
            name: self.place.benchmark.split(name, trial=task.trial, holdout=task.holdout).digest
            for name, _ in self.validation
        }
        about = {
            "kind": "run",
            "model": self.model,
            "run": msgspec.to_builtins(self.spec),
            "step": row.step,
            "score": row.score,
            "split": "-".join(splits[name][:8] for name in sorted(splits)),
            "init": self.init_digest,
        }
        files.write(self.run.paths.best(row.step), self.network.weights(), about)

    def _resumed(self) -> Position:
        paths = self.run.paths
        at = state.load(paths.state, self.algorithm) if paths.state.is_file() else Position()
        if at.best_step >= 0 and not paths.best(at.best_step).is_file() and paths.weights.is_file():
            # Killed while finishing, after the best weights had got their final name.
            paths.weights.replace(paths.best(at.best_step))
        self._forget_other_best(at)
        return at

    def _save(self) -> None:
        state.save(self.run.paths.state, self.algorithm, self.at)
        self._forget_other_best(self.at)

    def _forget_other_best(self, at: Position) -> None:
        """Only now that the state names another file may older best weights go."""
        keep = self.run.paths.best(at.best_step)
        for path in self.run.paths.all_best():
            if path != keep:
                path.unlink()

    def _finish(self) -> None:
        paths, at = self.run.paths, self.at
        best = next(row for row in at.history if row.step == at.best_step)
        write_bytes(paths.history, msgspec.json.format(msgspec.json.encode(at.history), indent=1))
        paths.best(at.best_step).replace(paths.weights)
        result = RunResult(step=best.step, score=best.score, accuracy=best.accuracy)
        write_bytes(paths.result, result.to_json())
        self.run.tidy()


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
