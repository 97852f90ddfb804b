"""Last-layer retraining: new labelled images train the head, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diwa.data.benchmark import Benchmark
from diwa.errors import DataError, SpecError
from diwa.evaluate.features import Place, digest_of, predict_with_features
from diwa.evaluate.lastlayer import Head, fit_head
from diwa.evaluate.predict import Weights
from diwa.evaluate.predictions import Predictions
from diwa.models.network import head_names
from diwa.progress import QUIET, Progress
from diwa.weights import files

#: The sides of a split that can be trained on, and which one each leaves for testing.
OTHER_PART = {"in": "out", "out": "in"}


@dataclass(frozen=True, kw_only=True)
class Retrained:
    """A network with a new last layer; like a member or a soup, it can be scored and saved.

    Args:
        weights: the network whose last layer this replaces.
        head: the new last layer.
        domain: whose images it was trained on.
        trained_on: how many of them.
        tested_on: how many others of that domain it was tested on.
        accuracy: on these; None if there are none.
        before: that of the network as it was, on the same images.
    """

    weights: Weights
    head: Head
    domain: str
    trained_on: int
    tested_on: int
    accuracy: float | None
    before: float | None

    @property
    def about(self) -> Mapping[str, Any]:
        """How to build the network, and what it was made of."""
        known = dict(self.weights.about)
        return {
            "model": known.pop("model"),
            "retrained": {
                "domain": self.domain,
                "images": self.trained_on,
                "strength": self.head.strength,
                "tensors_sha256": digest_of(self.weights),
                "of": known,
            },
        }

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors by timm's names; all but the last layer's are those of before."""
        weight, bias = head_names(self.weights.about)
        new = {weight: self.head.weight, bias: self.head.bias}
        for name, tensor in self.weights.tensors():
            yield name, new.get(name, tensor)

    def save(self, path: Path | str) -> Path:
        """Writes the network as a safetensors file, beside its place, and renames it there.

        Raises:
            DiwaError: if the place can't be written.
        """
        files.write(Path(path), dict(self.tensors()), self.about)
        return Path(path)


def retrain(
    weights: Weights,
    benchmark: Benchmark,
    domain: str,
    *,
    part: str = "out",
    trial: int = 0,
    holdout: float = 0.2,
    positions: np.ndarray | None = None,
    strength: float | None = None,
    kept: Place | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: Progress = QUIET,
) -> Retrained:
    """Trains the last layer on some images of a domain, and tests it on the domain's others.

    The encoder stays as it is, without dropout; its features are computed once. The layer is
    multinomial logistic regression with a penalty that is chosen among the training images.

    Args:
        weights: the member or soup.
        benchmark: the images.
        domain: which of them.
        part: the side of the trial's split to train on: "out" (20 %) or "in" (80 %).
        trial: which split.
        holdout: the share that is "out".
        positions: train on the domain's images at these positions instead.
        strength: of the penalty; chosen by cross-validation among the training images by default.
        kept: where features are kept, a path by key; nowhere by default.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        precision: "auto", "fp32" or "bf16"; of the features.
        progress: who hears how it goes.

    Raises:
        DiwaError: if there is no such part, domain or position, there are no images to train on,
            or the weights are for other classes.

    Example:
        >>> import diwa
        >>> photos = diwa.open_folder(example_folder, allow_small_domains=True, size=(32, 32))
        >>> spec = diwa.ModelSpec(
        ...     backbone="test_resnet", size=(32, 32), channels=3, classes=photos.classes
        ... )
        >>> class Drawn:
        ...     about = {"model": spec}
        ...     network = diwa.build_network(spec, weights="none")
        ...     def tensors(self):
        ...         return iter(self.network.weights().items())
        >>> new = diwa.retrain(Drawn(), photos, "sketch", part="in")
        >>> new.trained_on, new.tested_on, tuple(new.head.weight.shape)
        (10, 2, (2, 96))
    """
    held = benchmark[domain]
    chosen, others = _positions(benchmark, held.name, part, trial, holdout, positions)
    says = predict_with_features(
        weights,
        benchmark,
        held.name,
        kept=kept,
        device=device,
        precision=precision,
        progress=progress,
    )
    return retrained(weights, held.name, says, chosen, others, len(benchmark.classes), strength)


def retrained(
    weights: Weights,
    domain: str,
    says: Predictions,
    chosen: np.ndarray,
    others: np.ndarray,
    classes: int,
    strength: float | None = None,
) -> Retrained:
    """The same, from what is known of all images of the domain.

    Args:
        weights: the member or soup.
        domain: the domain's name.
        says: its predictions and features for all images of the domain.
        chosen: the images to train on, by position.
        others: the images to test on.
        classes: how many there are.
        strength: of the penalty; chosen among the training images by default.
    """
    train, test = says.at(np.sort(chosen)), says.at(np.sort(others))
    assert train.features is not None
    assert test.features is not None
    head = fit_head(train.features, train.labels, classes, strength=strength)
    after = Predictions(head.logits(test.features), test.labels)
    return Retrained(
        weights=weights,
        head=head,
        domain=domain,
        trained_on=len(train),
        tested_on=len(test),
        accuracy=after.accuracy() if len(test) else None,
        before=test.accuracy() if len(test) else None,
    )


def _positions(
    benchmark: Benchmark,
    domain: str,
    part: str,
    trial: int,
    holdout: float,
    positions: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The images to train on, and all others."""
    count = len(benchmark[domain])
    if positions is not None:
        chosen = np.unique(np.asarray(positions, dtype=np.int64))
        if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < count:
            raise SpecError(
                f"{domain}: has no image at position {chosen[-1] if chosen[0] >= 0 else chosen[0]}",
                remedy=f"give positions from 0 to {count - 1}",
            )
    else:
        if part not in OTHER_PART:
            raise SpecError(f"part {part!r}", remedy="choose in (80 %) or out (20 %)")
        split = benchmark.split(domain, trial=trial, holdout=holdout)
        chosen = {"in": split.inner, "out": split.outer}[part]
    if not len(chosen):
        raise DataError(
            f"{domain}: no images to train the last layer on",
            remedy="choose another part" if positions is None else "give at least one position",
        )
    return chosen, np.setdiff1d(np.arange(count), chosen)
