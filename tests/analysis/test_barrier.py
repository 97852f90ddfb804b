"""Losses between members against a plain timm model that is loaded with blended weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch.nn import functional as F

from diwa.analysis.barrier import Survey, barrier, survey
from diwa.analysis.check import check
from diwa.data.benchmark import Benchmark, open_folder
from diwa.data.transforms import squash
from diwa.errors import DataError, DiwaError, ModelError, SpecError
from diwa.weights import files
from diwa.weights.member import Member

MODEL = "test_resnet"
ABOUT = {"model": {"backbone": MODEL, "size": [32, 32], "channels": 3, "classes": ["cat", "dog"]}}
State = dict[str, torch.Tensor]


def state(seed: int, model: str = MODEL, classes: int = 2) -> State:
    torch.manual_seed(seed)
    network = timm.create_model(model, num_classes=classes)
    weights = network.state_dict()
    # So that statistics of batch norm are not all the same.
    return {
        name: tensor + 0.05 * torch.rand_like(tensor) if "running_var" in name else tensor
        for name, tensor in weights.items()
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Member]:
    def written(name: str, weights: State, about: Mapping[str, object] = ABOUT) -> Member:
        files.write(tmp_path / f"{name}.safetensors", weights, about)
        return Member.from_file(tmp_path / f"{name}.safetensors")

    return written


def blended(states: Sequence[State], parts: Sequence[float]) -> State:
    return {
        name: sum(
            (part * one[name].double() for one, part in zip(states, parts, strict=True)),
            torch.zeros(tensor.shape, dtype=torch.float64),
        ).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in states[0].items()
    }


def plain(weights: State, images: Benchmark, model: str = MODEL) -> tuple[float, float]:
    """Loss and accuracy, as one would write it down."""
    network = timm.create_model(model, num_classes=2)
    network.load_state_dict(weights)
    network.eval()
    config: dict = vars(network)["pretrained_cfg"]
    pixels, labels = [], []
    for domain in images:
        pixels += [squash(domain.images[n], (32, 32)) for n in range(len(domain))]
        labels += [int(label) for label in domain.labels]
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(config[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        logits = network((x - mean) / std)
    truth = torch.tensor(labels)
    loss = F.cross_entropy(logits.double(), truth).item()
    return loss, (logits.argmax(1) == truth).double().mean().item()


def test_against_a_plain_network(shapes: Benchmark, write: Callable[..., Member]) -> None:
    states = [state(seed) for seed in range(3)]
    members = [write(name, one) for name, one in zip("abc", states, strict=True)]
    land = survey(Survey(members, ABOUT, shapes, device="cpu"), points=(0.25, 0.5))
    assert (land.images, land.domains, land.classes) == (36, ["cartoon", "photo", "sketch"], 2)

    def loss(*parts: float) -> float:
        return plain(blended(states, parts), shapes)[0]

    for name, parts in zip("abc", np.eye(3), strict=True):
        expected = plain(blended(states, parts.tolist()), shapes)
        assert land.members[name].loss == pytest.approx(expected[0], rel=1e-4)
        assert land.members[name].accuracy == pytest.approx(expected[1])
    assert land.mean.loss == pytest.approx(loss(1 / 3, 1 / 3, 1 / 3), rel=1e-4)
    way = next(way for way in land.ways if (way.one, way.other) == ("b", "c"))
    assert way.at == [0.25, 0.5]
    assert way.points[0].loss == pytest.approx(loss(0, 0.75, 0.25), rel=1e-4)
    assert way.points[1].loss == pytest.approx(loss(0, 0.5, 0.5), rel=1e-4)
    to_mean = next(way for way in land.to_mean if way.one == "a")
    assert to_mean.other == "mean"
    assert to_mean.points[1].loss == pytest.approx(loss(2 / 3, 1 / 6, 1 / 6), rel=1e-4)
    straight = (loss(0, 1, 0) + loss(0, 0, 1)) / 2
    assert way.barrier >= way.points[1].loss - straight - 1e-6
    assert [(way.one, way.other) for way in land.ways] == [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.mark.parametrize("model", [MODEL, "test_efficientnet", "test_convnext"])
def test_weights_of_others_are_built_as_timm_builds_them(
    model: str, shapes: Benchmark, write: Callable[..., Member]
) -> None:
    states = [state(seed, model) for seed in range(2)]
    members = [write(name, one, {}) for name, one in zip("ab", states, strict=True)]
    verdict = check(members, benchmark=shapes, model=model, size=(32, 32), device="cpu")
    land = verdict.evidence.landscape
    assert land is not None
    for name, one in zip("ab", states, strict=True):
        assert land.members[name].loss == pytest.approx(plain(one, shapes, model)[0], rel=1e-4)
    assert verdict.evidence.pairs[0].barrier == land.ways[0].barrier


def test_half_precision_and_integers(shapes: Benchmark, write: Callable[..., Member]) -> None:
    start = state(0)
    half = {n: t.to(torch.bfloat16) if t.is_floating_point() else t for n, t in start.items()}
    ground = Survey([write("a", half), write("b", start)], ABOUT, shapes, device="cpu")
    assert ground.scored({"a": 1.0}).loss == pytest.approx(plain(start, shapes)[0], rel=0.02)
    assert ground.mean(["a", "b"]).loss == pytest.approx(plain(start, shapes)[0], rel=0.02)


@pytest.mark.parametrize(
    ("ends", "at", "losses", "height"),
    [
        ((1.0, 1.0), [0.5], [1.5], 0.5),
        ((1.0, 3.0), [0.5], [2.5], 0.5),
        ((1.0, 3.0), [0.25, 0.5, 0.75], [1.5, 2.0, 2.6], 0.1),
        ((1.0, 3.0), [0.25, 0.75], [1.0, 1.0], 0.0),
    ],
)
def test_barrier(
    ends: tuple[float, float], at: list[float], losses: list[float], height: float
) -> None:
    assert barrier(*ends, at, losses) == pytest.approx(height)


def test_some_images_of_every_class(folder: Path, write: Callable[..., Member]) -> None:
    images = open_folder(folder, size=(32, 32), allow_small_domains=True)
    members = [write("a", state(0)), write("b", state(1))]
    ground = Survey(members, ABOUT, images, domains=["sketch"], limit=4, device="cpu")
    assert ground.images == 4
    labels = ground._images.labels
    assert np.bincount(labels).tolist() == [2, 2]
    everything = Survey(members, ABOUT, images, limit=10_000, device="cpu")
    assert everything.images == 36


@pytest.mark.parametrize("points", [(), (0.0,), (1.0,), (0.5, 1.5), (-0.5,), (float("nan"),)])
def test_points_off_the_way(
    points: tuple[float, ...], shapes: Benchmark, write: Callable[..., Member]
) -> None:
    members = [write("a", state(0)), write("b", state(1))]
    ground = Survey(members, ABOUT, shapes, device="cpu")
    with pytest.raises(SpecError, match=r"points.*give numbers between 0 and 1"):
        survey(ground, points=points)


def test_mistakes_are_told(shapes: Benchmark, write: Callable[..., Member]) -> None:
    members = [write("a", state(0)), write("b", state(1))]

    def refused(kind: type[DiwaError], says: str, **how: object) -> None:
        with pytest.raises(kind, match=says) as raised:
            Survey(members, ABOUT, shapes, device="cpu", **how)  # pyright: ignore
        assert "\n" not in str(raised.value)

    refused(SpecError, "limit=0", limit=0)
    refused(DataError, "has no domain 'skech'; did you mean 'sketch'", domains=["skech"])
    with pytest.raises(
        ModelError, match=r"c\.safetensors: weights 'fc\.bias': \(5,\), expected \(2,\)"
    ):
        Survey([write("c", state(0, classes=5))], ABOUT, shapes, device="cpu")
    bare = [write("d", state(0), {}), write("e", state(1), {})]
    with pytest.raises(ModelError, match=r"d\.safetensors: does not tell.*--model NAME"):
        check(bare, benchmark=shapes)
    with pytest.raises(ModelError, match="did you mean"):
        check(bare, benchmark=shapes, model="test_resnett", size=(32, 32))
    with pytest.raises(ModelError, match="no_such"):
        check(bare, benchmark=shapes, model="test_resnet.no_such")


def test_progress_counts_every_score(shapes: Benchmark, write: Callable[..., Member]) -> None:
    class Told:
        total = done = 0

        def task(self, title: str, total: int):
            self.total = total
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def advance(self, amount: int = 1, *, note: str = "") -> None:
            self.done += amount

        def say(self, text: str) -> None:
            pass

    told = Told()
    members = [write(name, state(n)) for n, name in enumerate("abc")]
    survey(Survey(members, ABOUT, shapes, device="cpu"), points=(0.5,), progress=told)
    assert told.total == told.done == 3 + 1 + 3 + 3
