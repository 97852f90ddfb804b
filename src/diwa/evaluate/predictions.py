"""Predictions: computed once, read by everything that measures."""

from __future__ import annotations

from collections.abc import Sequence
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


def ensemble(predictions: Sequence[Predictions]) -> Predictions:
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
    if not predictions:
        raise DiwaError("no predictions to average", remedy="give at least one model's")
    labels, shape = predictions[0].labels, predictions[0].logits.shape
    for other in predictions[1:]:
        if not torch.equal(labels, other.labels) or other.logits.shape != shape:
            raise DiwaError("predictions of different images or classes can't be averaged")
    total = torch.zeros(shape, dtype=torch.float64)
    for one in predictions:
        total += one.logits
    return Predictions((total / len(predictions)).float(), labels)


def pooled_accuracy(predictions: Sequence[Predictions]) -> float:
    """The accuracy over the images of several domains together, each image counting once.

    Raises:
        DiwaError: if there are no images.
    """
    images = sum(len(one) for one in predictions)
    if not images:
        raise DiwaError("no images to score", remedy="choose domains that have some")
    return sum(one.correct() for one in predictions) / images
