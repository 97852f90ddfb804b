"""Scores of weights on domains, against counting by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from diwa.data.benchmark import Benchmark, open_folder
from diwa.errors import DataError, ModelError, SpecError
from diwa.evaluate import score as scoring
from diwa.evaluate.predict import predict
from diwa.evaluate.predictions import Predictions
from diwa.evaluate.score import Score, score_domains
from diwa.models.network import ModelSpec, build_network
from diwa.weights import files
from diwa.weights.member import Member


@pytest.fixture
def shapes(folder: Path) -> Benchmark:
    return open_folder(folder)


@pytest.fixture
def weights(shapes: Benchmark, tmp_path: Path) -> Member:
    """A random network whose head is set so that it is right for some images only."""
    torch.manual_seed(0)
    spec = ModelSpec(backbone="test_resnet", size=(32, 32), channels=3, classes=shapes.classes)
    tensors = build_network(spec, weights="none").weights()
    told = {"model": msgspec.to_builtins(spec)}
    path = tmp_path / "m.safetensors"
    files.write(path, tensors, told)
    logits = torch.cat(
        [whole(Member.from_file(path), shapes, name).logits for name in shapes.names]
    )
    middle = (logits[:, 0] - logits[:, 1]).median()
    tensors["fc.bias"][1] += middle
    for leaf in ("weight", "bias"):
        tensors[f"fc.{leaf}"].mul_(1 / (logits[:, 0] - logits[:, 1]).std())
    files.write(path, tensors, told)
    return Member.from_file(path)


def whole(weights: Member, benchmark: Benchmark, domain: str) -> Predictions:
    return predict(weights, benchmark, domain, device="cpu", precision="fp32")


def counted(says: Predictions, positions: list[int]) -> tuple[float, float]:
    """Accuracy and loss over those images, one after the other."""
    right, loss = 0, 0.0
    for position in positions:
        row, label = says.logits[position].tolist(), int(says.labels[position])
        right += max(range(len(row)), key=row.__getitem__) == label
        loss += math.log(sum(math.exp(value) for value in row)) - row[label]
    return right / len(positions), loss / len(positions)


def scored(weights: Any, benchmark: Benchmark, *domains: str, **more: Any) -> list[Score]:
    return score_domains(weights, benchmark, domains, device="cpu", precision="fp32", **more)


@pytest.mark.parametrize("part", ["all", "in", "out"])
@pytest.mark.parametrize("trial", [0, 1])
def test_each_part_of_each_domain(
    weights: Member, shapes: Benchmark, part: str, trial: int
) -> None:
    found = scored(weights, shapes, *shapes.names, part=part, trial=trial)
    assert [one.domain for one in found] == ["cartoon", "photo", "sketch"]
    accuracies = set()
    for one in found:
        split = shapes.split(one.domain, trial=trial)
        positions = {"all": np.arange(12), "in": split.inner, "out": split.outer}[part].tolist()
        accuracy, loss = counted(whole(weights, shapes, one.domain), positions)
        assert (one.part, one.images) == (part, {"all": 12, "in": 10, "out": 2}[part])
        assert one.accuracy == accuracy
        assert one.cross_entropy == pytest.approx(loss, rel=1e-4)
        accuracies.add(accuracy)
    if part == "all":
        assert any(0 < accuracy < 1 for accuracy in accuracies), "a test that tells nothing"


def test_the_parts_are_different_images(weights: Member, shapes: Benchmark) -> None:
    losses = {
        (part, trial): scored(weights, shapes, "photo", part=part, trial=trial)[0].cross_entropy
        for part in ("in", "out")
        for trial in (0, 1)
    }
    assert len(set(losses.values())) == 4


def test_in_the_order_asked_for_with_one_network(
    weights: Member, shapes: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    plain = scoring.restore_network
    monkeypatch.setattr(scoring, "restore_network", lambda *given: built.append(1) or plain(*given))
    found = scored(weights, shapes, "sketch", "cartoon", "sketch")
    assert [one.domain for one in found] == ["sketch", "cartoon", "sketch"]
    assert found[0] == found[2] != found[1]
    assert len(built) == 1
    assert scored(weights, shapes) == []


def test_a_score_is_readable_as_json(weights: Member, shapes: Benchmark) -> None:
    (found,) = scored(weights, shapes, "photo")
    assert Score.from_json(found.to_json()) == found


@pytest.mark.parametrize("part", ["", "validation", "IN", None])
def test_a_part_that_there_is_not(weights: Member, shapes: Benchmark, part: Any) -> None:
    with pytest.raises(SpecError, match="; choose all, in, out") as caught:
        scored(weights, shapes, "photo", part=part)
    assert str(caught.value).startswith(f"part {part!r}")


def test_a_domain_that_is_not_there(
    weights: Member, shapes: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before any domain is scored."""
    monkeypatch.delattr(scoring, "restore_network")
    with pytest.raises(DataError, match="has no domain 'foto'"):
        scored(weights, shapes, "sketch", "foto")


def test_a_part_without_images(weights: Member, folder: Path) -> None:
    for number in range(4):
        (folder / "photo" / "cat" / f"{number}.png").unlink()
        (folder / "photo" / "dog" / f"{number}.png").unlink()
    small = open_folder(folder, allow_small_domains=True)
    assert scored(weights, small, "photo", part="in")[0].images == 4
    with pytest.raises(DataError, match="photo: has no images in part 'out'; use --part all"):
        scored(weights, small, "photo", part="out")


def test_weights_for_other_classes(weights: Member, tmp_path: Path, shapes: Benchmark) -> None:
    told = {"model": {**weights.about["model"], "classes": ["cat", "dog", "eel"]}}
    path = tmp_path / "other.safetensors"
    files.write(path, dict(weights.tensors()), told)
    with pytest.raises(ModelError, match="'eel' differs"):
        scored(Member.from_file(path), shapes, "photo")
