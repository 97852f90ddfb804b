"""Interdomain Mixup: images of two domains blended, each label counted by its share."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional as F

from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Hyperparameter, PowerOf, Space
from diwa.algorithms.parts import wide


class Mixup(Algorithm):
    """The domains are shuffled and each is blended with the next one, the last with the first.

    Of a pair of unequal size, as many images are blended as the smaller one has.
    """

    space: ClassVar[Space] = {
        **SHARED,
        # The released code draws 10 ** U(-1, -1), which is .1: a slip of the pen.
        "alpha": Hyperparameter(
            0.2,
            PowerOf(10, -1, 1),
            released=PowerOf(10, -1, -1),
            seed_name="mixup_alpha",
            low=0.01,
        ),
    }

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """For each pair its cross-entropies by their shares; the sum over the domains' number."""
        order = torch.randperm(len(batch.sizes)).tolist()
        # Float64: with a small alpha, shares near 0 are smaller than float32 can tell from 0.
        alpha = torch.full((len(order),), self.hparams["alpha"], dtype=torch.float64)
        shares = torch.distributions.Beta(alpha, alpha).sample().tolist()
        xs, ys = batch.x.split(batch.sizes), batch.y.split(batch.sizes)
        blended, labels = [], []
        for one, other in zip(order, order[1:] + order[:1], strict=True):
            size = min(batch.sizes[one], batch.sizes[other])
            share = shares[len(blended)]
            blended.append(torch.lerp(xs[other][:size], xs[one][:size], share))
            labels.append((ys[one][:size], ys[other][:size]))
        logits = wide(self.network(torch.cat(blended))).split([len(part) for part in blended])
        losses = [
            share * F.cross_entropy(part, one) + (1 - share) * F.cross_entropy(part, other)
            for share, part, (one, other) in zip(shares, logits, labels, strict=True)
        ]
        return torch.stack(losses).sum() / len(order)
