"""DANN, against two networks and two Adams in a plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diwa.algorithms.base import Batch
from diwa.algorithms.dann import DANN
from diwa.algorithms.hparams import draw

Fixture = Callable[..., Any]
HPARAMS = {
    "lr": 0.01,
    "weight_decay": 0.01,
    "lambda": 0.7,
    "lr_d": 0.02,
    "weight_decay_d": 0.03,
    "beta1": 0.5,
    "mlp_width": 8,
    "mlp_depth": 4,
}


def naive(
    discriminator: nn.Module, d_steps: int, grad_penalty: float
) -> Callable[[Any], Callable[[Batch, int], torch.Tensor]]:
    def stepping(network: Any) -> Callable[[Batch, int], torch.Tensor]:
        theirs = copy.deepcopy(discriminator)
        of_network = torch.optim.Adam(
            network.parameters(), lr=0.01, weight_decay=0.01, betas=(0.5, 0.9)
        )
        of_theirs = torch.optim.Adam(
            theirs.parameters(), lr=0.02, weight_decay=0.03, betas=(0.5, 0.9)
        )
        taken = 0

        def update(batch: Batch, step: int) -> torch.Tensor:
            nonlocal taken
            taken += 1
            features = network.dropout(network.encoder(batch.x))
            logits = network.head(features)
            owners = [d for d, size in enumerate(batch.sizes) for _ in range(size)]
            guesses = theirs(features)
            telling = F.cross_entropy(guesses, torch.tensor(owners))
            slopes = [
                torch.autograd.grad(
                    torch.softmax(guesses[row], 0)[owner], features, create_graph=True
                )[0][row]
                for row, owner in enumerate(owners)
            ]
            telling = telling + grad_penalty * torch.stack([(s**2).sum() for s in slopes]).mean()
            of_network.zero_grad()
            of_theirs.zero_grad()
            if taken % (1 + d_steps) < d_steps:
                telling.backward()
                of_theirs.step()
                return telling
            loss = F.cross_entropy(logits, batch.y) - 0.7 * telling
            loss.backward()
            of_network.step()
            return loss

        return update

    return stepping


@pytest.mark.parametrize(
    ("d_steps", "grad_penalty", "dropout"), [(1, 0.0, 0.0), (3, 0.0, 0.0), (1, 2.0, 0.3)]
)
def test_steps(
    make: Fixture,
    same_run: Fixture,
    sizes: tuple[int, ...],
    d_steps: int,
    grad_penalty: float,
    dropout: float,
) -> None:
    more = {"d_steps": d_steps, "grad_penalty": grad_penalty}
    dann = make("DANN", len(sizes), dropout=dropout, **HPARAMS, **more)
    same_run(dann, sizes, naive(dann.discriminator, d_steps, grad_penalty), steps=9)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_the_discriminator_is_a_plain_stack(make: Fixture, depth: int) -> None:
    dann = make("DANN", 4, mlp_width=8, mlp_depth=depth, mlp_dropout=0.1)
    kinds = [type(layer) for layer in dann.discriminator]
    assert kinds == [nn.Linear, nn.Dropout, nn.ReLU] * (depth - 1) + [nn.Linear]
    linear = [layer for layer in dann.discriminator if isinstance(layer, nn.Linear)]
    widths = [(layer.in_features, layer.out_features) for layer in linear]
    assert widths == [(6, 8), *[(8, 8)] * (depth - 2), (8, 4)]
    assert {layer.p for layer in dann.discriminator if isinstance(layer, nn.Dropout)} == {0.1}


@pytest.mark.parametrize(
    ("d_steps", "expected"), [(0, "nnnn"), (1, "ndndnd"), (2, "dnddnddnd"), (3, "ddndddnd")]
)
def test_turns(make: Fixture, batch: Fixture, d_steps: int, expected: str) -> None:
    """One step of the network to `d_steps` of the discriminator; neither moves the other."""
    dann = make("DANN", 2, d_steps=d_steps, mlp_width=4)
    parts = {"n": dann.network, "d": dann.discriminator}
    turns = ""
    for step in range(len(expected)):
        before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        dann.update(batch(step, (4, 3)), step, nullcontext())
        for name, part in parts.items():
            if any(not torch.equal(now, before[name][key]) for key, now in weights(part)):
                turns += name
    assert turns == expected


def weights(part: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(part.state_dict().items())


def test_whose_turn_it_is_not_gets_no_gradient(make: Fixture, batch: Fixture) -> None:
    dann = make("DANN", 2, mlp_width=4, grad_penalty=1.0)
    dann.backward(batch(0, (4, 3)), 0, nullcontext())
    assert all(held.grad is None for held in dann.discriminator.parameters())
    dann.zero_grad()
    dann.backward(batch(0, (4, 3)), 1, nullcontext())
    assert all(held.grad is None for held in dann.network.parameters())
    assert all(held.grad is not None for held in dann.discriminator.parameters())


def test_the_released_code_draws_its_rates_as_domainbed_does_and_penalises_no_gradient() -> None:
    for seed in range(1, 20):
        released = draw(DANN.space, "mild", hparams_seed=seed, trial=0, preset="released")
        extreme = draw(DANN.space, "extreme", hparams_seed=seed, trial=0)
        assert released["grad_penalty"] == 0 < extreme["grad_penalty"]
        assert [released[n] for n in ("lr", "weight_decay")] == [
            extreme[n] for n in ("lr", "weight_decay")
        ]
        mild = draw(DANN.space, "mild", hparams_seed=seed, trial=0)
        assert mild["lr"] in (1e-5, 3e-5, 5e-5)


def test_domainbeds_gradient_penalty_has_no_gradient_for_domains_of_one_size() -> None:
    """Why the released code's draws of it come to nothing: softmax[:, labels], summed."""
    features = torch.randn(6, 4, requires_grad=True)
    guesses = nn.Linear(4, 3)(features).softmax(1)
    for owners, moves in (([0, 0, 1, 1, 2, 2], False), ([0, 0, 0, 1, 1, 2], True)):
        total = guesses[:, torch.tensor(owners)].sum()
        (slopes,) = torch.autograd.grad(total, features, retain_graph=True)
        assert (slopes.abs().max().item() > 1e-5) is moves
