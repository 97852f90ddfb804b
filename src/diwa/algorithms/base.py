"""What every algorithm is: a loss for a batch, and by default a plain step of Adam on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from diwa.algorithms.hparams import Space, Values


class Batch(NamedTuple):
    """Images and labels of all source domains, one domain after the other."""

    x: torch.Tensor
    """Normalised images of shape (N, C, H, W)."""
    y: torch.Tensor
    """Labels of shape (N,)."""
    sizes: list[int]
    """How many of the N belong to each domain."""


class Algorithm(nn.Module, ABC):
    """The base of every algorithm: override `loss`, or `update` to step in another way.

    Anything kept in buffers or parameters of its own is part of a run's saved state.

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
        return torch.optim.Adam(
            self.network.parameters(),
            lr=self.hparams["lr"],
            weight_decay=self.hparams["weight_decay"],
            fused=next(self.network.parameters()).device.type in ("cpu", "cuda", "mps"),
        )

    @abstractmethod
    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """What is minimised, as a scalar in float32."""

    def update(
        self, batch: Batch, step: int, autocast: AbstractContextManager[object]
    ) -> torch.Tensor:
        """One step; gives the loss."""
        with autocast:
            loss = self.loss(batch, step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
