"""CORAL, against means and covariances written out for every pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from diwa.algorithms.base import Batch
from diwa.algorithms.coral import CORAL, mismatch
from diwa.algorithms.hparams import checked
from diwa.errors import SpecError

Fixture = Callable[..., Any]


def naive_mismatch(features: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    domains, found = features.split(sizes), []
    for i in range(len(sizes)):
        for j in range(i):
            one, other = domains[i], domains[j]
            means = (one.mean(0) - other.mean(0)) ** 2
            covariances = (torch.cov(one.T) - torch.cov(other.T)) ** 2
            found.append(means.mean() + covariances.mean())
    return torch.stack(found).mean() if found else features.sum() * 0


def naive(gamma: float) -> Callable[[Any, Batch], torch.Tensor]:
    def loss(network: Any, batch: Batch) -> torch.Tensor:
        features = network.dropout(network.encoder(batch.x))
        logits = network.head(features).split(batch.sizes)
        labels = batch.y.split(batch.sizes)
        losses = [F.cross_entropy(part, y) for part, y in zip(logits, labels, strict=True)]
        return sum(losses) / len(losses) + gamma * naive_mismatch(features, batch.sizes)

    return loss


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("gamma", [1.0, 7.0])
def test_loss_and_gradients(
    make: Fixture, same: Fixture, sizes: tuple[int, ...], gamma: float, dropout: float
) -> None:
    same(make("CORAL", len(sizes), gamma=gamma, dropout=dropout), sizes, naive(gamma))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    width=st.integers(2, 12),
    seed=st.integers(0, 10**6),
)
def test_any_domains(sizes: list[int], width: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    features = torch.from_numpy(chance.normal(size=(sum(sizes), width)))
    features += torch.from_numpy(chance.normal(size=width)) * 5
    expected = naive_mismatch(features, sizes)
    torch.testing.assert_close(mismatch(features, sizes), expected, rtol=1e-10, atol=1e-12)


def test_float32_loses_little_where_domains_are_nearly_alike() -> None:
    # As of ResNet-50's 2048 pooled features, the penalty being a small difference of large sums.
    chance = torch.Generator().manual_seed(0)
    features = torch.rand(96, 2048, generator=chance) * 0.9
    features[:32] += 1e-3
    found = mismatch(features, [32, 32, 32])
    expected = naive_mismatch(features.double(), [32, 32, 32])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


def test_a_batch_of_single_images_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        checked(CORAL.space, {"batch_size": 1}, algorithm="CORAL")
    assert str(caught.value) == "hyperparameter batch_size=1; give a whole number from 2 up"
