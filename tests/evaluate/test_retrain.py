"""Last-layer retraining of one network: what is trained, what is tested, what is kept."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

import diwa
from diwa.data.benchmark import Benchmark, Domain
from diwa.errors import DataError, DiwaError, ModelError, SpecError
from diwa.evaluate import features as keeping
from diwa.evaluate.predict import predict
from diwa.evaluate.retrain import retrain
from diwa.models.network import ModelSpec, build_network
from diwa.weights import files
from diwa.weights.member import Member


@pytest.fixture
def weights(shapes: Benchmark, tmp_path: Path) -> Member:
    """A random network."""
    torch.manual_seed(0)
    spec = ModelSpec(backbone="test_resnet", size=(32, 32), channels=3, classes=shapes.classes)
    path = tmp_path / "m.safetensors"
    about = {"model": msgspec.to_builtins(spec), "score": 0.5}
    files.write(path, build_network(spec, weights="none").weights(), about)
    return Member.from_file(path)


def again(weights: Any, benchmark: Benchmark, **more: Any) -> diwa.Retrained:
    return retrain(weights, benchmark, "sketch", device="cpu", precision="fp32", **more)


def relabelled(benchmark: Benchmark, labels: np.ndarray) -> Benchmark:
    """The same images with other labels in sketch."""

    def load(domain: Domain) -> Callable[[], Any]:
        return lambda: (domain.images, np.arange(len(domain)))

    return Benchmark(
        benchmark.name,
        benchmark.classes,
        [Domain(d.name, labels if d.name == "sketch" else d.labels, load(d)) for d in benchmark],
        digest=benchmark.digest,
    )


@pytest.mark.parametrize(("part", "trained", "tested"), [("out", 2, 10), ("in", 10, 2)])
def test_one_side_trains_and_the_other_tests(
    weights: Member, shapes: Benchmark, part: str, trained: int, tested: int
) -> None:
    new = again(weights, shapes, part=part, trial=1)
    assert (new.trained_on, new.tested_on) == (trained, tested)
    sides = shapes.split("sketch", trial=1)
    test = sides.inner if part == "out" else sides.outer
    labels = shapes["sketch"].labels
    before = predict(weights, shapes, "sketch", device="cpu", precision="fp32")
    after = predict(new, shapes, "sketch", device="cpu", precision="fp32")
    for says, accuracy in ((before, new.before), (after, new.accuracy)):
        assert accuracy == (says.logits.argmax(1).numpy() == labels)[test].mean()


def test_images_that_test_never_bear_on_the_layer(weights: Member, shapes: Benchmark) -> None:
    new = again(weights, shapes, part="in")
    test = shapes.split("sketch", trial=0).outer
    labels = shapes["sketch"].labels.copy()
    labels[test] = 1 - labels[test]
    other = again(weights, relabelled(shapes, labels), part="in")
    assert new.accuracy is not None
    assert other.accuracy == pytest.approx(1 - new.accuracy)
    assert torch.equal(new.head.weight, other.head.weight)
    assert torch.equal(new.head.bias, other.head.bias)
    train = shapes.split("sketch", trial=0).inner
    labels = shapes["sketch"].labels.copy()
    labels[train[:3]] = 1 - labels[train[:3]]
    changed = again(weights, relabelled(shapes, labels), part="in")
    assert not torch.equal(new.head.weight, changed.head.weight)


def test_timm_loads_what_is_saved(weights: Member, shapes: Benchmark, tmp_path: Path) -> None:
    new = again(weights, shapes, part="in")
    path = new.save(tmp_path / "new.safetensors")
    first = path.read_bytes()
    network = timm.create_model("test_resnet", num_classes=2, checkpoint_path=str(path)).eval()
    held, old = load_file(path), load_file(weights.path)
    assert all(torch.equal(t, held[name]) for name, t in network.state_dict().items())
    assert {n for n in held if not torch.equal(held[n], old[n])} == {"fc.weight", "fc.bias"}
    assert torch.equal(held["fc.weight"], new.head.weight)
    loaded = Member.from_file(path)
    says = [predict(w, shapes, "photo", device="cpu", precision="fp32") for w in (new, loaded)]
    assert torch.equal(says[0].logits, says[1].logits)
    assert loaded.score is None, "the validation accuracy was that of another head"
    assert loaded.about["retrained"]["domain"] == "sketch"
    assert loaded.about["retrained"]["images"] == 10
    assert again(weights, shapes, part="in").save(path).read_bytes() == first


def test_features_are_kept_and_no_image_is_opened_again(
    weights: Member, shapes: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(key: str) -> Path:
        return tmp_path / "features" / f"{key}.safetensors"

    new = again(weights, shapes, kept=kept)
    (path,) = (tmp_path / "features").iterdir()
    content = path.read_bytes()

    class _Opened(Exception):
        pass

    def load() -> Any:
        raise _Opened

    blind = Benchmark(
        shapes.name,
        shapes.classes,
        [Domain(d.name, d.labels, load) for d in shapes],
        digest=shapes.digest,
        cache=shapes.cache,
    )
    monkeypatch.delattr(keeping, "restore_network")
    second = again(weights, blind, kept=kept)
    assert torch.equal(second.head.weight, new.head.weight)
    assert (second.accuracy, second.before) == (new.accuracy, new.before)
    monkeypatch.undo()
    with pytest.raises(_Opened):
        again(weights, blind)
    damaged = content[: len(content) // 2]
    path.write_bytes(damaged)
    with pytest.raises(_Opened):
        again(weights, blind, kept=kept)
    again(weights, shapes, kept=kept)
    assert path.read_bytes() == content


def test_other_weights_images_or_precision_have_features_of_their_own(
    weights: Member, shapes: Benchmark, tmp_path: Path
) -> None:
    keys: list[str] = []

    def kept(key: str) -> Path:
        keys.append(key)
        return tmp_path / "features" / key

    again(weights, shapes, kept=kept)
    again(weights, shapes, kept=kept, part="in", trial=2)
    assert len(set(keys)) == 1, "the split does not matter"
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(weights.path.read_bytes())
    again(Member.from_file(copy), shapes, kept=kept)
    assert len(set(keys)) == 1, "nor does the file's name"
    tensors = dict(weights.tensors())
    tensors["conv1.weight" if "conv1.weight" in tensors else min(tensors)].add_(0.01)
    files.write(copy, tensors, dict(weights.about))
    again(Member.from_file(copy), shapes, kept=kept)
    retrain(weights, shapes, "photo", kept=kept, device="cpu", precision="fp32")
    retrain(weights, shapes, "sketch", kept=kept, device="cpu", precision="bf16")
    other = relabelled(shapes, shapes["sketch"].labels)
    other.digest = "other"
    again(weights, other, kept=kept)
    assert len(set(keys)) == 5


def test_positions_of_ones_own(weights: Member, shapes: Benchmark) -> None:
    new = again(weights, shapes, positions=np.array([11, 0, 5, 0]))
    assert (new.trained_on, new.tested_on) == (3, 9)
    other = again(weights, shapes, positions=np.array([0, 5, 11]))
    assert torch.equal(new.head.weight, other.head.weight), "in any order"
    whole = again(weights, shapes, positions=np.arange(12))
    assert (whole.tested_on, whole.accuracy, whole.before) == (0, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.accuracy = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def test_a_class_that_no_training_image_has(weights: Member, shapes: Benchmark) -> None:
    labels = shapes["sketch"].labels
    new = again(weights, shapes, positions=np.flatnonzero(labels == 1)[:4])
    says = predict(new, shapes, "sketch", device="cpu", precision="fp32")
    assert set(says.logits.argmax(1).tolist()) == {1}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"part": "all"}, SpecError, "part 'all'; choose in (80 %) or out (20 %)"),
        ({"positions": np.array([], dtype=int)}, DataError, "no images to train the last layer"),
        ({"positions": np.array([12])}, SpecError, "no image at position 12; give positions from"),
        ({"positions": np.array([-1, 3])}, SpecError, "no image at position -1; give positions"),
        ({"holdout": 0.01}, DataError, "no images to train the last layer on; choose another part"),
    ],
)
def test_refusals(
    weights: Member, shapes: Benchmark, given: dict[str, Any], error: type[DiwaError], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)) as caught:
        again(weights, shapes, **given)
    assert "\n" not in str(caught.value)


def test_other_domains_and_classes_are_refused(
    weights: Member, shapes: Benchmark, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="has no domain 'foto'"):
        retrain(weights, shapes, "foto")
    told = {"model": {**weights.about["model"], "classes": ["cat", "eel"]}}
    path = tmp_path / "other.safetensors"
    files.write(path, dict(weights.tensors()), told)
    with pytest.raises(ModelError, match="'dog' differs"):
        again(Member.from_file(path), shapes)
