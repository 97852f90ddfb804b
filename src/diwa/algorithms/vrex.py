"""V-REx: the domains shall have the same loss."""

from __future__ import annotations

from typing import ClassVar

import torch

from diwa.algorithms.annealed import Annealed
from diwa.algorithms.base import Batch
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Hyperparameter, PowerOf, Space
from diwa.algorithms.parts import domain_losses, wide


class VREx(Annealed):
    """The mean of the domains' cross-entropies + weight times their variance.

    The weight is 1 before step `anneal`, then `lambda`.
    """

    space: ClassVar[Space] = {
        **SHARED,
        "lambda": Hyperparameter(1e1, PowerOf(10, -1, 5), seed_name="vrex_lambda"),
        "anneal": Hyperparameter(
            500,
            PowerOf(10, 0, 4, whole=True),
            seed_name="vrex_penalty_anneal_iters",
            whole=True,
        ),
    }

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Mean and variance."""
        losses = domain_losses(wide(self.network(batch.x)), batch)
        return losses.mean() + self.weight(step) * losses.var(unbiased=False)
