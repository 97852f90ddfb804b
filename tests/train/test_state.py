"""The state of a run: what is written, what is read back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.hparams import draw
from diwa.errors import StoreError
from diwa.runs.store import Row
from diwa.train import state
from diwa.train.state import Position
from diwa.weights import files

AT = Position(
    step=4,
    losses=0.1,
    counted=2,
    best_step=2,
    best_score=0.5,
    history=[Row(step=2, loss=1.5, accuracy={"photo": 0.5})],
)


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(4, 2)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.features(x)))


def made(name: str, seed: int = 0, **hparams: float) -> Algorithm:
    torch.manual_seed(seed)
    kind = ALGORITHMS.get(name)
    values = {**draw(kind.space, "default", hparams_seed=0, trial=0), "lr": 0.1, **hparams}
    return kind(Headed(), values, 2)


def taken(algorithm: Algorithm, steps: range) -> Algorithm:
    for step in steps:
        chance = torch.Generator().manual_seed(step)
        batch = Batch(torch.randn(6, 3, generator=chance), torch.tensor([0, 1] * 3), [4, 2])
        algorithm.update(batch, step, nullcontext())
    return algorithm


def everything(algorithm: Algorithm) -> dict[str, Any]:
    """All numbers that an algorithm consists of."""
    held = {f"module {name}": tensor.tolist() for name, tensor in algorithm.state_dict().items()}
    for which, optimizer in algorithm.optimizers.items():
        described = optimizer.state_dict()
        # As JSON has them: Adam's betas come back as a list.
        held[f"{which} groups"] = msgspec.json.decode(
            msgspec.json.encode(described["param_groups"])
        )
        for number, tensors in described["state"].items():
            held |= {f"{which} {number} {name}": t.tolist() for name, t in tensors.items()}
    return held


@pytest.mark.parametrize("name", ["ERM", "DANN", "SAM+DANN", "Fishr"])
def test_everything_comes_back(name: str, tmp_path: Path) -> None:
    first = taken(made(name), range(4))
    state.save(tmp_path / "state", first, AT)
    second = made(name, seed=1)
    assert everything(second) != everything(first)
    assert state.load(tmp_path / "state", second) == AT
    assert everything(second) == everything(first)
    assert everything(taken(second, range(4, 8))) == everything(taken(first, range(4, 8)))


def as_before(path: Path, algorithm: Algorithm) -> None:
    """Writes a state as it was when every algorithm had one optimiser."""
    tensors = {f"module.{name}": tensor for name, tensor in algorithm.state_dict().items()}
    optimizer = algorithm.optimizer.state_dict()
    for number, held in optimizer["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in held.items()}
    groups = msgspec.to_builtins(optimizer["param_groups"])
    files.write(path, tensors, {"position": msgspec.to_builtins(AT), "groups": groups})


def test_a_state_from_before_there_were_several_optimisers(tmp_path: Path) -> None:
    first = taken(made("ERM"), range(4))
    as_before(tmp_path / "state", first)
    second = made("ERM", seed=1)
    assert state.load(tmp_path / "state", second) == AT
    assert everything(second) == everything(first)


def test_an_optimiser_that_has_not_stepped_yet(tmp_path: Path) -> None:
    first = taken(made("DANN"), range(1))
    assert not first.optimizers["discriminator"].state
    state.save(tmp_path / "state", first, AT)
    second = made("DANN", seed=1)
    state.load(tmp_path / "state", second)
    assert everything(taken(second, range(1, 5))) == everything(taken(first, range(1, 5)))


def without_groups(path: Path) -> None:
    said = files.about(path)
    del said["more_groups"]
    files.write(path, files.read(path), said)


def without_optimiser(path: Path) -> None:
    tensors = {n: t for n, t in files.read(path).items() if not n.startswith("discriminator.")}
    said = files.about(path)
    said["more_groups"] = {"other": said["more_groups"]["discriminator"]}
    files.write(path, tensors, said)


def with_more(path: Path) -> None:
    files.write(path, {**files.read(path), "other.0.step": torch.zeros(())}, files.about(path))


@pytest.mark.parametrize(
    ("spoil", "settings", "moments"),
    [
        (without_groups, ["optimizer"], ["discriminator", "optimizer"]),
        (without_optimiser, ["optimizer", "other"], ["optimizer"]),
        (with_more, ["discriminator", "optimizer"], ["discriminator", "optimizer", "other"]),
    ],
)
def test_other_optimisers_than_the_algorithms_are_refused(
    spoil: Callable[[Path], None], settings: list[str], moments: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "state"
    state.save(path, taken(made("DANN"), range(4)), AT)
    spoil(path)
    with pytest.raises(StoreError) as caught:
        state.load(path, made("DANN"))
    assert str(caught.value) == (
        f"{path}: does not fit this run (settings of {settings} and moments of {moments}, "
        "for ['discriminator', 'optimizer']); remove it to start the run anew"
    )


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state.save(path, taken(made("ERM"), range(2)), AT)
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(
            StoreError, match=r"state: does not fit this run .*; remove it to start"
        ):
            state.load(path, made("ERM"))


def test_the_state_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state.save(path, taken(made("ERM"), range(2)), AT)
    for name in ("SAM", "DANN", "GroupDRO"):
        with pytest.raises(StoreError, match=r"does not fit this run \(Error"):
            state.load(path, made(name))
