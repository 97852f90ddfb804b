"""The network: timm's own once it is saved, frozen where it should be, trained where it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import timm
import torch
from torch import nn

from diwa.errors import ModelError
from diwa.models.backbones import Backbone, build_backbone
from diwa.models.batchnorm import batch_norms
from diwa.models.network import (
    ModelSpec,
    Network,
    build_network,
    described,
    restore_network,
)
from diwa.weights import files

CLASSES = ("cat", "dog", "eel")


def model(backbone: str = "test_resnet", **more: Any) -> ModelSpec:
    settings = {"size": (32, 48), "channels": 3, "classes": CLASSES, **more}
    return ModelSpec(backbone=backbone, **settings)


def lively(network: nn.Module) -> None:
    """Statistics as after a long training, so that leaving them out would show."""
    chance = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for norm in batch_norms(network):
            for name, tensor in norm.state_dict().items():
                if name in ("weight", "running_var"):
                    tensor.uniform_(0.6, 1.4, generator=chance)
                elif name in ("bias", "running_mean"):
                    tensor.normal_(generator=chance).mul_(0.3)
                else:
                    tensor.fill_(17)


def built(spec: ModelSpec, dropout: float = 0.0, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    network = build_network(spec, weights="none", dropout=dropout)
    lively(network)
    return network


def images(spec: ModelSpec, count: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randn(
        count, spec.channels, *spec.size, generator=torch.Generator().manual_seed(seed)
    )


def timms(spec: ModelSpec, **more: Any) -> nn.Module:
    settings: dict[str, Any] = {"num_classes": len(spec.classes), "in_chans": spec.channels}
    config = timm.get_pretrained_cfg(spec.backbone)
    assert config is not None
    if config.fixed_input_size:
        settings["img_size"] = spec.size
    return timm.create_model(spec.backbone, **settings, **more).eval()


BACKBONES = [
    "test_resnet",
    "test_efficientnet",
    "test_byobnet",
    "test_convnext",
    "test_vit",
    "test_vit2",
    "test_nfnet",
    "mobilenetv3_small_050",
    "densenet121",
    "regnetx_002",
]


class TestTimmReadsIt:
    @pytest.mark.parametrize("backbone", BACKBONES)
    def test_strictly_and_with_the_same_logits(self, backbone: str) -> None:
        spec = model(backbone)
        network = built(spec).eval()
        reference = timms(spec)
        reference.load_state_dict(network.weights(), strict=True)
        x = images(spec)
        with torch.no_grad():
            ours, theirs = network(x), reference(x)
        assert ours.shape == (2, 3)
        assert theirs.std() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("backbone", ["test_resnet", "test_vit", "tf_efficientnet_lite0"])
    def test_from_a_saved_file(self, backbone: str, tmp_path: Path) -> None:
        spec = model(backbone, size=(32, 32))
        network = built(spec).eval()
        path = tmp_path / "weights.safetensors"
        files.write(path, network.weights(), {"model": msgspec.to_builtins(spec)})
        reference = timms(spec, checkpoint_path=str(path))
        x = images(spec)
        with torch.no_grad():
            torch.testing.assert_close(network(x), reference(x), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
    @pytest.mark.parametrize("channels", [1, 2, 3])
    @pytest.mark.parametrize("size", [(32, 32), (32, 64), (48, 16)])
    def test_any_channels_and_any_shape(
        self, backbone: str, channels: int, size: tuple[int, int]
    ) -> None:
        spec = model(backbone, channels=channels, size=size)
        network = built(spec).eval()
        pixels = torch.randint(0, 256, (2, channels, *size), dtype=torch.uint8)
        x = network.normalise(pixels)
        assert x.shape == (2, channels, *size)
        reference = timms(spec)
        reference.load_state_dict(network.weights(), strict=True)
        with torch.no_grad():
            torch.testing.assert_close(network(x), reference(x), rtol=1e-4, atol=1e-5)

    def test_the_weights_are_the_live_ones_without_gradients(self) -> None:
        network = built(model())
        held = network.weights()
        assert held["fc.weight"].data_ptr() == network.head.weight.data_ptr()
        assert not any(tensor.requires_grad for tensor in held.values())
        # Neither the normalisation nor names of our own get into the file.
        assert held.keys() == timms(model()).state_dict().keys()
        assert not {"mean", "std"} & network.state_dict().keys()


class TestTraining:
    @staticmethod
    def steps(network: Network, spec: ModelSpec, count: int = 3) -> None:
        optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
        for step in range(count):
            loss = nn.functional.cross_entropy(
                network(images(spec, 6, seed=step)), torch.tensor([0, 1, 2, 0, 1, 2])
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    @pytest.mark.parametrize(
        ("backbone", "switched"),
        [
            ("test_resnet", False),
            ("test_resnet", True),
            ("test_efficientnet", True),
            ("test_byobnet", False),
        ],
    )
    def test_statistics_never_move_and_everything_else_does(
        self, backbone: str, switched: bool
    ) -> None:
        spec = model(backbone, size=(32, 32))
        network = built(spec)
        if switched:
            # As after each validation.
            network.eval()
            network.train()
        before = {name: tensor.clone() for name, tensor in network.weights().items()}
        self.steps(network, spec)
        statistics = {
            f"{prefix}.{name}"
            for prefix, norm in network.encoder.named_modules()
            if isinstance(norm, nn.BatchNorm2d)
            for name, _ in norm.named_buffers()
        }
        assert len(statistics) == 3 * len(batch_norms(network)) > 0
        moved = {
            name
            for name, tensor in network.weights().items()
            if not torch.equal(tensor, before[name])
        }
        assert moved == before.keys() - statistics

    def test_learns_what_the_unfolded_network_learns(self) -> None:
        """A few steps of timm's own network, its batch norm set to evaluation."""
        spec = model()
        network = built(spec).double()
        reference = timms(spec).double()
        reference.load_state_dict(network.weights())
        optimiser = torch.optim.Adam(reference.parameters(), lr=1e-3)
        ours = torch.optim.Adam(network.parameters(), lr=1e-3)
        for step in range(3):
            x, truth = images(spec, 6, seed=step).double(), torch.tensor([0, 1, 2, 2, 1, 0])
            for net, steps in ((reference, optimiser), (network, ours)):
                steps.zero_grad()
                nn.functional.cross_entropy(net(x), truth).backward()
                steps.step()
        for name, tensor in network.weights().items():
            torch.testing.assert_close(
                tensor, reference.state_dict()[name], rtol=1e-6, atol=1e-7, msg=name
            )

    def test_modes(self) -> None:
        network = built(model())
        assert network.training
        assert network.train(False) is network
        assert not any(module.training for module in network.modules())
        assert network.train() is network
        norms = set(batch_norms(network))
        inside = {module for norm in norms for module in norm.modules()}
        assert {m for m in network.modules() if not m.training} == inside
        assert norms

    def test_a_new_network_is_in_training_mode_with_frozen_norms(self) -> None:
        backbone = build_backbone("test_resnet", size=(32, 32), channels=3, weights="none")
        backbone.encoder.train()
        network = Network(backbone, 3)
        assert network.training
        assert not any(norm.training for norm in batch_norms(network))


class TestDropout:
    def test_in_training_only(self) -> None:
        spec = model()
        network, plain = built(spec, dropout=0.5), built(spec, dropout=0.0)
        x = images(spec)
        with torch.no_grad():
            assert not torch.equal(network(x), network(x))
            assert torch.equal(plain(x), plain(x))
            network.eval()
            plain.eval()
            assert torch.equal(network(x), plain(x))

    def test_drops_pooled_features_and_scales_the_others(self) -> None:
        network = built(model(), dropout=0.25)
        seen: list[torch.Tensor] = []
        network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        features = torch.full((50, network.head.in_features), 3.0)
        network.classify(features)
        (given,) = seen
        assert set(given.unique().tolist()) == {0.0, 4.0}
        assert 0.2 < (given == 0).double().mean().item() < 0.3

    def test_forward_is_features_then_classify(self) -> None:
        network = built(model()).eval()
        x = images(model())
        with torch.no_grad():
            vectors = network.features(x)
            assert vectors.shape == (2, network.head.in_features)
            assert torch.equal(network(x), network.classify(vectors))
            by_hand = vectors @ network.head.weight.T + network.head.bias
            torch.testing.assert_close(network.classify(vectors), by_hand)


class TestNormalisation:
    @pytest.mark.parametrize(
        ("mean", "std"),
        [
            ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ((0.1,), (0.7,)),
            ((0.0, 1.0), (1.0, 0.5)),
        ],
    )
    def test_subtracts_and_divides_per_channel(
        self, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        network = Network(Backbone(nn.Flatten(), 4, mean, std), 2)
        pixels = torch.randint(0, 256, (3, len(mean), 5, 7), dtype=torch.uint8)
        pixels[0, 0, 0, :2] = torch.tensor([0, 255])
        naive = np.empty(pixels.shape)
        for channel in range(len(mean)):
            naive[:, channel] = (pixels[:, channel].numpy() / 255 - mean[channel]) / std[channel]
        normal = network.normalise(pixels)
        assert normal.dtype == torch.float32
        np.testing.assert_allclose(normal.numpy(), naive, rtol=1e-5, atol=1e-6)

    def test_is_timms_for_the_backbone(self) -> None:
        network = built(model("resnet18"))
        black = network.normalise(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
        wanted = [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225]
        assert black[0, :, 0, 0].tolist() == pytest.approx(wanted, rel=1e-6)

    def test_of_vision_transformers_is_another(self) -> None:
        network = built(model("test_vit"))
        white = network.normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
        assert white[0, :, 0, 0].tolist() == pytest.approx([1.0, 1.0, 1.0])


class TestLoading:
    def test_takes_over_what_another_one_gave(self) -> None:
        spec = model()
        network, other = built(spec, seed=0), built(spec, seed=1)
        places = {name: tensor.data_ptr() for name, tensor in network.weights().items()}
        x = images(spec)
        network.load_weights(other.weights())
        with torch.no_grad():
            assert torch.equal(network.eval()(x), other.eval()(x))
        # In place: an optimiser and the folding keep their hold of the parameters.
        assert {name: tensor.data_ptr() for name, tensor in network.weights().items()} == places
        assert all(parameter.requires_grad for parameter in network.parameters())

    def test_takes_sums_in_float64(self) -> None:
        network = built(model())
        wide = {name: tensor.double() for name, tensor in network.weights().items()}
        wide["fc.bias"] = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
        network.load_weights(wide)
        assert network.head.bias.dtype == torch.float32
        assert network.head.bias.tolist() == torch.tensor([0.1, 0.2, 0.3]).tolist()

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("fc.weight", torch.zeros(4, 7), "(4, 7), expected (3,"),
            ("conv1.0.weight", None, "missing, expected ("),
            ("head.weight", torch.zeros(2), "(2,), expected unknown here"),
        ],
    )
    def test_refuses_others_and_changes_nothing(
        self, name: str, value: torch.Tensor | None, words: str
    ) -> None:
        network, other = built(model(), seed=0), built(model(), seed=1)
        tensors = other.weights()
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
        before = {key: tensor.clone() for key, tensor in network.weights().items()}
        with pytest.raises(ModelError) as caught:
            network.load_weights(tensors)
        assert f"weights {name!r}: {words}" in str(caught.value)
        assert "; give weights of this very network" in str(caught.value)
        for key, tensor in network.weights().items():
            assert torch.equal(tensor, before[key]), key


class TestBuilding:
    def test_is_folded(self) -> None:
        network = build_network(model(), weights="none")
        assert all("forward" in vars(norm) for norm in batch_norms(network))

    def test_the_same_seed_gives_the_same_network(self) -> None:
        weights = [build_seeded(seed).weights() for seed in (0, 0, 1)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        assert not torch.equal(weights[0]["fc.weight"], weights[2]["fc.weight"])
        assert not torch.equal(weights[0]["conv1.0.weight"], weights[2]["conv1.0.weight"])

    def test_as_many_outputs_as_classes(self) -> None:
        network = build_network(model(classes=tuple("abcdefg")), weights="none")
        assert network.head.out_features == 7

    def test_from_tensors(self) -> None:
        spec = model()
        kept = built(spec, seed=3).weights()
        network = build_network(spec, weights=kept)
        for name, tensor in network.weights().items():
            # The head is freshly drawn, whatever the file has.
            assert torch.equal(tensor, kept[name]) == (not name.startswith("fc.")), name


def build_seeded(seed: int) -> Network:
    torch.manual_seed(seed)
    return build_network(model(), weights="none")


class TestRestoring:
    @pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_as_it_was_saved(self, backbone: str, dropout: float, tmp_path: Path) -> None:
        spec = model(backbone, channels=2)
        network = built(spec)
        path = tmp_path / "w.safetensors"
        files.write(path, network.weights(), {"model": msgspec.to_builtins(spec)})
        again = restore_network(files.about(path), files.read(path), dropout=dropout)
        x = images(spec)
        with torch.no_grad():
            assert torch.equal(again.eval()(x), network.eval()(x))
        assert again.dropout.p == dropout

    def test_knows_its_description(self) -> None:
        spec = model()
        assert described({"model": msgspec.to_builtins(spec), "score": 1}) == spec

    @pytest.mark.parametrize("about", [{}, {"score": 0.5}])
    def test_weights_that_do_not_say(self, about: dict[str, Any]) -> None:
        with pytest.raises(ModelError, match="don't say which network they are of; use a file"):
            restore_network(about, {})

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"size": [32]}, "size"),
            ({"channels": "3"}, "channels"),
            ({"classes": "cat"}, "classes"),
            ({"colour": True}, "colour"),
            ({"backbone": None}, "backbone"),
        ],
    )
    def test_a_description_that_is_none(self, change: dict[str, Any], word: str) -> None:
        about = {"model": {**msgspec.to_builtins(model()), **change}}
        with pytest.raises(ModelError, match="the weights' description of their network") as caught:
            described(about)
        assert word in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_description_that_is_no_object(self) -> None:
        with pytest.raises(ModelError, match="description of their network"):
            described({"model": "test_resnet"})

    def test_weights_of_another_network(self) -> None:
        about = {"model": msgspec.to_builtins(model(classes=("cat", "dog")))}
        with pytest.raises(ModelError, match=r"weights 'fc.bias': \(3,\), expected \(2,\)"):
            restore_network(about, built(model()).weights())
