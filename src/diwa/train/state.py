"""A run's state between two steps: written while it goes on, read when it is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from diwa.algorithms.base import Algorithm
from diwa.errors import StoreError
from diwa.runs.store import Row
from diwa.train.averages.base import Average
from diwa.weights import files

#: The optimiser that every algorithm has.
_FIRST = "optimizer"
#: What tensors of averages begin with, which no optimiser's name does.
_AVERAGE = "average-"


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


def save(
    path: Path, algorithm: Algorithm, position: Position, averages: Sequence[Average] = ()
) -> None:
    """Writes the state of a run, all in one file so that its parts can't disagree."""
    tensors = {f"module.{name}": tensor for name, tensor in algorithm.state_dict().items()}
    groups = {}
    for which, optimizer in algorithm.optimizers.items():
        assert which.isidentifier(), which
        assert which != "module", which
        described = optimizer.state_dict()
        for number, held in described["state"].items():
            for name, tensor in held.items():
                tensors[f"{which}.{number}.{name}"] = tensor
        groups[which] = msgspec.to_builtins(described["param_groups"])
    about = {
        "position": msgspec.to_builtins(position),
        # Apart from the others, as it was when there was no other.
        "groups": groups.pop(_FIRST),
        "more_groups": groups,
        "averages": {},
    }
    for average in averages:
        held, about["averages"][average.name] = average.state()
        tensors |= {f"{_AVERAGE}{average.name}.{name}": tensor for name, tensor in held.items()}
    files.write(path, tensors, about)


def load(path: Path, algorithm: Algorithm, averages: Sequence[Average] = ()) -> Position:
    """Puts a run back where it was.

    Raises:
        StoreError: if the state is damaged, or not one of this algorithm.
    """
    parts: dict[str, dict[str, torch.Tensor]] = {}
    try:
        about = files.about(path)
        for name, tensor in files.read(path).items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        for average in averages:
            held = parts.pop(f"{_AVERAGE}{average.name}", {})
            average.restore(held, about["averages"][average.name])
        algorithm.load_state_dict(parts.pop("module", {}))
        groups = {_FIRST: about["groups"], **about.get("more_groups", {})}
        optimizers = algorithm.optimizers
        # An optimiser that has not stepped yet has groups, but no tensors.
        if groups.keys() != optimizers.keys() or not parts.keys() <= optimizers.keys():
            has = f"settings of {sorted(groups)} and moments of {sorted(parts)}"
            raise ValueError(f"{has}, for {sorted(optimizers)}")
        for which, optimizer in optimizers.items():
            moments = _by_number(parts.get(which, {}))
            optimizer.load_state_dict({"state": moments, "param_groups": groups[which]})
            _lay_out(optimizer)
        return msgspec.convert(about["position"], Position)
    except (KeyError, RuntimeError, ValueError, msgspec.ValidationError) as error:
        why = " ".join(str(error).split())[:160]
        raise StoreError(
            f"{path}: does not fit this run ({why})", remedy="remove it to start the run anew"
        ) from error


def _by_number(tensors: dict[str, torch.Tensor]) -> dict[int, dict[str, Any]]:
    """What an optimiser holds of each parameter, from names such as "3.exp_avg"."""
    held: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        number, what = name.split(".", 1)
        held.setdefault(int(number), {})[what] = tensor
    return held


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Gives moments their parameter's layout in memory, which files don't keep.

    Fused Adam walks a parameter and its moments side by side, in the order of their bytes.
    """
    for parameter, held in optimizer.state.items():
        for name, tensor in held.items():
            if tensor.shape == parameter.shape:
                held[name] = torch.empty_like(parameter).copy_(tensor)
