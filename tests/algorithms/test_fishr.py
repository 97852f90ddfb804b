"""Fishr, against gradients of the head found by autograd, one image at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from diwa.algorithms.base import Batch
from diwa.algorithms.fishr import variances

Fixture = Callable[..., Any]


def gradients(features: torch.Tensor, head: nn.Linear, labels: torch.Tensor) -> torch.Tensor:
    """A row per image: its gradient of the head's weight and bias, of shape (classes, D + 1)."""
    rows = []
    for image, label in zip(features, labels, strict=True):
        loss = F.cross_entropy(head(image[None]), label[None])
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias], create_graph=True)
        rows.append(torch.cat([weight, bias[:, None]], dim=1))
    return torch.stack(rows)


def naive_variances(features: torch.Tensor, head: nn.Linear, batch: Batch) -> list[torch.Tensor]:
    parts = zip(features.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
    found = [gradients(part, head, labels) for part, labels in parts]
    return [((part - part.mean(0)) ** 2).mean(0) for part in found]


def naive(
    anneal: int, weight: float, ema: float, domains: int, *, forget: bool = True
) -> Callable[[Any], Callable[[Batch, int], torch.Tensor]]:
    def stepping(network: Any) -> Callable[[Batch, int], torch.Tensor]:
        adam = torch.optim.Adam(network.parameters(), lr=0.01)
        averages: list[Any] = [0.0] * domains

        def update(batch: Batch, step: int) -> torch.Tensor:
            nonlocal adam
            features = network.dropout(network.encoder(batch.x))
            loss = F.cross_entropy(network.head(features), batch.y)
            corrected = []
            for domain, variance in enumerate(naive_variances(features, network.head, batch)):
                average = ema * averages[domain] + (1 - ema) * variance
                averages[domain] = average.detach()
                corrected.append(average / (1 - ema))
            mean = sum(corrected) / domains
            distances = [((variance - mean) ** 2).mean() for variance in corrected]
            if step >= anneal:
                loss = loss + weight * sum(distances) / domains
            if step == anneal and forget:
                adam = torch.optim.Adam(network.parameters(), lr=0.01)
            adam.zero_grad()
            loss.backward()
            adam.step()
            return loss

        return update

    return stepping


@pytest.mark.parametrize("anneal", [0, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_steps(
    make: Fixture, same_run: Fixture, sizes: tuple[int, ...], anneal: int, dropout: float
) -> None:
    hparams = {"anneal": anneal, "lambda": 200.0, "ema": 0.9}
    fishr = make("Fishr", len(sizes), dropout=dropout, **hparams)
    same_run(fishr, sizes, naive(anneal, 200.0, 0.9, len(sizes)))


def test_the_comparison_sees_adams_moments_forgotten(make: Fixture, same_run: Fixture) -> None:
    fishr = make("Fishr", 2, **{"anneal": 3, "lambda": 200.0, "ema": 0.9})
    with pytest.raises(AssertionError):
        same_run(fishr, (5, 3), naive(3, 200.0, 0.9, 2, forget=False))


def test_before_the_penalty_counts_it_is_erm(make: Fixture, batch: Fixture) -> None:
    fishr, erm = make("Fishr", 2, anneal=5), make("ERM", 2)
    for step in range(5):
        held = batch(step, (4, 6))
        assert fishr.update(held, step, nullcontext()) == erm.update(held, step, nullcontext())
    pairs = zip(fishr.network.parameters(), erm.network.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert fishr.average.abs().sum() > 0


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    width=st.integers(1, 7),
    classes=st.integers(2, 5),
    seed=st.integers(0, 10**6),
)
def test_any_domains(sizes: list[int], width: int, classes: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    head = nn.Linear(width, classes).double()
    head.weight.data = torch.from_numpy(chance.normal(size=(classes, width)))
    features = torch.from_numpy(chance.normal(size=(sum(sizes), width)))
    labels = torch.from_numpy(chance.integers(classes, size=sum(sizes)))
    batch = Batch(features, labels, sizes)
    found = variances(features, head(features), batch)
    expected = torch.stack(naive_variances(features, head, batch))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_float32_loses_little() -> None:
    # Means of squares less squares of means, for 2048 features that are all positive.
    chance = torch.Generator().manual_seed(0)
    head = nn.Linear(2048, 7)
    features = torch.rand(32, 2048, generator=chance) * 0.9
    batch = Batch(features, torch.randint(7, (32,), generator=chance), [32])
    found = variances(features, head(features), batch).double()
    wide = nn.Linear(2048, 7).double()
    wide.load_state_dict(head.state_dict())
    expected = torch.stack(naive_variances(features.double(), wide, batch))
    assert ((found - expected).abs() / expected).max() < 1e-4
