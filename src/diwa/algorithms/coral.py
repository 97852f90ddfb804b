"""CORAL: the domains' features shall have the same mean and covariance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch

from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Hyperparameter, PowerOf, Space
from diwa.algorithms.parts import domain_losses, exact, look, mean_over_pairs, membership

#: The weight of the penalty; MMD has the same one.
GAMMA = Hyperparameter(1.0, PowerOf(10, -1, 1), seed_name="mmd_gamma")


class CORAL(Algorithm):
    """Cross-entropy averaged over domains + gamma times `mismatch`."""

    space: ClassVar[Space] = {
        **SHARED,
        # One image has no covariance.
        "batch_size": replace(SHARED["batch_size"], low=2),
        "gamma": GAMMA,
    }

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Cross-entropy and penalty."""
        seen = look(self.network, batch.x)
        losses = domain_losses(seen.logits, batch)
        with exact(seen.features):
            return losses.mean() + self.hparams["gamma"] * mismatch(seen.features, batch.sizes)


def mismatch(features: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """How means and covariances differ, averaged over pairs of domains.

    Per pair it is the mean squared difference of means + that of covariances. The covariances of
    2048 features have four million entries, but their inner products are squares of the inner
    products of images, of which there are a hundred: <X'X, Y'Y> = |XY'|^2.

    Args:
        features: of shape (N, D), one domain after the other.
        sizes: how many of the N belong to each domain.

    Example:
        >>> mismatch(torch.tensor([[0.0], [0.0], [1.0], [3.0]]), [2, 2])  # (0 - 2)^2 + (0 - 2)^2
        tensor(8.)
    """
    parts = features.split(sizes)
    means = torch.stack([part.mean(0) for part in parts])
    means = means - means.mean(0)
    scaled = torch.cat([(part - part.mean(0)) / math.sqrt(len(part) - 1) for part in parts])
    member = membership(sizes, like=features)
    covariances = member @ (scaled @ scaled.T).square() @ member.T
    width = features.shape[1]
    return mean_over_pairs(means @ means.T / width + covariances / width**2)
