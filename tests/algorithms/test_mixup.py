"""Mixup, against pairs blended one image at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diwa.algorithms.base import Batch
from diwa.algorithms.hparams import draw
from diwa.algorithms.mixup import Mixup

Fixture = Callable[..., Any]


def cross_entropy(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return -torch.log(torch.exp(logits[label]) / torch.exp(logits).sum())


def naive(alpha: float) -> Callable[[Any, Batch], torch.Tensor]:
    def loss(network: Any, batch: Batch) -> torch.Tensor:
        starts = np.cumsum([0, *batch.sizes])
        order = [int(d) for d in torch.randperm(len(batch.sizes))]
        wide = torch.full((len(order),), alpha, dtype=torch.float64)
        shares = torch.distributions.Beta(wide, wide).sample()
        total = torch.zeros((), dtype=torch.float64)
        for place, one in enumerate(order):
            other, share = order[(place + 1) % len(order)], shares[place]
            count = min(batch.sizes[one], batch.sizes[other])
            for row in range(count):
                i, j = starts[one] + row, starts[other] + row
                logits = network((share * batch.x[i] + (1 - share) * batch.x[j])[None])[0]
                total += share * cross_entropy(logits, batch.y[i]) / count
                total += (1 - share) * cross_entropy(logits, batch.y[j]) / count
        return total / len(order)

    return loss


@pytest.mark.parametrize("alpha", [0.05, 0.2, 5.0])
def test_loss_and_gradients(
    make: Fixture, same: Fixture, sizes: tuple[int, ...], alpha: float
) -> None:
    same(make("Mixup", len(sizes), alpha=alpha), sizes, naive(alpha))


class Watching(nn.Module):
    """Notes what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.shown: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shown.append(x)
        return x * self.scale


def test_each_domain_meets_its_next_and_all_orders_come() -> None:
    # Domain d's images are the d-th unit vector: what is shown tells who was blended with whom.
    batch = Batch(torch.eye(3), torch.arange(3), [1, 1, 1])
    network = Watching()
    mixup = Mixup(network, {"alpha": 1.0}, 3)
    torch.manual_seed(0)
    for _ in range(60):
        mixup.loss(batch, 0)
    pairs = Counter()
    for shown in network.shown:
        met = [tuple(np.flatnonzero(row).tolist()) for row in shown]
        assert sorted(met) == [(0, 1), (0, 2), (1, 2)]
        pairs[tuple(met)] += 1
        torch.testing.assert_close(shown.sum(1), torch.ones(3))
    assert len(pairs) == 6


def test_shares_are_of_the_beta_distribution() -> None:
    batch = Batch(torch.eye(3)[:2], torch.arange(2), [1, 1])
    for alpha in (0.2, 4.0):
        network = Watching()
        mixup = Mixup(network, {"alpha": alpha}, 2)
        torch.manual_seed(0)
        for _ in range(1500):
            mixup.loss(batch, 0)
        shares = torch.cat([shown[:, 0] for shown in network.shown])
        assert shares.mean().item() == pytest.approx(0.5, abs=0.02)
        # Of Beta(a, a) it is 1 / (4 (2 a + 1)).
        assert shares.var().item() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.06)


def test_images_keep_their_layout_in_memory() -> None:
    seen = []

    class Images(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return x.mean((2, 3))

    x = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    Mixup(Images(), {"alpha": 1.0}, 2).loss(Batch(x, torch.zeros(6, dtype=torch.int64), [4, 2]), 0)
    assert seen == [True]


def test_the_released_code_always_draws_a_tenth() -> None:
    for seed in range(1, 20):
        for which in ("mild", "extreme", "short"):
            drawn = draw(Mixup.space, which, hparams_seed=seed, trial=0, preset="released")
            assert drawn["alpha"] == 0.1
            fixed = draw(Mixup.space, which, hparams_seed=seed, trial=0)
            assert 0.1 <= fixed["alpha"] <= 10
            assert fixed["alpha"] != 0.1
