"""What every algorithm is: a loss for a batch, and by default a plain step of Adam on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from diwa.algorithms.hparams import Space, Values

#: What some of an algorithm's buffers become once a step is done, by name.
State = Mapping[str, torch.Tensor]


class Batch(NamedTuple):
    """Images and labels of all source domains, one domain after the other."""

    x: torch.Tensor
    """Normalised images of shape (N, C, H, W)."""
    y: torch.Tensor
    """Labels of shape (N,)."""
    sizes: list[int]
    """How many of the N belong to each domain."""


class Algorithm(nn.Module, ABC):
    """The base of every algorithm: override `loss`.

    A step has two halves, so that a wrapper can come between them: `backward` finds gradients and
    changes nothing else, `finish` makes use of them. Override `finish` to do more at a step's end,
    or `update` to step in a wholly different way, which then can't be wrapped.

    Anything kept in buffers or parameters of its own is part of a run's saved state. Random
    numbers come from torch's global generator, which is seeded before each step.

    Args:
        network: what is trained.
        hparams: values for everything in `space`.
        domains: how many source domains there are.
    """

    space: ClassVar[Space]

    def __init__(self, network: nn.Module, hparams: Values, domains: int) -> None:
        super().__init__()
        self.network = network
        self.hparams = dict(hparams)
        self.domains = domains

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Made when first needed, so that a subclass's own modules are there by then."""
        return self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adam with a constant learning rate, as the protocol has it."""
        return adam(
            self.network.parameters(),
            lr=self.hparams["lr"],
            weight_decay=self.hparams["weight_decay"],
        )

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All of them by name, as a run's state holds them; override if there are more."""
        return {"optimizer": self.optimizer}

    def optimizer_at(self, step: int) -> torch.optim.Optimizer:
        """The one that takes this step; override if there are more."""
        del step
        return self.optimizer

    @abstractmethod
    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """What is minimised, as a scalar in float32 or wider; changes nothing."""

    def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
        """The loss, and what buffers become once this step is done; changes nothing."""
        return self.loss(batch, step), {}

    def backward(
        self, batch: Batch, step: int, autocast: AbstractContextManager[object]
    ) -> tuple[torch.Tensor, State]:
        """The gradients at the weights as they are; gives what `evaluate` does, detached."""
        with autocast:
            loss, state = self.evaluate(batch, step)
        self.optimizer_at(step).zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach(), state

    def finish(self, step: int, state: State) -> None:
        """Steps along the gradients that are there, and keeps the state."""
        self.optimizer_at(step).step()
        for name, value in state.items():
            self.get_buffer(name).copy_(value)

    def update(
        self, batch: Batch, step: int, autocast: AbstractContextManager[object]
    ) -> torch.Tensor:
        """One step; gives the loss."""
        loss, state = self.backward(batch, step, autocast)
        self.finish(step, state)
        return loss


class Remembering(Algorithm):
    """The base of those that keep something from step to step: override `evaluate`.

    What they keep is in buffers, and `evaluate` gives their next values without setting them: a
    wrapper may ask for the loss twice in a step.
    """

    @abstractmethod
    def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
        """The loss, and what buffers become once this step is done; changes nothing."""

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """What is minimised."""
        return self.evaluate(batch, step)[0]


def adam(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Adam, fused where the device has that."""
    held = list(parameters)
    fused = held[0].device.type in ("cpu", "cuda", "mps")
    return torch.optim.Adam(held, lr=lr, weight_decay=weight_decay, betas=betas, fused=fused)
