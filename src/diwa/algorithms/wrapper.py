"""The base of what wraps an algorithm, whichever it is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property

import torch
from torch import nn

from diwa.algorithms.base import Algorithm, Batch, State
from diwa.algorithms.hparams import Values
from diwa.errors import SpecError


class Wrapper(Algorithm):
    """Steps another algorithm in a way of its own: override `update`.

    In its class, `space` holds the hyperparameters that it adds.

    Args:
        inner: the algorithm.
        hparams: values for the wrapper's space and the algorithm's.

    Raises:
        SpecError: if the algorithm has a way to step of its own.
    """

    def __init__(self, inner: Algorithm, hparams: Values) -> None:
        nn.Module.__init__(self)
        if type(inner).update is not Algorithm.update:
            raise SpecError(
                f"{type(self).__name__}+{type(inner).__name__}: the latter steps in a way of its "
                "own, which can't be wrapped",
                remedy="wrap another algorithm",
            )
        self.inner = inner
        self.hparams = dict(hparams)
        self.domains = inner.domains
        # Past Module's own setter: the network would be in the saved state twice.
        object.__setattr__(self, "network", inner.network)

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The algorithm's."""
        return self.inner.optimizer

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The algorithm's."""
        return self.inner.optimizers

    def optimizer_at(self, step: int) -> torch.optim.Optimizer:
        """The algorithm's."""
        return self.inner.optimizer_at(step)

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """The algorithm's."""
        return self.inner.loss(batch, step)

    def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
        """The algorithm's."""
        return self.inner.evaluate(batch, step)

    def backward(
        self, batch: Batch, step: int, autocast: AbstractContextManager[object]
    ) -> tuple[torch.Tensor, State]:
        """The algorithm's."""
        return self.inner.backward(batch, step, autocast)

    def finish(self, step: int, state: State) -> None:
        """The algorithm's."""
        self.inner.finish(step, state)
