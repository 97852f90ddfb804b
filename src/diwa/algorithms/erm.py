"""Empirical risk minimisation: the mean cross-entropy over all source domains."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from diwa.algorithms.base import Algorithm, Batch
from diwa.algorithms.hparams import Choice, Hyperparameter, PowerOf
from diwa.algorithms.parts import wide

#: The hyperparameters that every algorithm shares. The draws' order of values is the released
#: code's, which the golden values depend on.
SHARED = {
    "lr": Hyperparameter(
        5e-5,
        Choice((1e-5, 3e-5, 5e-5)),
        extreme=PowerOf(10, -5, -3.5),
        short=Choice((2e-4, 4e-4, 6e-4)),
    ),
    "weight_decay": Hyperparameter(0.0, Choice((1e-4, 1e-6)), PowerOf(10, -6, -2)),
    "dropout": Hyperparameter(0.0, Choice((0.0, 0.1, 0.5)), seed_name="resnet_dropout", high=1.0),
    "batch_size": Hyperparameter(
        32, Choice((32,)), PowerOf(2, 3, 5.5, whole=True), low=1, whole=True
    ),
}


class ERM(Algorithm):
    """Empirical risk minimisation.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> batch = Batch(logits, torch.tensor([0, 1]), [1, 1])
        >>> erm = ERM(torch.nn.Linear(2, 2), {"lr": 1e-3, "weight_decay": 0.0}, domains=2)
        >>> _ = erm.network.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
        >>> round(erm.loss(batch, step=0).item(), 4)
        0.2201
    """

    space = SHARED

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """The mean cross-entropy of the whole batch."""
        return F.cross_entropy(wide(self.network(batch.x)), batch.y)
