"""IRM: one classifier shall be the best one for every domain at once."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from diwa.algorithms.annealed import Annealed
from diwa.algorithms.base import Batch
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Hyperparameter, PowerOf, Space
from diwa.algorithms.parts import domain_losses, wide


class IRM(Annealed):
    """Cross-entropy averaged over domains + weight times `penalty` averaged over domains.

    The weight is 1 before step `anneal`, then `lambda`.
    """

    space: ClassVar[Space] = {
        **SHARED,
        # The penalty needs an even and an odd image of each domain.
        "batch_size": replace(SHARED["batch_size"], low=2),
        "lambda": Hyperparameter(1e2, PowerOf(10, -1, 5), seed_name="irm_lambda"),
        "anneal": Hyperparameter(
            500,
            PowerOf(10, 0, 4, whole=True),
            seed_name="irm_penalty_anneal_iters",
            whole=True,
        ),
    }

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Cross-entropy and penalty."""
        logits = wide(self.network(batch.x))
        parts = zip(logits.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
        penalties = torch.stack([penalty(part, labels) for part, labels in parts])
        return domain_losses(logits, batch).mean() + self.weight(step) * penalties.mean()


def penalty(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """How much one domain would gain from other logits, from even and odd images apart.

    It is the product of both halves' gradients of the cross-entropy with respect to a factor of
    the logits, at 1. That gradient is, for one image, the mean logit by the softmax less the
    label's logit; written out, nothing is differentiated twice.

    Example:
        >>> penalty(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([0, 1]))  # 1.7616 * 0
        tensor(0.)
    """
    expected = (logits.softmax(1) * logits).sum(1)
    slopes = expected - logits.gather(1, labels[:, None])[:, 0]
    return slopes[::2].mean() * slopes[1::2].mean()
