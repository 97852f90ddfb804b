"""GroupDRO, against one domain at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from diwa.algorithms.base import Batch

Fixture = Callable[..., Any]


@pytest.mark.parametrize("eta", [0.01, 3.0])
def test_steps(make: Fixture, same_run: Fixture, sizes: tuple[int, ...], eta: float) -> None:
    def stepping(network: Any) -> Callable[[Batch, int], torch.Tensor]:
        adam = torch.optim.Adam(network.parameters(), lr=0.01)
        q = [1.0] * len(sizes)

        def update(batch: Batch, step: int) -> torch.Tensor:
            parts = zip(batch.x.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
            losses = [F.cross_entropy(network(x), y) for x, y in parts]
            for domain, loss in enumerate(losses):
                q[domain] *= math.exp(eta * loss.item())
            total = sum(q)
            q[:] = [weight / total for weight in q]
            combined = torch.stack([w * loss for w, loss in zip(q, losses, strict=True)]).sum()
            adam.zero_grad()
            combined.backward()
            adam.step()
            return combined

        return update

    same_run(make("GroupDRO", len(sizes), eta=eta), sizes, stepping)


def test_the_worst_domain_comes_to_count_most(make: Fixture, batch: Fixture) -> None:
    held = batch(0, (4, 4, 4))
    dro = make("GroupDRO", 3, eta=0.1, lr=0.0)
    losses = [
        F.cross_entropy(dro.network(x), y).item()
        for x, y in zip(held.x.split(4), held.y.split(4), strict=True)
    ]
    for step in range(200):
        dro.update(held, step, nullcontext())
    expected = torch.softmax(torch.tensor(losses, dtype=torch.float64) * 0.1 * 200, dim=0)
    torch.testing.assert_close(dro.q, expected)
    assert dro.q.argmax() == torch.tensor(losses).argmax()


def test_asking_for_the_loss_changes_no_weight(make: Fixture, batch: Fixture) -> None:
    held = batch(0, (4, 2))
    dro = make("GroupDRO", 2, eta=1.0)
    first, again = dro.loss(held, 0), dro.loss(held, 0)
    assert first == again
    assert dro.q.tolist() == [0.5, 0.5]
    dro.update(held, 0, nullcontext())
    assert dro.q.tolist() != [0.5, 0.5]
    assert dro.q.sum().item() == pytest.approx(1)
