"""What every algorithm must do, alone and wrapped."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diwa.algorithms import ALGORITHMS, WRAPPERS
from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.hparams import Values, draw
from diwa.data.benchmark import Benchmark
from diwa.models.network import ModelSpec, Network, build_network
from diwa.runs.store import Store
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec
from diwa.train import state
from diwa.train.loop import train_run
from diwa.train.state import Position
from diwa.train.workplace import Workplace

PLAIN = [name for name in ALGORITHMS.names() if name not in WRAPPERS]
NAMES = PLAIN + [f"{wrapper}+{name}" for wrapper in WRAPPERS.names() for name in PLAIN]

every_algorithm = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def network() -> Callable[[], Network]:
    """Builds a small network, each time the same."""
    spec = ModelSpec(backbone="test_resnet", size=(32, 32), channels=3, classes=("a", "b", "c"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = build_network(spec, weights="none").weights()

    def built() -> Network:
        made = build_network(spec, weights="none", dropout=0.3)
        made.load_weights(weights)
        return made

    return built


def hparams(name: str) -> dict[str, float]:
    """The defaults, but for what would take too many steps to happen."""
    space = ALGORITHMS.get(name).space
    values = draw(space, "default", hparams_seed=0, trial=0)
    sooner = {"lr": 1e-2, "anneal": 3, "mlp_width": 8, "grad_penalty": 0.1, "eta": 1.0}
    return values | {hparam: value for hparam, value in sooner.items() if hparam in space}


def make(
    name: str, network: nn.Module, domains: int, values: Values | None = None, seed: int = 0
) -> Algorithm:
    torch.manual_seed(seed)
    return ALGORITHMS.get(name)(network, values or hparams(name), domains)


def images(number: int, sizes: tuple[int, ...]) -> Batch:
    chance = torch.Generator().manual_seed(number)
    x = torch.randn(sum(sizes), 3, 32, 32, generator=chance)
    y = torch.randint(3, (sum(sizes),), generator=chance)
    return Batch(x.contiguous(memory_format=torch.channels_last), y, list(sizes))


def step(
    algorithm: Algorithm, number: int, sizes: tuple[int, ...], precision: str = "fp32"
) -> float:
    torch.manual_seed(number)
    return algorithm.update(images(number, sizes), number, autocast(precision)).item()


def autocast(precision: str) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


@every_algorithm
@pytest.mark.parametrize(
    ("sizes", "precision"),
    [((4, 4), "fp32"), ((5, 2, 3), "fp32"), ((6,), "fp32"), ((5, 3), "bf16")],
    ids=str,
)
def test_steps(
    name: str, sizes: tuple[int, ...], precision: str, network: Callable[[], Network]
) -> None:
    """With one, two and three domains, of one size or not: all weights move, none is lost."""
    algorithm = make(name, network(), len(sizes))
    before = {key: held.clone() for key, held in algorithm.network.named_parameters()}
    losses = [step(algorithm, number, sizes, precision) for number in range(3)]
    assert np.isfinite(losses).all()
    for key, held in algorithm.network.named_parameters():
        assert held.dtype == torch.float32
        assert held.isfinite().all(), key
        assert not torch.equal(held, before[key]), key


@every_algorithm
@pytest.mark.parametrize("at", [0, 1])
def test_steps_go_downhill(name: str, at: int, network: Callable[[], Network]) -> None:
    algorithm = make(name, network(), 2, {**hparams(name), "lr": 1e-3, "lr_d": 1e-3})
    held, losses = images(0, (6, 4)), []
    for _ in range(8):
        torch.manual_seed(0)
        losses.append(algorithm.update(held, at, nullcontext()).item())
    assert losses[-1] < losses[0] - 0.005


@every_algorithm
@pytest.mark.parametrize("at", [0, 1, 3])
def test_asking_for_the_loss_changes_nothing(
    name: str, at: int, network: Callable[[], Network]
) -> None:
    algorithm = make(name, network(), 2)
    before = {key: held.clone() for key, held in algorithm.state_dict().items()}
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        losses.append(algorithm.loss(images(0, (5, 3)), at).item())
    assert losses[0] == losses[1]
    assert all(torch.equal(before[key], held) for key, held in algorithm.state_dict().items())


class Immune(nn.Module):
    """A network that autocast leaves alone, of dyadic numbers so that bfloat16 would show."""

    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(0)
        self.scale = nn.Parameter(torch.rand(12, generator=chance))
        self.dropout = nn.Dropout(0.0)
        self.head = Exact(12, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :12] * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Exact(nn.Linear):
    """A layer that autocast leaves alone."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(input)


@every_algorithm
@pytest.mark.parametrize("at", [0, 1, 3])
def test_bfloat16_is_for_the_network_only(name: str, at: int) -> None:
    """Given the same logits and features, autocast changes no bit of loss or gradients."""
    found = []
    for precision in ("fp32", "bf16"):
        torch.manual_seed(0)
        algorithm = make(name, Immune(), 2)
        loss, _ = algorithm.backward(images(0, (5, 3)), at, autocast(precision))
        assert loss.dtype == torch.float32
        gradients = [held.grad for held in algorithm.parameters() if held.grad is not None]
        found.append([loss, *gradients])
    assert all(torch.equal(exact, cast) for exact, cast in zip(*found, strict=True))


@every_algorithm
def test_each_step_goes_through_the_encoder_once(name: str, network: Callable[[], Network]) -> None:
    """Forwards and backwards; each wrapper that needs another pass makes that twice."""
    algorithm: Any = make(name, network(), 3)
    passes = {"forward": 0, "backward": 0}

    def forward(module: nn.Module, given: object, out: torch.Tensor) -> None:
        passes["forward"] += 1
        if out.requires_grad:
            out.register_hook(backward)

    def backward(gradient: torch.Tensor) -> None:
        passes["backward"] += 1

    algorithm.network.encoder.register_forward_hook(forward)
    for number in range(6):
        step(algorithm, number, (4, 3, 2))
        most = 2 if "+" in name else 1
        assert passes["forward"] == most
        # None where a step trains something else than the network.
        assert passes["backward"] in ((0, most) if "DANN" in name else (most,))
        passes.update(forward=0, backward=0)


@every_algorithm
def test_all_draws_are_from_torchs_generator(name: str, network: Callable[[], Network]) -> None:
    ends = []
    for other in (0, 1):
        random.seed(other)
        np.random.seed(other)
        untouched = random.getstate(), np.random.randint(2**31)
        np.random.seed(other)
        algorithm = make(name, network(), 2)
        for number in range(3):
            step(algorithm, number, (4, 4))
        assert random.getstate() == untouched[0]
        assert np.random.randint(2**31) == untouched[1]
        ends.append(algorithm.state_dict())
    assert all(torch.equal(held, ends[1][key]) for key, held in ends[0].items())


@every_algorithm
def test_its_state_is_all_there_is(
    name: str, network: Callable[[], Network], tmp_path: Path
) -> None:
    """A run whose state is saved, forgotten and read after every step ends with the same bytes."""
    sizes, steps = (4, 3), 6
    whole = make(name, network(), 2, seed=0)
    for number in range(steps):
        step(whole, number, sizes)
    state.save(tmp_path / "whole", whole, Position(step=steps))
    for number in range(steps):
        part = make(name, network(), 2, seed=number)
        if number:
            assert state.load(tmp_path / "parts", part) == Position(step=number)
        step(part, number, sizes)
        state.save(tmp_path / "parts", part, Position(step=number + 1))
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


class _Died(BaseException):
    """As sudden as a kill."""


@every_algorithm
def test_a_run_that_was_stopped_ends_with_the_same_bytes(
    name: str,
    shapes: Benchmark,
    tiny_sweep: Callable[..., SweepSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = {"batch_size": 4, "dropout": 0.1, **hparams(name)}
    wanted |= {"batch_size": 4, "lr": 1e-3}
    given = {hparam: (float(value),) for hparam, value in wanted.items()}
    spec = plan(tiny_sweep(algorithm=name, hparams=given), shapes, device="cpu")[0]

    def place(folder: str) -> Workplace:
        store = Store(tmp_path / folder)
        return Workplace(benchmark=shapes, store=store, device="cpu", save_every=0)

    save, saved = state.save, 0

    def saving(*given: Any) -> None:
        nonlocal saved
        save(*given)
        saved += 1
        if saved in (2, 3):
            raise _Died

    whole = train_run(spec, place("whole"))
    monkeypatch.setattr(state, "save", saving)
    for _ in range(2):
        with pytest.raises(_Died):
            train_run(spec, place("parts"))
    parts = train_run(spec, place("parts"))
    for path in (whole.paths.weights, whole.paths.history, whole.paths.result):
        assert (parts.paths.folder / path.name).read_bytes() == path.read_bytes()
