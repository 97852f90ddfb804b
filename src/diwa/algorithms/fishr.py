"""Fishr: the gradients of the domains shall vary alike."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from diwa.algorithms.annealed import Annealed
from diwa.algorithms.base import Batch, Remembering, State
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Between, Hyperparameter, PowerOf, Space, Values
from diwa.algorithms.parts import exact, headed, look


class Fishr(Annealed, Remembering):
    """Cross-entropy + lambda, from step `anneal` on, times how the variances differ.

    The variances are those of single images' gradients of the head, per domain, each averaged
    over the steps with `ema`; the penalty is their mean squared distance to the domains' mean.
    """

    before = 0.0
    space: ClassVar[Space] = {
        **SHARED,
        "lambda": Hyperparameter(1000.0, PowerOf(10, 1, 4)),
        "anneal": Hyperparameter(
            1500, Between(0, 5000, whole=True), seed_name="penalty_anneal_iters", whole=True
        ),
        "ema": Hyperparameter(0.95, Between(0.90, 0.99), high=0.999),
    }
    average: torch.Tensor

    def __init__(self, network: nn.Module, hparams: Values, domains: int) -> None:
        super().__init__(network, hparams, domains)
        head = headed(network).head
        shape = (domains, head.out_features, head.in_features + 1)
        self.register_buffer("average", torch.zeros(shape))

    def evaluate(self, batch: Batch, step: int) -> tuple[torch.Tensor, State]:
        """Cross-entropy and penalty, and the new averages."""
        seen = look(self.network, batch.x)
        loss = F.cross_entropy(seen.logits, batch.y)
        weight, ema = self.weight(step), self.hparams["ema"]
        # Until the penalty counts, only the averages are needed, and no gradient of theirs.
        with exact(seen.logits), nullcontext() if weight else torch.no_grad():
            average = ema * self.average + (1 - ema) * variances(*seen, batch)
            if weight:
                # So corrected, the gradient of the newest variances does not depend on ema.
                corrected = average / (1 - ema)
                loss = loss + weight * (corrected - corrected.mean(0)).square().mean()
        return loss, {"average": average.detach()}


def variances(features: torch.Tensor, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The variances of single images' gradients of the head, of shape (domains, classes, D + 1).

    One image's gradient is (softmax - label) times its features, and times 1 for the bias. So its
    mean and mean square are products of matrices, and no gradient is ever written out.

    Args:
        features: what the head saw, of shape (N, D).
        logits: what it made of them.
        batch: labels and sizes.
    """
    errors = logits.softmax(1) - F.one_hot(batch.y, logits.shape[1]).to(logits.dtype)
    inputs = F.pad(features, (0, 1), value=1.0)
    found = [
        error.square().T @ seen.square() / len(seen) - (error.T @ seen / len(seen)).square()
        for error, seen in zip(errors.split(batch.sizes), inputs.split(batch.sizes), strict=True)
    ]
    return torch.stack(found)
