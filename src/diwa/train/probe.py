"""Linear probing: the head is trained on features of the frozen encoder, computed once.

Which views of which images will be needed is known from the seed beforehand. Each distinct one
goes through the encoder once, into a file; training the head then reads that file. A probe that
was killed goes on where its file ends.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from diwa.data.loaders import Source, View, Views, train_loader
from diwa.evaluate.predict import predict_network
from diwa.evaluate.predictions import Predictions
from diwa.models.device import Compute
from diwa.models.network import Network
from diwa.progress import Progress
from diwa.runs.spec import InitSpec
from diwa.seeding import random_state, seed_hash
from diwa.train.workplace import Workplace

_CHUNK = 64


def probe(network: Network, spec: InitSpec, place: Workplace, *, scratch: Path) -> None:
    """Trains the network's head in place; the encoder is never back-propagated through.

    Args:
        network: on the device.
        spec: steps, learning rate, views and seed.
        place: images, device and who hears how it goes.
        scratch: a folder for the features, which are removed at the end.
    """
    compute = place.compute(spec.precision)
    sources = list(place.sources(spec.task, trials=spec.trials))
    augmented = spec.task.preset.augmented_validation
    training = [inner for _, inner, _ in sources]
    wanted, rows = _plan(spec, training)
    path = scratch / "features.f32"
    views = [
        View(domain, position, seed_hash(spec.seed, "view", domain, position, view))
        for domain, position, view in wanted
    ]
    features = _computed(network, spec, views, training, compute, place, path)
    labels = torch.tensor([int(training[d].labels[p]) for d, p, _ in wanted])
    validation = [
        predict_network(
            network,
            outer,
            spec.task.image,
            compute,
            want_features=True,
            # One view of each image stands for all that the released code would look at.
            augmented=seed_hash(spec.seed, "validation") if augmented else None,
            progress=place.progress,
            title=f"linear probing: {name}",
        )
        for name, _, outer in sources
        if len(outer.positions)
    ]
    # The head is small: the CPU is quick enough, and gives the same bytes everywhere.
    head = nn.Linear(network.head.in_features, network.head.out_features)
    head.load_state_dict(network.head.state_dict())
    best = _trained(head, spec, rows, features, labels, validation, place.progress)
    network.head.load_state_dict(best)
    del features
    path.unlink(missing_ok=True)


def _plan(spec: InitSpec, training: list[Source]) -> tuple[list[tuple[int, int, int]], np.ndarray]:
    """Every (domain, position, view) that will be needed, and which of them each step takes."""
    draws = np.empty((spec.steps, len(training), spec.batch_size, 3), dtype=np.int64)
    for step in range(spec.steps):
        for domain, source in enumerate(training):
            chance = random_state(spec.seed, "probe", domain, step)
            chosen = source.positions[chance.randint(len(source.positions), size=spec.batch_size)]
            draws[step, domain, :, 0] = domain
            draws[step, domain, :, 1] = chosen
            draws[step, domain, :, 2] = chance.randint(spec.views, size=spec.batch_size)
    distinct, rows = np.unique(draws.reshape(-1, 3), axis=0, return_inverse=True)
    triples = [(int(d), int(p), int(v)) for d, p, v in distinct]
    return triples, rows.reshape(spec.steps, -1)


def _computed(
    network: Network,
    spec: InitSpec,
    views: list[View],
    training: list[Source],
    compute: Compute,
    place: Workplace,
    path: Path,
) -> np.ndarray:
    width = network.head.in_features
    done = path.stat().st_size // (4 * width * _CHUNK) if path.exists() else 0
    chunks = [views[start : start + _CHUNK] for start in range(0, len(views), _CHUNK)]
    loader = train_loader(
        Views(training, chunks, spec.task.image),
        range(done, len(chunks)),
        place.batch_workers(compute),
    )
    network.eval()
    with (
        path.open("r+b" if done else "wb") as file,
        torch.inference_mode(),
        place.progress.task("linear probing: features", len(views)) as task,
    ):
        file.truncate(done * 4 * width * _CHUNK)
        file.seek(0, 2)
        task.advance(min(done * _CHUNK, len(views)))
        for pixels, _ in loader:
            with compute.autocast():
                vectors = network.features(network.normalise(compute.pixels(pixels)))
            file.write(vectors.float().cpu().contiguous().numpy().data)
            task.advance(len(pixels))
    return np.memmap(path, dtype=np.float32, mode="r", shape=(len(views), width))


def _trained(
    head: nn.Linear,
    spec: InitSpec,
    rows: np.ndarray,
    features: np.ndarray,
    labels: torch.Tensor,
    validation: list[Predictions],
    progress: Progress,
) -> dict[str, torch.Tensor]:
    """The head's weights at the step with strictly the best validation accuracy."""
    adam = torch.optim.Adam(head.parameters(), lr=spec.lr)
    best, kept = -1.0, {}
    with progress.task("linear probing: head", spec.steps) as task:
        for step in range(spec.steps):
            chosen = rows[step]
            loss = F.cross_entropy(head(torch.from_numpy(features[chosen])), labels[chosen])
            adam.zero_grad()
            loss.backward()
            adam.step()
            note = ""
            if step % spec.eval_every == 0 or step == spec.steps - 1:
                score = _score(head, validation)
                if score > best or not kept:
                    best = score
                    kept = {name: held.clone() for name, held in head.state_dict().items()}
                note = f"validation {score:.3f}"
            task.advance(note=note)
    return kept


def _score(head: nn.Linear, validation: list[Predictions]) -> float:
    accuracies = []
    with torch.inference_mode():
        for held in validation:
            assert held.features is not None
            accuracies.append(Predictions(head(held.features), held.labels).accuracy())
    return sum(accuracies) / len(accuracies)
