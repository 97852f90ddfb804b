"""What every average of a run's iterates is: an observer whose memory is part of the run's state.

It costs a copy of the weights and some scoring, never a second training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from diwa.models.network import Network
from diwa.runs.paths import RunPaths
from diwa.runs.spec import RunSpec
from diwa.runs.store import Averaged, Row, Scored

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Watched:
    """The run that an average watches, and what the loop does for it.

    Args:
        spec: the run.
        paths: its files.
        device: where sums are kept.
        score: validates weights after some step; the network is left as it was.
        write: writes weights that can go into a soup: where to, weights, step, score if known.
    """

    spec: RunSpec
    paths: RunPaths
    device: torch.device
    score: Callable[[Tensors, int], Scored]
    write: Callable[[Path, Tensors, int, float | None], None]


class Average(ABC):
    """An average of iterates, which are the weights after each step.

    Args:
        watched: the run.
    """

    name: ClassVar[str]

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    @abstractmethod
    def after_step(self, step: int, network: Network) -> None:
        """An update is done."""

    def scored(self, step: int, network: Network) -> Scored | None:
        """How well the average does at a validation, for those that are scored every time."""
        del step, network
        return None

    @abstractmethod
    def after_validation(self, row: Row, network: Network) -> None:
        """The source domains were scored; the step's iterate has been taken in."""

    @abstractmethod
    def state(self) -> tuple[dict[str, torch.Tensor], Any]:
        """All that is needed to go on from here: tensors, and anything JSON can hold."""

    @abstractmethod
    def restore(self, tensors: Tensors, told: Any) -> None:
        """Takes over what `state` gave."""

    def files(self) -> set[Path]:
        """The files of weights that the state speaks of."""
        return set()

    @abstractmethod
    def finish(self, network: Network) -> Averaged:
        """The run is over: writes the weights, and says how they came out."""


class Iterates:
    """The sum of a network's weights after several steps, in float64.

    Args:
        device: where it is kept.

    Example:
        >>> total = Iterates(torch.device("cpu"))
        >>> total.add({"w": torch.tensor([1.0]), "n": torch.tensor(3)})
        >>> total.add({"w": torch.tensor([2.0]), "n": torch.tensor(3)})
        >>> total.mean({"w": torch.tensor([2.0]), "n": torch.tensor(3)})
        {'w': tensor([1.5000]), 'n': tensor(3)}
    """

    def __init__(self, device: torch.device) -> None:
        self.count = 0
        self._device = device
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, weights: Tensors) -> None:
        """Takes in the weights as they are now."""
        floating = {
            name: tensor.to(self._device)
            for name, tensor in weights.items()
            if tensor.is_floating_point()
        }
        if not self._sums:
            self._sums = {
                name: torch.zeros_like(tensor, dtype=torch.float64)
                for name, tensor in floating.items()
            }
        totals = [self._sums[name] for name in floating]
        torch._foreach_add_(totals, list(floating.values()))  # pyright: ignore[reportPrivateImportUsage]
        self.count += 1

    def mean(self, weights: Tensors) -> dict[str, torch.Tensor]:
        """The mean, in the kinds of `weights`, whose integers it takes over."""
        return mean_of(self._sums, self.count, weights)

    def clear(self) -> None:
        """Starts anew."""
        self.count = 0
        self._sums = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The sums, to be saved with `count`."""
        return dict(self._sums)

    def restore(self, tensors: Tensors, count: int) -> None:
        """Takes over saved sums."""
        self.count = count
        self._sums = {name: tensor.to(self._device) for name, tensor in tensors.items()}


def mean_of(sums: Tensors, count: int, weights: Tensors) -> dict[str, torch.Tensor]:
    """Sums over a count, as `weights` are: of their kinds, where they are, with their integers."""
    return {
        # The kind first: Apple's GPU has no float64.
        name: (sums[name] / count).to(tensor.dtype).to(tensor.device) if name in sums else tensor
        for name, tensor in weights.items()
    }
