"""A few steps on the clock: how fast runs of one kind go on this very machine."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.hparams import checked
from diwa.data.loaders import Source, TrainBatches, train_loader
from diwa.evaluate.predict import predict_network
from diwa.models.backbones import FROM_NOWHERE
from diwa.models.device import Compute
from diwa.models.network import Network, build_network
from diwa.runs.spec import RunSpec
from diwa.spec import Spec
from diwa.train.init import model_spec
from diwa.train.workplace import Workplace

_EVALUATED = 64


class Pace(Spec, frozen=True, kw_only=True):
    """How fast runs of one kind go."""

    steps: int
    """How many updates were timed."""
    images: int
    """How many images each took."""
    step: float
    """Seconds of an update."""
    validated: float
    """Seconds per image of validation."""
    probed: float
    """Seconds per view that linear probing looks at."""


def pace(spec: RunSpec, place: Workplace, *, steps: int = 10, patience: float = 60.0) -> Pace:
    """Times a few updates and a batch of validation, with the run's own images.

    The network has random weights, which cost what others cost. Nothing is written but the cache
    of decoded images.

    Args:
        spec: the run.
        place: images, device and workers.
        steps: how many updates to time.
        patience: seconds after which fewer will do.
    """
    compute = place.compute(spec.precision)
    kind = ALGORITHMS.get(spec.algorithm)
    hparams = checked(kind.space, spec.hparams, algorithm=spec.algorithm)
    sources = [inner for _, inner, _ in place.sources(spec.task)]
    model = model_spec(spec.task, spec.init.backbone, place.benchmark.classes)
    cuda = [compute.device] if compute.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        network = build_network(model, weights=FROM_NOWHERE, dropout=hparams["dropout"])
        network.to(compute.device)
        algorithm: Algorithm = kind(network, hparams, len(sources))
        algorithm.to(compute.device)
        batches = TrainBatches(sources, int(hparams["batch_size"]), spec.task.image, spec.seed)
        workers = place.batch_workers(compute)
        taken, seconds = _trained(network, algorithm, batches, compute, workers, steps, patience)
        few = replace(sources[0], positions=sources[0].positions[:_EVALUATED])
        validated = _looked(network, few, spec, compute, None)
        probed = _looked(network, few, spec, compute, spec.seed)
    images = sum(batches.sizes)
    return Pace(
        steps=taken,
        images=images,
        step=seconds,
        validated=validated,
        # Its views are made by the workers of training, and need no gradient.
        probed=min(probed, seconds / images),
    )


def _trained(
    network: Network,
    algorithm: Algorithm,
    batches: TrainBatches,
    compute: Compute,
    workers: int,
    steps: int,
    patience: float,
) -> tuple[int, float]:
    """How many updates were timed, and the seconds of one."""
    # Not the first, which sets things up, nor those that workers prepare in the meantime.
    idle = 1 + 2 * workers
    began = started = time.perf_counter()
    step = 0
    for pixels, labels in train_loader(batches, range(idle + steps), workers):
        x = network.normalise(compute.pixels(pixels))
        batch = Batch(x, labels.to(compute.device), batches.sizes)
        algorithm.update(batch, step, compute.autocast())
        _finish(compute)
        step += 1
        if step == idle:
            began = time.perf_counter()
        if step > idle and time.perf_counter() - started > patience:
            break
    return step - idle, (time.perf_counter() - began) / (step - idle)


def _looked(
    network: Network, source: Source, spec: RunSpec, compute: Compute, augmented: int | None
) -> float:
    """Seconds per image to look at some; the first time sets things up."""
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        predict_network(network, source, spec.task.image, compute, augmented=augmented)
        _finish(compute)
        seconds = time.perf_counter() - began
    return seconds / len(source.positions)


def _finish(compute: Compute) -> None:
    """Waits for a device that works on its own."""
    if compute.device.type == "cuda":
        torch.cuda.synchronize(compute.device)
    elif compute.device.type == "mps":
        torch.mps.synchronize()
