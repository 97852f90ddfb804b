"""What objectives are made of: features, logits and losses by domain, never below float32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, cast

import torch
from torch import nn
from torch.nn import functional as F

from diwa.algorithms.base import Batch


class Headed(Protocol):
    """A network whose head is one linear layer."""

    head: nn.Linear
    dropout: nn.Dropout

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The pooled vectors of normalised images."""
        ...


class Seen(NamedTuple):
    """What a network makes of a batch."""

    features: torch.Tensor
    """Pooled vectors as the head gets them: after dropout, as DomainBed has it."""
    logits: torch.Tensor
    """What the head makes of them."""


def headed(network: nn.Module) -> Headed:
    """The network, for who needs more of it than logits."""
    return cast(Headed, network)


def look(network: nn.Module, x: torch.Tensor) -> Seen:
    """Features and logits from one forward pass."""
    whole = headed(network)
    features = whole.dropout(whole.features(x))
    return Seen(wide(features), wide(whole.head(features)))


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float32, or as they are if they are wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def exact(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Where products of matrices stay as wide as their factors; a loss runs under autocast."""
    return torch.autocast(tensor.device.type, enabled=False)


def domain_losses(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The mean cross-entropy of each domain.

    Example:
        >>> batch = Batch(torch.zeros(3, 1), torch.tensor([0, 1, 1]), [1, 2])
        >>> domain_losses(torch.zeros(3, 2), batch)
        tensor([0.6931, 0.6931])
    """
    parts = zip(logits.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
    return torch.stack([F.cross_entropy(part, labels) for part, labels in parts])


def membership(sizes: list[int], like: torch.Tensor) -> torch.Tensor:
    """A row per domain with 1 where a row of the batch is of that domain, else 0.

    Example:
        >>> membership([1, 2], like=torch.zeros(()))
        tensor([[1., 0., 0.],
                [0., 1., 1.]])
    """
    return torch.block_diag(*[torch.ones(1, size) for size in sizes]).to(like)


def mean_over_pairs(inner: torch.Tensor) -> torch.Tensor:
    """The mean squared distance between two of several vectors, from all their inner products.

    Zero if there is one only: it has nothing to differ from.

    Example:
        >>> points = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> mean_over_pairs(points @ points.T)
        tensor(25.)
    """
    count = len(inner)
    pairs = max(count * (count - 1) // 2, 1)
    # |a - b|^2 = aa + bb - 2ab, summed: each aa is in count - 1 pairs, each ab twice in `inner`.
    return (count * inner.trace() - inner.sum()) / pairs
