"""GroupDRO: the domains with the larger losses count more."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from diwa.algorithms.base import Batch, Remembering, State
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Hyperparameter, PowerOf, Space, Values
from diwa.algorithms.parts import domain_losses, wide


class GroupDRO(Remembering):
    """The domains' cross-entropies weighed with q, which each step multiplies by exp(eta loss)."""

    space: ClassVar[Space] = {
        **SHARED,
        "eta": Hyperparameter(1e-2, PowerOf(10, -3, -1), seed_name="groupdro_eta"),
    }
    q: torch.Tensor

    def __init__(self, network: nn.Module, hparams: Values, domains: int) -> None:
        super().__init__(network, hparams, domains)
        self.register_buffer("q", torch.full((domains,), 1 / domains))

    def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
        """The weighed loss, and the new weights, which weigh it already."""
        losses = domain_losses(wide(self.network(batch.x)), batch)
        q = self.q * (self.hparams["eta"] * losses.detach()).exp()
        q = q / q.sum()
        return (losses * q).sum(), {"q": q}
