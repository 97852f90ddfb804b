"""Predictions against a network that is shown one image after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from diwa.data.benchmark import Benchmark, open_folder
from diwa.data.loaders import Source
from diwa.data.transforms import ImageSpec
from diwa.errors import DataError, ModelError
from diwa.evaluate.predict import image_of, predict, predict_network, source_of
from diwa.models.device import Compute
from diwa.models.network import ModelSpec, Network, build_network
from diwa.soup.uniform import uniform
from diwa.weights import files
from diwa.weights.member import Member

CPU = Compute.choose("cpu", "fp32")


class Pictures:
    """Images in memory, of different sizes."""

    def __init__(self, count: int, channels: int = 3) -> None:
        chance = np.random.RandomState(1)
        self._held = [
            chance.randint(0, 256, (20 + 3 * (n % 5), 31 - n % 3, channels)).astype(np.uint8)
            for n in range(count)
        ]

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, position: int) -> np.ndarray:
        return self._held[position]

    def original_size(self, position: int) -> tuple[int, int]:
        return self._held[position].shape[0], self._held[position].shape[1]


def source(count: int, channels: int = 3) -> Source:
    labels = np.random.RandomState(2).randint(0, 3, count)
    return Source(Pictures(count, channels), labels, np.arange(count))


def built(channels: int = 3, size: tuple[int, int] = (24, 32), **more: Any) -> Network:
    torch.manual_seed(0)
    spec = ModelSpec(backbone="test_resnet", size=size, channels=channels, classes=("a", "b", "c"))
    network = build_network(spec, weights="none", **more)
    with torch.no_grad():
        # Random features differ little between images; so the logits do.
        network.head.weight.mul_(100)
    return network


def naive(
    network: Network, images: Source, size: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features, one image at a time: squashed by Pillow, normalised by hand."""
    logits, features = [], []
    mean, std = network.mean.flatten() / 255, network.std.flatten() / 255
    modes = {1: "L", 3: "RGB"}
    for position in images.positions:
        pixels = images.images[position]
        shown = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        picture = Image.fromarray(shown, modes[pixels.shape[2]])  # pyright: ignore[reportCallIssue]
        squashed = np.array(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))
        squashed = squashed.reshape(*size, -1)
        x = torch.from_numpy(squashed / 255).permute(2, 0, 1).float()
        x = (x - mean[:, None, None]) / std[:, None, None]
        with torch.no_grad():
            vector = network.encoder(x[None])
            features.append(vector[0])
            logits.append((vector @ network.head.weight.T + network.head.bias)[0])
    return torch.stack(logits), torch.stack(features)


class Heard:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int]] = []
        self.done: list[int] = []

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Heard]:
        self.tasks.append((title, total))
        yield self

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        del note
        self.done.append(amount)

    def say(self, text: str) -> None:
        raise AssertionError(text)


class TestPredictNetwork:
    @pytest.mark.parametrize("count", [1, 64, 150])
    def test_is_what_the_network_says_of_each_image(self, count: int) -> None:
        images, network = source(count), built(dropout=0.5)
        image = ImageSpec(size=(24, 32), channels=3)
        says = predict_network(network, images, image, CPU, want_features=True)
        logits, features = naive(network.eval(), images, (24, 32))
        if count > 1:
            assert (logits.amax(dim=0) - logits.amin(dim=0)).min() > 0.05, "images must differ"
        torch.testing.assert_close(says.logits, logits, rtol=1e-3, atol=1e-5)
        assert says.features is not None
        torch.testing.assert_close(says.features, features, rtol=1e-3, atol=1e-5)
        assert says.labels.tolist() == images.labels.tolist()
        assert says.logits.dtype == says.features.dtype == torch.float32

    def test_grey_images(self) -> None:
        images, network = source(5, channels=1), built(channels=1)
        says = predict_network(network, images, ImageSpec(size=(24, 32), channels=1), CPU)
        logits, _ = naive(network.eval(), images, (24, 32))
        torch.testing.assert_close(says.logits, logits, rtol=1e-3, atol=1e-5)

    def test_chosen_positions_in_their_order(self) -> None:
        images, network = source(70), built()
        image = ImageSpec(size=(24, 32), channels=3)
        everything = predict_network(network, images, image, CPU)
        positions = np.array([69, 3, 3, 20, 0])
        some = Source(images.images, images.labels, positions)
        says = predict_network(network, some, image, CPU)
        torch.testing.assert_close(says.logits, everything.logits[positions], rtol=1e-4, atol=1e-6)
        assert says.labels.tolist() == images.labels[positions].tolist()

    def test_features_only_where_they_are_wanted(self) -> None:
        says = predict_network(built(), source(2), ImageSpec(size=(24, 32), channels=3), CPU)
        assert says.features is None

    @pytest.mark.parametrize("training", [True, False])
    def test_leaves_the_network_as_it_was(self, training: bool) -> None:
        network = built(dropout=0.5).train(training)
        modes = [module.training for module in network.modules()]
        before = {name: tensor.clone() for name, tensor in network.weights().items()}
        predict_network(network, source(3), ImageSpec(size=(24, 32), channels=3), CPU)
        assert [module.training for module in network.modules()] == modes
        assert all(torch.equal(t, before[name]) for name, t in network.weights().items())
        assert all(parameter.requires_grad for parameter in network.parameters())

    def test_the_predictions_are_plain_tensors(self) -> None:
        """Of inference mode nothing is left that would trip up whoever computes with them."""
        image = ImageSpec(size=(24, 32), channels=3)
        says = predict_network(built(), source(3), image, CPU, want_features=True)
        assert says.features is not None
        for tensor in (says.logits, says.features):
            assert not tensor.is_inference()
            assert not tensor.requires_grad

    def test_no_images(self) -> None:
        none = Source(Pictures(3), np.zeros(3, dtype=np.int64), np.zeros(0, dtype=np.int64))
        says = predict_network(built(), none, ImageSpec(size=(24, 32), channels=3), CPU)
        assert says.logits.shape == (0, 3)
        assert (len(says), says.labels.dtype) == (0, torch.int64)

    def test_tells_how_far_it_is(self) -> None:
        heard = Heard()
        image = ImageSpec(size=(24, 32), channels=3)
        predict_network(built(), source(150), image, CPU, progress=heard, title="looking")
        assert heard.tasks == [("looking", 150)]
        assert sum(heard.done) == 150
        assert len(heard.done) > 1

    def test_in_bf16_it_says_nearly_the_same(self) -> None:
        network, images, image = built(), source(8), ImageSpec(size=(24, 32), channels=3)
        exact = predict_network(network, images, image, CPU)
        rough = predict_network(network, images, image, Compute.choose("cpu", "bf16"))
        assert rough.logits.dtype == torch.float32
        assert not torch.equal(rough.logits, exact.logits)
        scale = exact.logits.abs().max().item()
        torch.testing.assert_close(rough.logits, exact.logits, rtol=0, atol=0.05 * scale)


def about(benchmark: Benchmark, **more: Any) -> dict[str, Any]:
    settings = {
        "backbone": "test_resnet",
        "size": (32, 32),
        "channels": benchmark.channels,
        "classes": benchmark.classes,
        **more,
    }
    return {"model": msgspec.to_builtins(ModelSpec(**settings))}


def member(path: Path, told: dict[str, Any], seed: int = 0) -> Member:
    torch.manual_seed(seed)
    spec = msgspec.convert(told["model"], ModelSpec)
    files.write(path, build_network(spec, weights="none").weights(), told)
    return Member.from_file(path)


class TestImageOf:
    def test_says_how_images_reach_the_network(self, folder: Path) -> None:
        shapes = open_folder(folder)
        assert image_of(about(shapes, size=(32, 48)), shapes) == ImageSpec(size=(32, 48))
        grey = open_folder(folder, channels=1)
        assert image_of(about(grey), grey) == ImageSpec(size=(32, 32), channels=1)

    @pytest.mark.parametrize(
        ("classes", "words"),
        [
            (("cat", "dog", "eel"), ["for 3 classes", "shapes has 2", "'eel' differs"]),
            (("cat",), ["for 1 classes", "'dog' differs"]),
            (("cat", "dug"), ["'dog' differs"]),
            (("dog", "cat"), ["'their order' differs"]),
        ],
    )
    def test_other_classes(self, folder: Path, classes: tuple[str, ...], words: list[str]) -> None:
        shapes = open_folder(folder)
        with pytest.raises(ModelError) as caught:
            image_of(about(shapes, classes=classes), shapes)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert "; score on a folder with the same classes" in str(caught.value)

    def test_other_channels(self, folder: Path) -> None:
        shapes = open_folder(folder)
        with pytest.raises(ModelError, match=r"images of 1 channels.*; open it with channels=1"):
            image_of(about(shapes, channels=1), shapes)

    def test_weights_that_do_not_say(self, folder: Path) -> None:
        with pytest.raises(ModelError, match="don't say which network"):
            image_of({}, open_folder(folder))


class TestPredict:
    def test_a_member_on_a_domain(self, folder: Path, tmp_path: Path) -> None:
        shapes = open_folder(folder)
        weights = member(tmp_path / "m.safetensors", about(shapes))
        says = predict(weights, shapes, "photo", device="cpu", precision="fp32", want_features=True)
        torch.manual_seed(0)
        spec = msgspec.convert(weights.about["model"], ModelSpec)
        network = build_network(spec, weights="none").eval()
        logits, features = naive(network, source_of(shapes["photo"]), (32, 32))
        torch.testing.assert_close(says.logits, logits, rtol=1e-3, atol=1e-5)
        assert says.features is not None
        torch.testing.assert_close(says.features, features, rtol=1e-3, atol=1e-5)
        assert says.labels.tolist() == [0] * 6 + [1] * 6

    def test_a_soup_is_neither_of_its_members(self, folder: Path, tmp_path: Path) -> None:
        shapes = open_folder(folder)
        members = [
            member(tmp_path / f"{seed}.safetensors", about(shapes), seed) for seed in range(2)
        ]
        soup = uniform(members)

        def say(one: Any) -> torch.Tensor:
            return predict(one, shapes, "sketch", device="cpu", precision="fp32").logits

        saved = Member.from_file(soup.save(tmp_path / "soup.safetensors"))
        assert torch.equal(say(soup), say(saved))
        assert all(not torch.equal(say(soup), say(one)) for one in members)

    def test_tells_of_the_domain(self, folder: Path, tmp_path: Path) -> None:
        shapes, heard = open_folder(folder), Heard()
        weights = member(tmp_path / "m.safetensors", about(shapes))
        predict(weights, shapes, "photo", device="cpu", progress=heard)
        assert heard.tasks == [("scoring photo", 12)]
        assert sum(heard.done) == 12

    def test_a_domain_that_is_not_there(self, folder: Path, tmp_path: Path) -> None:
        shapes = open_folder(folder)
        weights = member(tmp_path / "m.safetensors", about(shapes))
        with pytest.raises(DataError, match="has no domain 'foto'; did you mean 'photo'"):
            predict(weights, shapes, "foto", device="cpu")

    def test_weights_for_other_classes(self, folder: Path, tmp_path: Path) -> None:
        shapes = open_folder(folder)
        weights = member(tmp_path / "m.safetensors", about(shapes, classes=("cat", "eel")))
        with pytest.raises(ModelError, match="'dog' differs"):
            predict(weights, shapes, "photo", device="cpu")


class TestSourceOf:
    def test_everything(self, folder: Path) -> None:
        domain = open_folder(folder)["photo"]
        all_of_it = source_of(domain)
        assert all_of_it.positions.tolist() == list(range(12))
        assert all_of_it.labels.tolist() == domain.labels.tolist()
        assert len(all_of_it.images) == 12

    def test_some_positions(self, folder: Path) -> None:
        domain = open_folder(folder)["photo"]
        some = source_of(domain, np.array([7, 2]))
        assert some.positions.tolist() == [7, 2]
        assert some.labels.tolist() == domain.labels.tolist(), "labels are looked up by position"
