"""Batches: drawn with replacement per source domain for training, in order for evaluation."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from diwa.data.benchmark import Images
from diwa.data.transforms import Augment, ImageSpec, squash
from diwa.seeding import random_state, seed_hash

#: More threads than this wait for each other, in Python, longer than they work.
_THREADS = 8


@dataclass(frozen=True)
class Source:
    """The part of a domain that batches are drawn from."""

    images: Images
    labels: np.ndarray
    positions: np.ndarray


class View(NamedTuple):
    """One augmented look at one image."""

    domain: int
    """Which of the sources."""
    position: int
    """Which of the domain's images."""
    seed: int
    """Of the augmentation."""


class TrainBatches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The training batch of every step, a pure function of the seed and the step's number.

    Args:
        sources: one per source domain.
        batch_size: images per source domain.
        spec: how images reach the network.
        seed: what all draws derive from.
    """

    def __init__(
        self, sources: Sequence[Source], batch_size: int, spec: ImageSpec, seed: int
    ) -> None:
        self._sources = list(sources)
        self._batch_size = batch_size
        self._spec = spec
        self._augment = Augment(spec)
        self._seed = seed

    @property
    def sizes(self) -> list[int]:
        """How many images of each domain a batch holds."""
        return [self._batch_size] * len(self._sources)

    def drawn(self, domain: int, step: int) -> np.ndarray:
        """The positions drawn from a domain at a step, with replacement."""
        pool = self._sources[domain].positions
        chance = random_state(self._seed, "batch", domain, step)
        return pool[chance.randint(len(pool), size=self._batch_size)]

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = (
            (domain, int(position))
            for domain in range(len(self._sources))
            for position in self.drawn(domain, step)
        )
        views = [
            View(domain, position, seed_hash(self._seed, "augment", step, row))
            for row, (domain, position) in enumerate(drawn)
        ]
        return _rendered(views, self._sources, self._augment, self._spec)


class Views(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches of augmented views that were chosen beforehand."""

    def __init__(
        self, sources: Sequence[Source], batches: Sequence[Sequence[View]], spec: ImageSpec
    ) -> None:
        self._sources = list(sources)
        self._batches = batches
        self._spec = spec
        self._augment = Augment(spec)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _rendered(self._batches[number], self._sources, self._augment, self._spec)


def _rendered(
    views: Sequence[View], sources: Sequence[Source], augment: Augment, spec: ImageSpec
) -> tuple[torch.Tensor, torch.Tensor]:
    out = np.empty((len(views), *spec.size, spec.channels), dtype=np.uint8)
    labels = np.empty(len(views), dtype=np.int64)
    # The transforms draw from torch's global generator: borrow it.
    with torch.random.fork_rng(devices=[]):
        drawn = [
            augment.drawn(sources[domain].images.original_size(position), seed)
            for domain, position, seed in views
        ]

    def render(row: int) -> None:
        domain, position, _ = views[row]
        out[row] = drawn[row](sources[domain].images[position])
        labels[row] = sources[domain].labels[position]

    # Pillow lets other threads run while it works; in a worker process, others are at work.
    threads = 1 if get_worker_info() else min(os.cpu_count() or 1, _THREADS)
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(render, range(len(views))):
            pass
    return as_batch(out), torch.from_numpy(labels)


def train_loader(
    batches: Dataset[tuple[torch.Tensor, torch.Tensor]], steps: range, workers: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of `steps` in order, made here or by worker processes; the bytes are the same."""
    if workers == 0:
        return (batches[step] for step in steps)
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=2,
        worker_init_fn=_leave_stopping_to_the_parent,
        pin_memory=torch.cuda.is_available(),
        # Else the loader takes a number from the caller's generator, which `workers=0` does not.
        generator=torch.Generator(),
    )
    return iter(loader)


def _leave_stopping_to_the_parent(worker: int) -> None:
    """Ctrl-C and SIGTERM reach a whole process group; the parent needs its batches to save."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def eval_batches(
    source: Source, spec: ImageSpec, batch_size: int = 64
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """All images of `source` in order, squashed to size, with their labels."""
    threads = os.cpu_count() or 1
    height, width = spec.size

    def made(start: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = source.positions[start : start + batch_size]
        out = np.empty((len(positions), height, width, spec.channels), dtype=np.uint8)
        for row, position in enumerate(positions):
            out[row] = squash(source.images[position], spec.size)
        return as_batch(out), torch.from_numpy(source.labels[positions])

    starts = range(0, len(source.positions), batch_size)
    if not starts:
        return
    with ThreadPoolExecutor(min(threads, 4)) as pool:
        # One batch ahead of the network and no more: two batches are all that memory holds.
        ahead = [pool.submit(made, start) for start in starts[:1]]
        for start in [*starts[1:], None]:
            ready = ahead.pop()
            batch = ready.result()
            if start is not None:
                ahead.append(pool.submit(made, start))
            yield batch


def augmented_batches(
    source: Source, spec: ImageSpec, seed: int, batch_size: int = 64
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same, each image seen once through the training augmentation."""
    views = [
        View(0, int(position), seed_hash(seed, "augment", row))
        for row, position in enumerate(source.positions)
    ]
    chunks = [views[start : start + batch_size] for start in range(0, len(views), batch_size)]
    return train_loader(Views([source], chunks, spec), range(len(chunks)), workers=0)


def as_batch(pixels: np.ndarray) -> torch.Tensor:
    """Bytes by image, height, width, channel as a tensor of shape (N, C, H, W).

    The bytes stay where they are, which makes the tensor channels-last at no cost.
    """
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
