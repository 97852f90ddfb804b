"""The initialisation that runs share: pretrained encoder, and a head drawn or probed once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from diwa.errors import StoreError
from diwa.models.backbones import FROM_HUB, FROM_NOWHERE
from diwa.models.network import ModelSpec, Network, build_network
from diwa.runs.spec import InitSpec, TaskSpec
from diwa.seeding import seed_hash
from diwa.train.probe import probe
from diwa.train.workplace import Workplace
from diwa.weights import files


def model_spec(task: TaskSpec, backbone: str, classes: tuple[str, ...]) -> ModelSpec:
    """How to build the network of a task."""
    return ModelSpec(
        backbone=backbone, size=task.image.size, channels=task.image.channels, classes=classes
    )


def shared_init(spec: InitSpec, place: Workplace) -> Path:
    """The file of an initialisation, made now if no run needed it before.

    Raises:
        DiwaError: if its weights can't be had.
    """
    with place.store.make_init(spec) as (path, missing):
        if missing:
            network = _fresh(spec, place)
            if spec.head == "lp":
                compute = place.compute(spec.precision)
                network.to(compute.device)
                probe(network, spec, place, scratch=path.parent)
            model = model_spec(spec.task, spec.backbone, place.benchmark.classes)
            about = {"model": msgspec.to_builtins(model), "init": spec.key, "kind": spec.head}
            files.write(path, network.weights(), about)
    return path


def _fresh(spec: InitSpec, place: Workplace) -> Network:
    weights = spec.weights
    model = model_spec(spec.task, spec.backbone, place.benchmark.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_hash(spec.seed, "network"))
        if weights in (FROM_HUB, FROM_NOWHERE):
            network = build_network(model, weights=weights)
        else:
            network = build_network(model, weights=files.read(_file(weights, place)))
        torch.manual_seed(seed_hash(spec.seed, "head"))
        network.head.reset_parameters()
    return network


def _file(digest: str, place: Workplace) -> Path:
    if place.weights is None:
        raise StoreError(
            f"the initialisation starts from a file (SHA-256 {digest[:12]}…) that is not given",
            remedy="pass it as --weights",
        )
    if files.digest(place.weights) != digest:
        raise StoreError(
            f"{place.weights}: not the file the runs were planned with (SHA-256 {digest[:12]}…)",
            remedy="pass that one, or start a new store",
        )
    return place.weights
