"""MMD, against kernels of one pair of images at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from diwa.algorithms.base import Batch
from diwa.algorithms.mmd import discrepancy

Fixture = Callable[..., Any]


def kernel(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    distance = ((one - other) ** 2).sum()
    scales = (0.001, 0.01, 0.1, 1, 10, 100, 1000)
    return torch.stack([torch.exp(-scale * distance) for scale in scales]).sum()


def mean_kernel(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return torch.stack([kernel(one, other) for one in some for other in others]).mean()


def naive_discrepancy(features: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    domains, found = features.split(sizes), []
    for i in range(len(sizes)):
        for j in range(i):
            one, other = domains[i], domains[j]
            found.append(
                mean_kernel(one, one) + mean_kernel(other, other) - 2 * mean_kernel(one, other)
            )
    return torch.stack(found).mean() if found else features.sum() * 0


def naive(gamma: float) -> Callable[[Any, Batch], torch.Tensor]:
    def loss(network: Any, batch: Batch) -> torch.Tensor:
        features = network.dropout(network.encoder(batch.x))
        logits = network.head(features).split(batch.sizes)
        labels = batch.y.split(batch.sizes)
        losses = [F.cross_entropy(part, y) for part, y in zip(logits, labels, strict=True)]
        return sum(losses) / len(losses) + gamma * naive_discrepancy(features, batch.sizes)

    return loss


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradients(
    make: Fixture, same: Fixture, sizes: tuple[int, ...], dropout: float
) -> None:
    same(make("MMD", len(sizes), gamma=3.0, dropout=dropout), sizes, naive(3.0))


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    width=st.integers(1, 6),
    spread=st.floats(0.01, 10),
    seed=st.integers(0, 10**6),
)
def test_any_domains(sizes: list[int], width: int, spread: float, seed: int) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(sum(sizes), width)))
    features = features * spread + 3
    expected = naive_discrepancy(features, sizes)
    torch.testing.assert_close(discrepancy(features, sizes), expected, rtol=1e-8, atol=1e-9)


def test_far_apart_and_alike() -> None:
    # Within a domain of two equal images each of the seven kernels is 1; far apart all are 0.
    features = torch.tensor([[0.0], [0.0], [1e3], [1e3]])
    assert discrepancy(features, [2, 2]).item() == 14
    assert discrepancy(torch.zeros(4, 1), [2, 2]).item() == 0


def test_float32_keeps_the_sharpest_kernel() -> None:
    # Two of ResNet-50's pooled vectors, .03 apart: the kernel of scale 1000 is exp(-.9).
    features = torch.rand(2, 2048, generator=torch.Generator().manual_seed(0)) * 0.9
    features[1] = features[0]
    features[1, 0] += 0.03
    found = discrepancy(features, [1, 1]).item()
    scales = (0.001, 0.01, 0.1, 1, 10, 100, 1000)
    distance = (features[1, 0] - features[0, 0]).double().item() ** 2
    expected = 2 * sum(1 - math.exp(-scale * distance) for scale in scales)
    assert found == pytest.approx(expected, rel=1e-4)
