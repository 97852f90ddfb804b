"""Predictions with features, kept on disk so that the images are looked at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from diwa.data.benchmark import Benchmark
from diwa.errors import WeightsError
from diwa.evaluate.predict import Weights, image_of, predict_network, source_of
from diwa.evaluate.predictions import Predictions
from diwa.models.device import Compute
from diwa.models.network import described, head_names, restore_network
from diwa.progress import QUIET, Progress
from diwa.weights import files

#: Where the predictions lie that a key names.
Place = Callable[[str], Path]
_FORMAT = 1


def predict_with_features(
    weights: Weights,
    benchmark: Benchmark,
    domain: str,
    *,
    kept: Place | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: Progress = QUIET,
    title: str = "",
) -> Predictions:
    """What weights say of all images of a domain, with the pooled vectors, computed once.

    Args:
        weights: the member or soup.
        benchmark: the images.
        domain: which of them.
        kept: where predictions are kept, by key; nowhere by default.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        precision: "auto", "fp32" or "bf16".
        progress: who hears how it goes.
        title: what to call it there.

    Raises:
        DiwaError: if the weights are for other classes, or the domain is not there.
    """
    image = image_of(weights.about, benchmark)
    compute = Compute.choose(device, precision)
    held = benchmark[domain]
    known = {
        "format": _FORMAT,
        "weights": digest_of(weights),
        "model": msgspec.to_builtins(described(weights.about)),
        "benchmark": benchmark.digest,
        "stored_side": None if benchmark.cache is None else benchmark.cache.side,
        "domain": held.name,
        "image": msgspec.to_builtins(image),
        "precision": compute.precision,
    }
    told = json.dumps(known, sort_keys=True)
    path = None if kept is None else kept(hashlib.sha256(told.encode()).hexdigest()[:16])
    if path is not None and path.is_file():
        found = _read(path, json.loads(told), progress)
        if found is not None and found.labels.tolist() == held.labels.tolist():
            return found
    network = restore_network(weights.about, dict(weights.tensors())).to(compute.device)
    says = predict_network(
        network,
        source_of(held),
        image,
        compute,
        want_features=True,
        progress=progress,
        title=title or f"features of {held.name}",
    )
    if path is not None:
        assert says.features is not None
        tensors = {"features": says.features, "labels": says.labels, "logits": says.logits}
        files.write(path, tensors, known)
    return says


@dataclass(frozen=True)
class Headless:
    """The same network with a last layer of zeros: alike wherever the encoder is.

    Args:
        weights: the network.
    """

    weights: Weights

    @property
    def about(self) -> Mapping[str, Any]:
        """How to build the network."""
        return {"model": self.weights.about["model"]}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, by name."""
        bare = head_names(self.weights.about)
        for name, tensor in self.weights.tensors():
            yield name, torch.zeros_like(tensor) if name in bare else tensor


def digest_of(weights: Weights) -> str:
    """The SHA-256 of all tensors with their names, whatever file they are from, or none."""
    sha = hashlib.sha256()
    for name, tensor in sorted(weights.tensors()):
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
        sha.update(files.as_array(tensor).tobytes())
    return sha.hexdigest()


def _read(path: Path, known: dict[str, Any], progress: Progress) -> Predictions | None:
    """What was kept; None if it can't be read, for it can be computed again."""
    try:
        tensors = files.read(path)
        whole = files.about(path) == known
    except WeightsError as error:
        progress.say(f"{error}; it is made again")
        return None
    if not whole or set(tensors) != {"features", "labels", "logits"}:
        progress.say(f"{path}: holds something else; it is made again")
        return None
    labels = tensors["labels"].to(torch.int64)
    return Predictions(tensors["logits"], labels, tensors["features"])
