"""A run's state between two steps: written while it goes on, read when it is resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from diwa.algorithms.base import Algorithm
from diwa.errors import StoreError
from diwa.runs.store import Row
from diwa.weights import files


@dataclass
class Position:
    """How far a run has come.

    Args:
        step: how many updates are done.
        losses: the sum of the training losses since the last validation.
        counted: how many losses that is.
        best_step: the step whose weights are the best so far; -1 before the first.
        best_score: the validation score there.
        history: the validations so far.
    """

    step: int = 0
    losses: float = 0.0
    counted: int = 0
    best_step: int = -1
    best_score: float = -1.0
    history: list[Row] = field(default_factory=list)


def save(path: Path, algorithm: Algorithm, position: Position) -> None:
    """Writes the state of a run, all in one file so that its parts can't disagree."""
    tensors = {f"module.{name}": tensor for name, tensor in algorithm.state_dict().items()}
    optimizer = algorithm.optimizer.state_dict()
    for number, held in optimizer["state"].items():
        for name, tensor in held.items():
            tensors[f"optimizer.{number}.{name}"] = tensor
    about = {
        "position": msgspec.to_builtins(position),
        "groups": msgspec.to_builtins(optimizer["param_groups"]),
    }
    files.write(path, tensors, about)


def load(path: Path, algorithm: Algorithm) -> Position:
    """Puts a run back where it was.

    Raises:
        StoreError: if the state is not one of this algorithm.
    """
    about = files.about(path)
    tensors = files.read(path)
    module = {n.removeprefix("module."): t for n, t in tensors.items() if n.startswith("module.")}
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, what = name.split(".", 2)
            state.setdefault(int(number), {})[what] = tensor
    try:
        algorithm.load_state_dict(module)
        algorithm.optimizer.load_state_dict({"state": state, "param_groups": about["groups"]})
        _lay_out(algorithm.optimizer)
        return msgspec.convert(about["position"], Position)
    except (KeyError, RuntimeError, ValueError, msgspec.ValidationError) as error:
        why = " ".join(str(error).split())[:160]
        raise StoreError(
            f"{path}: does not fit this run ({why})", remedy="remove it to start the run anew"
        ) from error


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Gives moments their parameter's layout in memory, which files don't keep.

    Fused Adam walks a parameter and its moments side by side, in the order of their bytes.
    """
    for parameter, held in optimizer.state.items():
        for name, tensor in held.items():
            if tensor.shape == parameter.shape:
                held[name] = torch.empty_like(parameter).copy_(tensor)
