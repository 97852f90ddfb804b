"""One linear layer fitted to features: multinomial logistic regression, solved to its optimum.

Features are standardised, and rotated to where their covariance is diagonal: there the loss
can be scaled to curve about equally in all directions, and a few dozen steps of L-BFGS lead to its
optimum. Both are folded back into the layer, which takes features as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from diwa.errors import DataError, ModelError
from diwa.seeding import random_state

#: Strengths of the penalty that are tried, from strong to weak.
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(1, -7, -1))
#: What is taken where there is nothing to choose by: no class has two images.
UNCHOSEN = 0.1
#: How many parts the images are dealt out to, each of which is predicted from the others.
FOLDS = 5
#: Two parts, and more until so many images are held out, are enough to choose by.
_ENOUGH = 1000
#: After so many strengths on end that were no better, weaker ones are not tried.
_PATIENCE = 2
#: A feature that varies less than so much of the others is not blown up to their size.
_LEAST_SPREAD = 0.01
#: By how much a class without images stays below the lowest logit of those that have some.
_BELOW = 10.0
#: The largest gradient, in scaled coordinates, to end at: while choosing, and in the end.
_ROUGH, _FINE = 3e-4, 1e-6


@dataclass(frozen=True)
class Head:
    """A linear layer.

    Args:
        weight: of shape (classes, width), float32.
        bias: of shape (classes,), float32.
        strength: of the penalty it was fitted with.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    strength: float

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """What it says of features of shape (images, width)."""
        return F.linear(features.float(), self.weight, self.bias)


def fit_head(
    features: torch.Tensor, labels: torch.Tensor, classes: int, *, strength: float | None = None
) -> Head:
    """Fits a linear layer to all of the given images; the same ones give the same bytes.

    The mean cross-entropy plus `strength` / 2 times the squared norm of the weights is minimised,
    the weights being those of standardised features; the bias is free. A class without images is
    never predicted.

    Args:
        features: of shape (images, width).
        labels: of shape (images,).
        classes: how many outputs.
        strength: of the penalty; chosen by cross-validation among these images unless given.

    Raises:
        DataError: if there are no images.
        ModelError: if a feature is not finite.

    Example:
        >>> features = torch.tensor([[0.0], [1.0], [9.0], [10.0]])
        >>> head = fit_head(features, torch.tensor([0, 0, 2, 2]), 3)
        >>> head.logits(torch.tensor([[2.0], [8.0]])).argmax(dim=1).tolist()
        [0, 2]
    """
    if not len(labels):
        raise DataError("no images to train the last layer on", remedy="give at least one")
    wide = features.double()
    if not bool(torch.isfinite(wide).all()):
        raise ModelError("a feature is not a finite number", remedy="use other weights")
    present, own = torch.unique(labels, return_inverse=True)
    centre = wide.mean(dim=0)
    spread = (wide - centre).square().mean(dim=0).sqrt()
    spread = spread.clamp_min(_LEAST_SPREAD * float(spread.square().mean().sqrt()))
    spread[spread == 0] = 1
    with _one_thread():
        problem = _Problem((wide - centre) / spread, own, len(present))
        start = None
        if strength is None:
            strength, start = _chosen(problem)
        found = problem.solved(strength, start=start, tolerance=_FINE)
        weight, bias = problem.in_features(found)
    weight = weight / spread
    bias = bias - weight @ centre
    # A free bias can be moved as a whole. Here the logits of an image have the mean 0, so that one
    # of them is at least 0.
    bias = bias - bias.mean()
    weight = weight - weight.mean(dim=0)
    lowest = float((wide @ weight.T + bias).min())
    full = torch.zeros(classes, wide.shape[1], dtype=torch.float64)
    full[present] = weight
    offset = torch.full((classes,), min(lowest, 0.0) - _BELOW, dtype=torch.float64)
    offset[present] = bias
    return Head(full.float(), offset.float(), strength)


class _Problem:
    """Logistic regression in coordinates where the features' covariance is diagonal.

    Args:
        features: standardised.
        labels: numbered without gaps.
        classes: how many there are.
    """

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        count, width = features.shape
        self._outer: torch.Tensor | None = None
        if count < width:
            # With few images, all that matters lies in the space that they span.
            self._outer, triangle = torch.linalg.qr(features.T)
            features = triangle.T
        self._variances, self._axes = torch.linalg.eigh(features.T @ features / count)
        self.features = features @ self._axes
        self.rough = self.features.float()
        self.labels = labels
        self.classes = classes

    def solved(
        self,
        strength: float,
        *,
        rows: torch.Tensor | None = None,
        start: torch.Tensor | None = None,
        tolerance: float,
    ) -> torch.Tensor:
        """The optimum in these coordinates, one column per class; the last row is the bias.

        Args:
            strength: of the penalty.
            rows: the images to fit to; all by default.
            start: where to begin.
            tolerance: the largest scaled gradient to end at.
        """
        # Half the bytes do for choosing, which ends far from the last digits.
        features = self.features if rows is None else self.rough[rows]
        labels = self.labels if rows is None else self.labels[rows]
        # What the second derivatives are where all classes are as likely, as at the start and
        # wherever the penalty is strong.
        scale = (self._variances.clamp_min(0) / self.classes + strength).rsqrt()[:, None]
        scale = torch.cat([scale, torch.full((1, 1), self.classes**0.5, dtype=torch.float64)])
        scale = scale.to(features.dtype)
        shape = (features.shape[1] + 1, self.classes)
        scaled = torch.zeros(shape, dtype=features.dtype) if start is None else start / scale
        scaled = scaled.clone().requires_grad_()
        search = torch.optim.LBFGS(
            [scaled],
            max_iter=1000,
            history_size=20,
            tolerance_grad=tolerance,
            tolerance_change=1e-13,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            search.zero_grad()
            found = scaled * scale
            logits = torch.addmm(found[-1], features, found[:-1])
            penalty = strength / 2 * found[:-1].square().sum()
            loss = F.cross_entropy(logits, labels) + penalty
            loss.backward()
            return loss

        search.step(closure)
        return scaled.detach() * scale

    def tested(self, found: torch.Tensor, rows: torch.Tensor) -> tuple[int, float]:
        """How many of some images are right, and their summed cross-entropy."""
        logits = torch.addmm(found[-1], self.rough[rows], found[:-1])
        labels = self.labels[rows]
        right = int((logits.argmax(dim=1) == labels).sum())
        return right, F.cross_entropy(logits, labels, reduction="sum").item()

    def in_features(self, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A solution as weight and bias of the standardised features."""
        weight = self._axes @ found[:-1]
        return (weight if self._outer is None else self._outer @ weight).T, found[-1]


def _chosen(problem: _Problem) -> tuple[float, torch.Tensor | None]:
    """The strength with which most images are right that it was not fitted to; near its optimum.

    Of equal ones that with the lower loss on them; then the stronger one.
    """
    dealt = _dealt(problem.labels.numpy())
    folds = [
        (torch.from_numpy(np.flatnonzero(dealt != fold)), torch.from_numpy(held))
        for fold in range(FOLDS)
        if len(held := np.flatnonzero(dealt == fold))
    ]
    if not folds:
        return UNCHOSEN, None
    sizes = np.cumsum([len(held) for _, held in folds])
    folds = folds[: max(2, int(np.searchsorted(sizes, _ENOUGH)) + 1)]
    best, near, highest, worse = UNCHOSEN, None, (-1, 0.0), 0
    starts: list[torch.Tensor | None] = [None] * len(folds)
    # One thread for each fold is quicker than all threads for one after the other, which wait for
    # each other in every step; and sums are then the same with any number of them.
    with ThreadPoolExecutor(FOLDS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for strength in STRENGTHS:
            fits = [
                pool.submit(problem.solved, strength, rows=rows, start=start, tolerance=_ROUGH)
                for (rows, _), start in zip(folds, starts, strict=True)
            ]
            solutions = [fit.result() for fit in fits]
            starts = list(solutions)
            tests = [
                problem.tested(solution, held)
                for solution, (_, held) in zip(solutions, folds, strict=True)
            ]
            reached = (sum(right for right, _ in tests), -sum(loss for _, loss in tests))
            if reached > highest:
                near = torch.stack(solutions).double().mean(dim=0)
                best, highest, worse = strength, reached, 0
            elif (worse := worse + 1) == _PATIENCE:
                break
    return best, near


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _dealt(labels: np.ndarray) -> np.ndarray:
    """The fold that each image is held out in, -1 for none; each class is shared out evenly.

    The only image of a class is never held out: nothing could be learnt of it from the others.
    """
    chance = random_state(0, "last layer", len(labels))
    dealt = np.full(len(labels), -1)
    turn = 0
    for label in np.unique(labels):
        held = chance.permutation(np.flatnonzero(labels == label))
        if len(held) > 1:
            dealt[held] = (turn + np.arange(len(held))) % FOLDS
            turn += len(held)
    return dealt
