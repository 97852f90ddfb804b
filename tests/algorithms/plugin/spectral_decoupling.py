"""Spectral decoupling (Pezeshki et al., 2021): large logits are penalised."""

from typing import ClassVar

import torch
from torch.nn import functional as F

from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Hyperparameter, PowerOf, Space


class SpectralDecoupling(Algorithm):
    """Cross-entropy + strength times the mean square of the logits."""

    space: ClassVar[Space] = {
        **SHARED,
        "strength": Hyperparameter(0.1, PowerOf(10, -5, -1), seed_name="sd_reg"),
    }

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Cross-entropy and penalty."""
        logits = self.network(batch.x).float()
        penalty = logits.square().mean()
        return F.cross_entropy(logits, batch.y) + self.hparams["strength"] * penalty
