"""IRM, against gradients with respect to a factor of the logits, found by autograd."""

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
from diwa.algorithms.hparams import checked
from diwa.algorithms.irm import IRM, penalty
from diwa.errors import SpecError

Fixture = Callable[..., Any]


def slope(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    factor = torch.ones((), dtype=logits.dtype, requires_grad=True)
    loss = F.cross_entropy(logits * factor, labels)
    return torch.autograd.grad(loss, factor, create_graph=True)[0]


def naive_penalty(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return slope(logits[::2], labels[::2]) * slope(logits[1::2], labels[1::2])


def naive(weight: float) -> Callable[[Any, Batch], torch.Tensor]:
    def loss(network: Any, batch: Batch) -> torch.Tensor:
        losses, penalties = [], []
        for x, y in zip(batch.x.split(batch.sizes), batch.y.split(batch.sizes), strict=True):
            logits = network(x)
            losses.append(F.cross_entropy(logits, y))
            penalties.append(naive_penalty(logits, y))
        return torch.stack(losses).mean() + weight * torch.stack(penalties).mean()

    return loss


@pytest.mark.parametrize(("step", "weight"), [(0, 1.0), (4, 1.0), (5, 30.0), (6, 30.0)])
def test_loss_and_gradients(
    make: Fixture, same: Fixture, sizes: tuple[int, ...], step: int, weight: float
) -> None:
    irm = make("IRM", len(sizes), **{"lambda": 30.0, "anneal": 5})
    same(irm, sizes, naive(weight), step)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(2, 9),
    classes=st.integers(2, 6),
    size=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 10**6),
)
def test_any_logits(rows: int, classes: int, size: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    logits = torch.from_numpy(chance.normal(size=(rows, classes)) * size)
    labels = torch.from_numpy(chance.integers(classes, size=rows))
    expected = naive_penalty(logits, labels).detach()
    torch.testing.assert_close(penalty(logits, labels), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("anneal", [0, 3, 100])
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

    irm = make("IRM", 2, **{"lambda": 30.0, "anneal": anneal})
    same_run(irm, (5, 3), stepping)


def test_a_batch_of_single_images_is_refused() -> None:
    with pytest.raises(SpecError, match="batch_size=1; give a whole number from 2 up"):
        checked(IRM.space, {"batch_size": 1}, algorithm="IRM")
