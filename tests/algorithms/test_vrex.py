"""V-REx, against the variance of losses written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from diwa.algorithms.base import Batch

Fixture = Callable[..., Any]


def naive(weight: float) -> Callable[[Any, Batch], torch.Tensor]:
    def loss(network: Any, batch: Batch) -> torch.Tensor:
        parts = zip(batch.x.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
        losses = [F.cross_entropy(network(x), y) for x, y in parts]
        mean = torch.stack(losses).mean()
        squares = [(loss - mean) ** 2 for loss in losses]
        return mean + weight * torch.stack(squares).sum() / len(losses)

    return loss


@pytest.mark.parametrize(("step", "weight"), [(0, 1.0), (4, 1.0), (5, 30.0), (6, 30.0)])
def test_loss_and_gradients(
    make: Fixture, same: Fixture, sizes: tuple[int, ...], step: int, weight: float
) -> None:
    vrex = make("VREx", len(sizes), **{"lambda": 30.0, "anneal": 5})
    same(vrex, sizes, naive(weight), step)


@pytest.mark.parametrize("anneal", [0, 3])
def test_steps_forget_adams_moments_when_the_weight_changes(
    make: Fixture, same_run: Fixture, anneal: int
) -> None:
    def stepping(network: Any) -> Callable[[Batch, int], torch.Tensor]:
        adam = torch.optim.Adam(network.parameters(), lr=0.01)

        def update(batch: Batch, step: int) -> torch.Tensor:
            nonlocal adam
            if step == anneal:
                adam = torch.optim.Adam(network.parameters(), lr=0.01)
            loss = naive(1.0 if step < anneal else 30.0)(network, batch)
            adam.zero_grad()
            loss.backward()
            adam.step()
            return loss

        return update

    same_run(make("VREx", 3, **{"lambda": 30.0, "anneal": anneal}), (4, 2, 5), stepping)
