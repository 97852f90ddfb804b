"""MMD: the domains' features shall have the same distribution, seen through Gaussian kernels."""

from __future__ import annotations

from typing import ClassVar

import torch

from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.coral import GAMMA
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Space
from diwa.algorithms.parts import domain_losses, exact, look, mean_over_pairs, membership

#: The kernel is a sum of exp(-scale * squared distance).
SCALES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class MMD(Algorithm):
    """Cross-entropy averaged over domains + gamma times `discrepancy`."""

    space: ClassVar[Space] = {**SHARED, "gamma": GAMMA}

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Cross-entropy and penalty."""
        seen = look(self.network, batch.x)
        losses = domain_losses(seen.logits, batch)
        with exact(seen.features):
            return losses.mean() + self.hparams["gamma"] * discrepancy(seen.features, batch.sizes)


def discrepancy(features: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """The squared maximum mean discrepancy, averaged over pairs of domains.

    Args:
        features: of shape (N, D), one domain after the other.
        sizes: how many of the N belong to each domain.

    Example:
        >>> discrepancy(torch.tensor([[0.0], [0.0], [9.0], [9.0]]), [2, 2]) > 9
        tensor(True)
    """
    # Distances don't depend on the origin; near it, less is lost in the subtraction.
    centred = features - features.mean(0)
    inner = centred @ centred.T
    squares = inner.diagonal()
    squared = (squares[:, None] + squares - 2 * inner).clamp_min(0)
    kernel = torch.stack([torch.exp(-scale * squared) for scale in SCALES]).sum(0)
    member = membership(sizes, like=features)
    averaging = member / member.sum(1, keepdim=True)
    return mean_over_pairs(averaging @ kernel @ averaging.T)
