"""SAM, against weights moved and moved back by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diwa.algorithms import ALGORITHMS, WRAPPERS
from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.erm import ERM
from diwa.algorithms.hparams import draw
from diwa.algorithms.sam import SAM
from diwa.errors import SpecError

Fixture = Callable[..., Any]


def naive_step(
    network: nn.Module, loss: Callable[[], torch.Tensor], adam: torch.optim.Optimizer, rho: float
) -> torch.Tensor:
    """One step of SAM, `loss` drawing the same numbers each time."""
    weights = list(network.parameters())
    state = torch.random.get_rng_state()
    first = loss()
    gradients = torch.autograd.grad(first, weights)
    norm = torch.sqrt(sum(((g**2).sum() for g in gradients), start=torch.zeros(()).double()))
    before = [weight.detach().clone() for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.data += rho * gradient / norm
    torch.random.set_rng_state(state)
    second = torch.autograd.grad(loss(), weights)
    for weight, kept, gradient in zip(weights, before, second, strict=True):
        weight.data = kept
        weight.grad = gradient
    adam.step()
    return first


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("rho", [0.0, 0.05, 2.0])
def test_erm(
    make: Fixture, same_run: Fixture, sizes: tuple[int, ...], rho: float, dropout: float
) -> None:
    def stepping(network: Any) -> Callable[[Batch, int], torch.Tensor]:
        adam = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.1)

        def update(batch: Batch, step: int) -> torch.Tensor:
            return naive_step(
                network, lambda: F.cross_entropy(network(batch.x), batch.y), adam, rho
            )

        return update

    sam = make("SAM+ERM", len(sizes), dropout=dropout, rho=rho, weight_decay=0.1)
    same_run(sam, sizes, stepping)


def test_groupdro_moves_its_weights_once_per_step(make: Fixture, same_run: Fixture) -> None:
    """By the losses at the weights themselves, as it would alone."""

    def stepping(network: Any) -> Callable[[Batch, int], torch.Tensor]:
        adam = torch.optim.Adam(network.parameters(), lr=0.01)
        q = torch.full((2,), 0.5, dtype=torch.float64)

        def update(batch: Batch, step: int) -> torch.Tensor:
            nonlocal q
            found = []

            def loss() -> torch.Tensor:
                parts = zip(batch.x.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
                losses = torch.stack([F.cross_entropy(network(x), y) for x, y in parts])
                new = q * torch.exp(2.0 * losses.detach())
                found.append(new / new.sum())
                return losses @ found[-1]

            given = naive_step(network, loss, adam, 0.1)
            q = found[0]
            return given

        return update

    same_run(make("SAM+GroupDRO", 2, rho=0.1, eta=2.0), (5, 3), stepping)


def test_the_weights_are_restored_to_the_bit_before_the_step(make: Fixture, batch: Fixture) -> None:
    sam = make("SAM", 2, lr=0.0, rho=0.3)
    before = copy.deepcopy(sam.network.state_dict())
    for step in range(5):
        sam.update(batch(step, (4, 3)), step, nullcontext())
    assert all(torch.equal(before[name], held) for name, held in sam.network.state_dict().items())


def test_the_weights_are_restored_if_the_second_pass_fails(make: Fixture, batch: Fixture) -> None:
    sam = make("SAM", 2, rho=0.3)
    before = copy.deepcopy(sam.network.state_dict())
    passes = []

    def failing(module: nn.Module, given: object) -> None:
        passes.append(module)
        if len(passes) == 2:
            raise RuntimeError("out of memory")

    sam.network.register_forward_pre_hook(failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        sam.update(batch(0, (4, 3)), 0, nullcontext())
    assert all(torch.equal(before[name], held) for name, held in sam.network.state_dict().items())


def test_both_passes_drop_the_same_units(make: Fixture, batch: Fixture) -> None:
    sam = make("SAM", 2, dropout=0.5, rho=0.05)
    masks = []
    sam.network.dropout.register_forward_hook(
        lambda module, given, out: masks.append((out == 0).tolist())
    )
    for step in range(3):
        torch.manual_seed(step)
        sam.update(batch(0, (4, 3)), step, nullcontext())
    assert masks[0] == masks[1]
    assert masks[2] == masks[3]
    assert masks[1] != masks[2]


def test_draws_go_on_as_without_it(make: Fixture, batch: Fixture) -> None:
    numbers = []
    for name in ("ERM", "SAM"):
        algorithm = make(name, 2, dropout=0.5)
        torch.manual_seed(5)
        algorithm.update(batch(0, (4, 3)), 0, nullcontext())
        numbers.append(torch.rand(3).tolist())
    assert numbers[0] == numbers[1]


def test_a_gradient_of_zero_moves_nothing() -> None:
    class Flat(ERM):
        def loss(self, batch: Batch, step: int) -> torch.Tensor:
            return 0 * super().loss(batch, step)

    flat = SAM(Flat(nn.Linear(2, 2), {"lr": 0.1, "weight_decay": 0.0}, 1), {"rho": 0.05})
    flat.update(Batch(torch.ones(2, 2), torch.tensor([0, 1]), [2]), 0, nullcontext())
    assert all(held.isfinite().all() for held in flat.network.parameters())


def test_a_frozen_part_stays(make: Fixture, batch: Fixture) -> None:
    sam = make("SAM", 2)
    for held in sam.network.encoder.parameters():
        held.requires_grad = False
    before = copy.deepcopy(sam.network.state_dict())
    sam.update(batch(0, (4, 3)), 0, nullcontext())
    changed = {
        n for n, held in sam.network.state_dict().items() if not torch.equal(held, before[n])
    }
    assert changed == {"head.weight", "head.bias"}


def test_rho_is_drawn_as_the_protocol_says() -> None:
    space = ALGORITHMS.get("SAM").space
    drawn = {draw(space, "mild", hparams_seed=s, trial=0)["rho"] for s in range(80)}
    assert drawn == {0.001, 0.002, 0.005, 0.01, 0.02, 0.05}


class Odd(ERM):
    def update(self, batch: Batch, step: int, autocast: object) -> torch.Tensor:
        return torch.zeros(())


def test_an_algorithm_with_a_way_to_step_of_its_own_is_refused(make: Fixture) -> None:
    with pytest.raises(SpecError) as caught:
        SAM(Odd(nn.Linear(2, 2), {}, 1), {"rho": 0.1})
    assert str(caught.value) == (
        "SAM+Odd: the latter steps in a way of its own, which can't be wrapped; "
        "wrap another algorithm"
    )


class TestNames:
    def test_a_lone_wrapper_wraps_erm(self) -> None:
        assert ALGORITHMS.get("SAM") == ALGORITHMS.get("SAM+ERM")
        assert ALGORITHMS.get("SAM+ERM").name == "SAM+ERM"

    def test_the_spaces_are_joined(self) -> None:
        kind = ALGORITHMS.get("SAM+CORAL")
        assert kind.space == {**ALGORITHMS.get("CORAL").space, **SAM.space}

    def test_it_makes_an_algorithm(self, make: Fixture) -> None:
        made = make("SAM+CORAL", 2, gamma=2.0, rho=0.1)
        assert isinstance(made, SAM)
        assert isinstance(made, Algorithm)
        assert type(made.inner).__name__ == "CORAL"
        assert made.inner.hparams["gamma"] == 2.0
        assert made.hparams["rho"] == 0.1

    def test_the_network_is_saved_once(self, make: Fixture) -> None:
        names = [name.rpartition("network.")[2] for name in make("SAM", 2).state_dict()]
        assert sorted(names) == sorted(make("ERM", 2).network.state_dict())

    def test_names_are_known(self) -> None:
        assert ALGORITHMS.names() == [
            "CORAL", "DANN", "ERM", "Fishr", "GroupDRO", "IRM", "MMD", "Mixup", "SAM", "VREx",
        ]  # fmt: skip
        assert WRAPPERS.names() == ["SAM"]
        for name in ("ERM", "SAM", "SAM+ERM", "SAM+Fishr"):
            assert name in ALGORITHMS
        for name in ("SAM+", "+ERM", "ERM+SAM", "CORAL+ERM", "sam", ""):
            assert name not in ALGORITHMS

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("CORL", "no algorithm is called 'CORL'; did you mean 'CORAL'? known: CORAL, DANN, "),
            ("SAM+CORL", "no algorithm is called 'CORL'; did you mean 'CORAL'? known: CORAL, "),
            ("SAN+CORAL", "no wrapper is called 'SAN'; did you mean 'SAM'? known: SAM"),
            ("SMA", "no algorithm is called 'SMA'; did you mean 'SAM'? known: CORAL, DANN, "),
            ("CORAL+SAM", "no wrapper is called 'CORAL'; known: SAM"),
            ("SAM+SAM", "SAM+SAM+ERM: both sides of the first + have a hyperparameter 'rho'"),
        ],
    )
    def test_a_typo_gets_a_suggestion(self, name: str, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            ALGORITHMS.get(name)
        assert str(caught.value).startswith(message)
