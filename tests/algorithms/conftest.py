"""A network in float64 that is small enough to follow, batches for it, and two comparisons."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.hparams import draw

CLASSES = 3


class Tiny(nn.Module):
    """An encoder, dropout and one linear head, as all networks here have them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(5, 6), nn.Tanh())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(6, CLASSES)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x))


Naive = Callable[[Any, Batch], torch.Tensor]


@pytest.fixture(params=[(4, 4, 4), (5, 3), (2, 7, 3, 4), (6,)], ids=str)
def sizes(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """How many images a batch holds of each domain."""
    return request.param


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """Makes the batch of a number, whose domains lie in different places."""

    def made(number: int, sizes: tuple[int, ...]) -> Batch:
        chance = torch.Generator().manual_seed(number)
        x = [
            torch.randn(size, 5, generator=chance, dtype=torch.float64) * (1 + d) + d
            for d, size in enumerate(sizes)
        ]
        y = torch.randint(CLASSES, (sum(sizes),), generator=chance)
        return Batch(torch.cat(x), y, list(sizes))

    return made


@pytest.fixture
def make() -> Callable[..., Any]:
    """Makes an algorithm in float64 with its default hyperparameters but for those given."""

    def made(name: str, domains: int, *, dropout: float = 0.0, **hparams: float) -> Algorithm:
        torch.manual_seed(0)
        network = Tiny(dropout)
        kind = ALGORITHMS.get(name)
        assert hparams.keys() <= kind.space.keys()
        values = {**draw(kind.space, "default", hparams_seed=0, trial=0), "lr": 0.01, **hparams}
        return kind(network, values, domains).double()

    return made


@pytest.fixture
def same(batch: Callable[..., Batch]) -> Callable[..., None]:
    """Compares loss and every gradient with those of a naive loss of the same network."""

    def compared(algorithm: Algorithm, sizes: tuple[int, ...], naive: Naive, step: int = 0) -> None:
        for number in range(3):
            held = batch(number, sizes)
            theirs: Any = copy.deepcopy(algorithm.network)
            torch.manual_seed(number)
            loss, _ = algorithm.backward(held, step, nullcontext())
            torch.manual_seed(number)
            expected = naive(theirs, held)
            expected.backward()
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=1e-11)
            pairs = zip(algorithm.network.parameters(), theirs.parameters(), strict=True)
            for ours, other in pairs:
                assert ours.grad is not None
                torch.testing.assert_close(ours.grad, other.grad, rtol=1e-8, atol=1e-10)

    return compared


@pytest.fixture
def same_run(batch: Callable[..., Batch]) -> Callable[..., None]:
    """Compares losses and weights, step by step, with those of a naive way to step.

    `naive(network)` gives a function that takes one step and gives the loss.
    """

    def compared(
        algorithm: Algorithm,
        sizes: tuple[int, ...],
        naive: Callable[[Any], Callable[[Batch, int], torch.Tensor]],
        steps: int = 7,
    ) -> None:
        theirs: Any = copy.deepcopy(algorithm.network)
        update = naive(theirs)
        for step in range(steps):
            held = batch(step, sizes)
            torch.manual_seed(step)
            loss = algorithm.update(held, step, nullcontext())
            torch.manual_seed(step)
            expected = update(held, step)
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-8, atol=1e-10)
            pairs = zip(algorithm.network.parameters(), theirs.parameters(), strict=True)
            for ours, other in pairs:
                torch.testing.assert_close(ours, other, rtol=1e-7, atol=1e-9)

    return compared
