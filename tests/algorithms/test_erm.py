"""ERM: the mean cross-entropy, and the plain step of Adam that all algorithms share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.base import Algorithm, Batch, Remembering, State
from diwa.algorithms.erm import ERM, SHARED
from diwa.algorithms.hparams import Values

HPARAMS = {"lr": 0.01, "weight_decay": 0.1, "dropout": 0.0, "batch_size": 4}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(number: int, sizes: tuple[int, ...] = (4, 4, 4)) -> Batch:
    chance = torch.Generator().manual_seed(number)
    count = sum(sizes)
    return Batch(
        torch.randn(count, 5, generator=chance),
        torch.randint(3, (count,), generator=chance),
        list(sizes),
    )


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [held.detach().clone() for held in module.parameters()]


def test_the_loss_is_the_mean_of_the_domains_losses() -> None:
    erm, held = ERM(network(), HPARAMS, domains=3), batch(1)
    logs = torch.log_softmax(erm.network(held.x), dim=1)
    by_domain = [
        -sum(logs[row, held.y[row]] for row in range(start, start + 4)) / 4 for start in (0, 4, 8)
    ]
    torch.testing.assert_close(erm.loss(held, step=0), torch.stack(by_domain).mean())  # type: ignore[arg-type]


def test_of_unequal_domains_every_image_counts_the_same() -> None:
    erm, held = ERM(network(), HPARAMS, domains=2), batch(1, (9, 3))
    logs = torch.log_softmax(erm.network(held.x), dim=1)
    expected = -logs[torch.arange(12), held.y].sum() / 12
    torch.testing.assert_close(erm.loss(held, step=0), expected)


def test_steps_are_adams_with_its_own_weight_decay() -> None:
    # Adam by hand, decay added to the gradient (not decoupled, as AdamW would have it).
    erm = ERM(network(), HPARAMS, domains=3)
    theirs = network().double()
    first = [torch.zeros_like(p) for p in theirs.parameters()]
    second = [torch.zeros_like(p) for p in theirs.parameters()]
    for step in range(6):
        held = batch(step)
        got = erm.update(held, step, nullcontext())
        loss = F.cross_entropy(theirs(held.x.double()), held.y)
        torch.testing.assert_close(got.double(), loss.detach(), rtol=1e-5, atol=1e-6)
        gradients = torch.autograd.grad(loss, list(theirs.parameters()))
        for at, (held_p, gradient) in enumerate(zip(theirs.parameters(), gradients, strict=True)):
            full = gradient + 0.1 * held_p.detach()
            first[at] = 0.9 * first[at] + 0.1 * full
            second[at] = 0.999 * second[at] + 0.001 * full**2
            mean, spread = (
                first[at] / (1 - 0.9 ** (step + 1)),
                second[at] / (1 - 0.999 ** (step + 1)),
            )
            held_p.data -= 0.01 * mean / (spread.sqrt() + 1e-8)
    for ours, expected in zip(weights(erm.network), weights(theirs), strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_loss_that_is_given_is_a_number_from_before_the_step() -> None:
    erm, held = ERM(network(), HPARAMS, domains=3), batch(1)
    before = erm.loss(held, step=0).item()
    given = erm.update(held, 0, nullcontext())
    assert given.item() == before
    assert not given.requires_grad
    assert erm.loss(held, step=1).item() < before


def test_a_frozen_parameter_stays() -> None:
    held = network()
    for frozen in held[0].parameters():
        frozen.requires_grad = False
    before = weights(held)
    ERM(held, HPARAMS, domains=3).update(batch(1), 0, nullcontext())
    changed = [not torch.equal(a, b) for a, b in zip(before, weights(held), strict=True)]
    assert changed == [False, False, True, True]


def test_the_loss_is_float32_under_bfloat16() -> None:
    erm, held = ERM(network(), HPARAMS, domains=3), batch(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = erm.loss(held, step=0)
        logits = erm.network(held.x)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert loss.item() == F.cross_entropy(logits.float(), held.y).item()
    given = erm.update(held, 0, torch.autocast("cpu", torch.bfloat16))
    assert given.item() == loss.item()
    assert {held.dtype for held in weights(erm.network)} == {torch.float32}


def test_the_loss_is_float32_of_a_network_that_is_not() -> None:
    class Half(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).bfloat16()

    erm, held = ERM(Half(nn.Linear(5, 3)), HPARAMS, domains=3), batch(1)
    loss = erm.loss(held, step=0)
    assert loss.dtype == torch.float32
    assert loss.item() == F.cross_entropy(erm.network(held.x).float(), held.y).item()


def test_it_knows_its_hyperparameters_and_keeps_a_copy() -> None:
    given = dict(HPARAMS)
    erm = ERM(network(), given, domains=3)
    given["lr"] = 1.0
    assert erm.hparams == HPARAMS
    (group,) = erm.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.1)
    assert (group["betas"], group["eps"], group["amsgrad"]) == ((0.9, 0.999), 1e-8, False)
    assert erm.domains == 3
    assert ERM.space is SHARED
    assert ALGORITHMS.get("ERM") is ERM


def test_what_is_saved_is_the_network() -> None:
    erm = ERM(network(), HPARAMS, domains=3)
    assert set(erm.state_dict()) == {f"network.{name}" for name in network().state_dict()}


def test_an_algorithm_without_a_loss_is_none() -> None:
    class Idle(Algorithm):
        space = SHARED

    with pytest.raises(TypeError, match="loss"):
        Idle(network(), HPARAMS, domains=1)  # type: ignore[abstract]


class Counting(Remembering):
    """Weighs the loss with the number of steps so far."""

    space = SHARED
    count: torch.Tensor

    def __init__(self, network: nn.Module, hparams: Values, domains: int) -> None:
        super().__init__(network, hparams, domains)
        self.register_buffer("count", torch.ones(()))

    def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
        loss = F.cross_entropy(self.network(batch.x), batch.y)
        return self.count * loss, {"count": self.count + 1}


def test_what_an_algorithm_remembers_is_saved_and_kept_once_per_step() -> None:
    still = {**HPARAMS, "lr": 0.0}
    counting, plain = Counting(network(), still, domains=3), ERM(network(), still, domains=3)
    for step in range(3):
        held = batch(step)
        assert counting.loss(held, step) == counting.loss(held, step)
        given = counting.update(held, step, nullcontext())
        expected = (step + 1) * plain.update(held, step, nullcontext())
        torch.testing.assert_close(given, expected)
        assert counting.state_dict()["count"] == step + 2


def test_what_an_algorithm_remembers_has_a_buffer() -> None:
    class Lost(Counting):
        def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
            loss, _ = super().evaluate(batch, step)
            return loss, {"cuont": self.count}

    with pytest.raises(AttributeError, match="cuont"):
        Lost(network(), HPARAMS, domains=3).update(batch(0), 0, nullcontext())


def test_an_own_update_is_used() -> None:
    class Idle(ERM):
        def update(
            self, batch: Batch, step: int, autocast: AbstractContextManager[object]
        ) -> torch.Tensor:
            return torch.full((), 7.0)

    idle = Idle(network(), HPARAMS, domains=3)
    assert idle.update(batch(0), 0, nullcontext()) == 7
