"""Running a network over images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from diwa.data.benchmark import Benchmark, Domain
from diwa.data.loaders import Source, augmented_batches, eval_batches
from diwa.data.transforms import ImageSpec
from diwa.errors import ModelError
from diwa.evaluate.predictions import Predictions
from diwa.models.device import Compute
from diwa.models.network import Network, described, restore_network
from diwa.progress import QUIET, Progress


def source_of(domain: Domain, positions: np.ndarray | None = None) -> Source:
    """A domain's images, or those at some positions."""
    if positions is None:
        positions = np.arange(len(domain))
    return Source(domain.images, domain.labels, positions)


def predict_network(
    network: Network,
    source: Source,
    image: ImageSpec,
    compute: Compute,
    *,
    want_features: bool = False,
    augmented: int | None = None,
    progress: Progress = QUIET,
    title: str = "scoring",
) -> Predictions:
    """What a network says of a domain's images, seen clean and whole.

    Args:
        network: on `compute`'s device.
        source: the images.
        image: how they reach the network.
        compute: the device and the precision.
        want_features: whether to keep the pooled vectors as well.
        augmented: a seed, to see them through the training augmentation instead.
        progress: who hears how it goes.
        title: what to call it there.
    """
    was_training = network.training
    network.eval()
    logits: list[torch.Tensor] = []
    features: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    batches = (
        eval_batches(source, image)
        if augmented is None
        else augmented_batches(source, image, augmented)
    )
    with torch.inference_mode(), progress.task(title, len(source.positions)) as task:
        for pixels, truth in batches:
            with compute.autocast():
                vectors = network.features(network.normalise(compute.pixels(pixels)))
                logits.append(network.classify(vectors).float().cpu())
            if want_features:
                features.append(vectors.float().cpu())
            labels.append(truth)
            task.advance(len(truth))
    network.train(was_training)
    return Predictions(
        torch.cat(logits) if logits else torch.zeros(0, network.head.out_features),
        torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int64),
        torch.cat(features) if features else None,
    )


def image_of(about: Mapping[str, Any], benchmark: Benchmark) -> ImageSpec:
    """How images reach the network that a file describes, checked against a benchmark.

    Raises:
        ModelError: if the classes or the channels are not the benchmark's.
    """
    spec = described(about)
    if spec.classes != benchmark.classes:
        differ = sorted(set(spec.classes) ^ set(benchmark.classes)) or ["their order"]
        raise ModelError(
            f"the weights are for {len(spec.classes)} classes, {benchmark.name} has "
            f"{len(benchmark.classes)}; {differ[0]!r} differs",
            remedy="score on a folder with the same classes",
        )
    if spec.channels != benchmark.channels:
        raise ModelError(
            f"the weights are for images of {spec.channels} channels, "
            f"{benchmark.name} was opened with {benchmark.channels}",
            remedy=f"open it with channels={spec.channels}",
        )
    return ImageSpec(size=spec.size, channels=spec.channels)


class Weights(Protocol):
    """A member, a soup, or anything else that has tensors and says what network they are of."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Its entry "model" says how to build the network."""
        ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, by name."""
        ...


def predict(
    weights: Weights,
    benchmark: Benchmark,
    domain: str,
    *,
    device: str = "auto",
    precision: str = "auto",
    want_features: bool = False,
    progress: Progress = QUIET,
) -> Predictions:
    """What a member or a soup says of all images of a domain.

    Args:
        weights: the member or soup.
        benchmark: the images.
        domain: which of them.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        precision: "auto", "fp32" or "bf16".
        want_features: whether to keep the pooled vectors as well.
        progress: who hears how it goes.

    Raises:
        DiwaError: if the weights are for other classes, or the domain is not there.
    """
    image = image_of(weights.about, benchmark)
    compute = Compute.choose(device, precision)
    source = source_of(benchmark[domain])
    network = restore_network(weights.about, dict(weights.tensors())).to(compute.device)
    return predict_network(
        network,
        source,
        image,
        compute,
        want_features=want_features,
        progress=progress,
        title=f"scoring {domain}",
    )
