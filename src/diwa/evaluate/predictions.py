"""Predictions: computed once, read by everything that measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from diwa.errors import DiwaError


@dataclass(frozen=True)
class Predictions:
    """What a model says of some images, and what they are.

    Args:
        logits: of shape (images, classes), float32.
        labels: of shape (images,).
        features: of shape (images, width), if they were asked for.

    Example:
        >>> says = Predictions(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        >>> says.accuracy()
        0.5
    """

    logits: torch.Tensor
    labels: torch.Tensor
    features: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def correct(self) -> int:
        """How many images are classified as they should be."""
        return int((self.logits.argmax(dim=1) == self.labels).sum())

    def accuracy(self) -> float:
        """The share of images that are classified as they should be.

        Raises:
            DiwaError: if there are no images.
        """
        if not len(self):
            raise DiwaError("no images to score", remedy="choose a domain that has some")
        return self.correct() / len(self)

    def cross_entropy(self) -> float:
        """The mean loss."""
        return F.cross_entropy(self.logits.double(), self.labels).item()

    def at(self, positions: np.ndarray) -> Predictions:
        """The predictions for some of the images."""
        chosen = torch.from_numpy(positions)
        features = None if self.features is None else self.features[chosen]
        return Predictions(self.logits[chosen], self.labels[chosen], features)


class Sum:
    """Several models' predictions for the same images, added up one by one.

    Example:
        >>> labels, total = torch.tensor([0]), Sum()
        >>> for logits in ([[2.0, 0.0]], [[0.0, 1.0]]):
        ...     total.add(Predictions(torch.tensor(logits), labels))
        >>> total.mean().logits.tolist()
        [[1.0, 0.5]]
    """

    def __init__(self) -> None:
        self._count = 0
        self._total = torch.zeros(0)
        self._labels = torch.zeros(0)

    def add(self, one: Predictions) -> None:
        """Takes in what one more model says.

        Raises:
            DiwaError: if it is not of the same images and classes.
        """
        if not self._count:
            self._labels = one.labels
            self._total = torch.zeros(one.logits.shape, dtype=torch.float64)
        if not torch.equal(self._labels, one.labels) or self._total.shape != one.logits.shape:
            raise DiwaError("predictions of different images or classes can't be averaged")
        self._total += one.logits
        self._count += 1

    def take(self, other: Sum) -> None:
        """Takes in all that another sum, of the same images, has taken in."""
        if not self._count:
            self._labels, self._total = other._labels, torch.zeros_like(other._total)
        if not torch.equal(self._labels, other._labels) or self._total.shape != other._total.shape:
            raise DiwaError("predictions of different images or classes can't be averaged")
        self._total += other._total
        self._count += other._count

    def mean(self) -> Predictions:
        """The mean of their logits.

        Raises:
            DiwaError: if there are none.
        """
        if not self._count:
            raise DiwaError("no predictions to average", remedy="give at least one model's")
        return Predictions((self._total / self._count).float(), self._labels)


def ensemble(predictions: Iterable[Predictions]) -> Predictions:
    """The mean of several models' predictions for the same images: the mean of their logits.

    Raises:
        DiwaError: if they are not of the same images and classes, or there are none.

    Example:
        >>> labels = torch.tensor([0])
        >>> one = Predictions(torch.tensor([[2.0, 0.0]]), labels)
        >>> two = Predictions(torch.tensor([[0.0, 1.0]]), labels)
        >>> ensemble([one, two]).logits.tolist()
        [[1.0, 0.5]]
    """
    total = Sum()
    for one in predictions:
        total.add(one)
    return total.mean()


def pooled_accuracy(predictions: Sequence[Predictions]) -> float:
    """The accuracy over the images of several domains together, each image counting once.

    Raises:
        DiwaError: if there are no images.
    """
    images = sum(len(one) for one in predictions)
    if not images:
        raise DiwaError("no images to score", remedy="choose domains that have some")
    return sum(one.correct() for one in predictions) / images
