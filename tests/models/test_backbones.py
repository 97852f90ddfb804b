"""Backbones by name, their weights from tensors, a plug-in, or a hub that may be out of reach."""

from __future__ import annotations

import logging
import socket
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from torch import nn

from diwa.errors import ModelError
from diwa.models import backbones
from diwa.models.backbones import Backbone, build_backbone
from diwa.registry import Registry

Tensors = dict[str, torch.Tensor]


def pretrained(name: str, seed: int = 3, **settings: Any) -> Tensors:
    """What a file of timm's weights for a thousand classes would hold."""
    torch.manual_seed(seed)
    network = timm.create_model(name, pretrained=False, **settings)
    tensors = dict(network.state_dict())
    for key, tensor in tensors.items():
        if key.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 1.5)
    return tensors


def built(name: str, weights: Tensors | str, **more: Any) -> Backbone:
    return build_backbone(name, **{"size": (32, 32), "channels": 3, "weights": weights, **more})


class TestNames:
    @pytest.mark.parametrize(
        ("name", "guess"), [("resnt18", "resnet18"), ("test_vitt", "test_vit")]
    )
    def test_a_typo(self, name: str, guess: str) -> None:
        with pytest.raises(ModelError, match=f"backbone '{name}'") as caught:
            built(name, "none")
        assert "did you mean" in str(caught.value)
        assert guess in str(caught.value)

    def test_nothing_like_it(self) -> None:
        with pytest.raises(ModelError, match=r"neither timm nor a plug-in has it$"):
            built("#", "none")

    @pytest.mark.parametrize("weights", ["none", "hub", {}])
    @pytest.mark.parametrize("tag", ["no_such_tag", "", "a1_in1k.more"])
    def test_a_tag_that_timm_has_not(self, tag: str, weights: Tensors | str) -> None:
        with pytest.raises(ModelError, match="no weights tagged") as caught:
            built(f"resnet18.{tag}", weights)
        assert repr(tag) in str(caught.value)
        assert "; choose " in str(caught.value)
        assert "resnet18.a1_in1k" in str(caught.value)

    def test_a_tag_that_timm_has(self) -> None:
        assert built("resnet18.tv_in1k", "none").width == 512

    def test_several_classifiers(self) -> None:
        with pytest.raises(ModelError, match="several classifiers") as caught:
            built("levit_128s", "none", size=(224, 224))
        assert "single classifier" in str(caught.value)


class TestWhatBelongsToIt:
    @pytest.mark.parametrize(
        ("name", "width", "head"),
        [
            ("test_resnet", 96, "fc"),
            ("test_vit", 64, "head"),
            ("test_efficientnet", 256, "classifier"),
            ("test_convnext", 64, "head.fc"),
        ],
    )
    def test_width_and_the_classifiers_name(self, name: str, width: int, head: str) -> None:
        backbone = built(name, "none")
        features = backbone.encoder(torch.zeros(2, 3, 32, 32))
        assert (backbone.width, backbone.head_name) == (width, head)
        assert features.shape == (2, width)
        classifier = timm.create_model(name).get_submodule(head)
        assert isinstance(classifier, nn.Linear)
        assert classifier.in_features == width

    def test_mean_and_deviation(self) -> None:
        backbone = built("resnet18", "none")
        assert backbone.mean == (0.485, 0.456, 0.406)
        assert backbone.std == (0.229, 0.224, 0.225)
        assert built("test_vit", "none").mean == (0.5, 0.5, 0.5)

    @pytest.mark.parametrize("channels", [1, 2, 4])
    def test_of_other_channels_they_are_the_mean_of_the_three(self, channels: int) -> None:
        backbone = built("resnet18", "none", channels=channels)
        assert backbone.mean == pytest.approx([(0.485 + 0.456 + 0.406) / 3] * channels)
        assert backbone.std == pytest.approx([(0.229 + 0.224 + 0.225) / 3] * channels)

    @pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
    @pytest.mark.parametrize("channels", [1, 2, 3])
    @pytest.mark.parametrize("size", [(32, 32), (16, 48)])
    def test_takes_such_images(self, name: str, channels: int, size: tuple[int, int]) -> None:
        backbone = built(name, "none", size=size, channels=channels)
        features = backbone.encoder(torch.rand(2, channels, *size))
        assert features.shape == (2, backbone.width)

    def test_images_that_do_not_fit(self) -> None:
        with pytest.raises(ModelError, match="images of 8x8 with 3 channels don't fit") as caught:
            built("densenet121", "none", size=(8, 8))
        assert "; choose another --size" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_features_that_are_no_vectors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = timm.create_model
        monkeypatch.setattr(
            timm, "create_model", lambda name, **more: plain(name, **more, global_pool="")
        )
        with pytest.raises(ModelError, match=r"features of shape \(1, 96, 1, 1\), not vectors"):
            built("test_resnet", "none")

    def test_random_weights_come_from_torchs_generator(self) -> None:
        drawn = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            drawn.append(built("test_resnet", "none").encoder.state_dict()["conv1.0.weight"])
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])


class TestFromTensors:
    @pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext"])
    def test_every_tensor_is_taken(self, name: str) -> None:
        tensors = pretrained(name)
        state = built(name, tensors).encoder.state_dict()
        assert len(tensors) == len(state) + 2, "all but the classifier's weight and bias"
        for key, tensor in state.items():
            assert torch.equal(tensor, tensors[key]), key

    def test_of_a_vision_transformer(self) -> None:
        tensors = pretrained("test_vit", img_size=(32, 48))
        state = built("test_vit", tensors, size=(32, 48)).encoder.state_dict()
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in state.items())

    def test_position_embeddings_are_resampled(self) -> None:
        """Weights of 160 x 160 images for 64 x 32 ones; what does not depend on place stays."""
        tensors = pretrained("test_vit")
        grid = torch.linspace(0, 1, 10)
        # A ramp along the height stays a ramp along the height when it is resampled.
        tensors["pos_embed"][:, 1:] = grid.repeat_interleave(10)[None, :, None]
        backbone = built("test_vit", tensors, size=(64, 32))
        state = backbone.encoder.state_dict()
        assert state["pos_embed"].shape == (1, 1 + 4 * 2, 64)
        rows = state["pos_embed"][0, 1:, 0].view(4, 2)
        torch.testing.assert_close(rows[:, 0], rows[:, 1])
        assert (rows[1:, 0] - rows[:-1, 0]).min() > 0.1
        for key, tensor in state.items():
            assert key == "pos_embed" or torch.equal(tensor, tensors[key]), key

    @pytest.mark.parametrize(
        ("channels", "adapted"),
        [
            (1, lambda kernel: kernel.sum(dim=1, keepdim=True)),
            (2, lambda kernel: kernel[:, :2] * 3 / 2),
            (4, lambda kernel: torch.cat([kernel, kernel[:, :1]], dim=1) * 3 / 4),
        ],
    )
    @pytest.mark.parametrize(
        ("name", "first"), [("test_resnet", "conv1.0"), ("test_vit", "patch_embed.proj")]
    )
    def test_the_first_layer_is_adapted_to_the_channels(
        self,
        name: str,
        first: str,
        channels: int,
        adapted: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        tensors = pretrained(name)
        if name == "test_vit":
            tensors = pretrained(name, img_size=(32, 32))
        state = built(name, tensors, channels=channels).encoder.state_dict()
        torch.testing.assert_close(
            state[f"{first}.weight"], adapted(tensors[f"{first}.weight"]), rtol=1e-6, atol=1e-7
        )
        for key, tensor in state.items():
            assert key == f"{first}.weight" or torch.equal(tensor, tensors[key]), key

    def test_old_files_do_not_count_batches(self) -> None:
        tensors = pretrained("test_resnet")
        old = {k: v for k, v in tensors.items() if not k.endswith("num_batches_tracked")}
        assert len(old) < len(tensors)
        state = built("test_resnet", old).encoder.state_dict()
        assert all(torch.equal(state[key], old[key]) for key in state if key in old)

    def test_what_it_does_not_know_is_passed_over(self) -> None:
        tensors = pretrained("test_resnet")
        tensors |= {"ema.step": torch.tensor(3), "projector.weight": torch.zeros(2, 2)}
        given = dict(tensors)
        state = built("test_resnet", tensors).encoder.state_dict()
        assert torch.equal(state["conv1.0.weight"], tensors["conv1.0.weight"])
        assert tensors.keys() == given.keys(), "the caller's tensors are the caller's"

    def test_any_number_of_classes(self) -> None:
        tensors = pretrained("test_resnet", num_classes=5)
        state = built("test_resnet", tensors).encoder.state_dict()
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in state.items())

    @pytest.mark.parametrize("gone", ["conv1.0.weight", "layer4.0.bn1.running_var"])
    def test_a_missing_tensor_is_named(self, gone: str) -> None:
        tensors = pretrained("test_resnet")
        del tensors[gone]
        with pytest.raises(ModelError, match="the weights lack 1 of its") as caught:
            built("test_resnet", tensors)
        assert f"{gone!r} first" in str(caught.value)
        assert "; give --weights a file of this very backbone" in str(caught.value)

    def test_weights_of_another_backbone(self) -> None:
        with pytest.raises(ModelError, match="backbone 'test_vit': the weights lack"):
            built("test_vit", pretrained("test_resnet"))
        with pytest.raises(ModelError, match="the weights lack"):
            built("test_resnet", {})

    def test_a_tensor_of_another_shape(self) -> None:
        tensors = pretrained("test_resnet")
        tensors["conv1.1.weight"] = torch.zeros(3)
        with pytest.raises(ModelError, match="the weights don't fit") as caught:
            built("test_resnet", tensors)
        assert "conv1.1.weight" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("fits", [True, False])
    def test_timm_is_quiet_and_then_as_loud_as_before(
        self, fits: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        logger = logging.getLogger("timm.models")
        level = logger.level
        logger.setLevel(logging.WARNING)
        tensors = pretrained("test_resnet")
        if not fits:
            tensors["conv1.1.weight"] = torch.zeros(3)
        try:
            if fits:
                built("test_resnet", tensors)
            else:
                with pytest.raises(ModelError):
                    built("test_resnet", tensors)
            assert logger.level == logging.WARNING
        finally:
            logger.setLevel(level)
        assert not caplog.records


class Tiny(nn.Module):
    def __init__(self, size: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels * size[0] * size[1], 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


class TestPlugIns:
    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def tiny(size: tuple[int, int], channels: int) -> Backbone:
            return Backbone(Tiny(size, channels), 5, (0.5,) * channels, (1.0,) * channels)

        module = types.ModuleType("tiny_encoders")
        vars(module)["tiny"] = tiny
        monkeypatch.setitem(sys.modules, "tiny_encoders", module)
        registry = Registry("encoder", {"tiny": "tiny_encoders:tiny"}, group="diwa.none")
        monkeypatch.setattr(backbones, "ENCODERS", registry)

    def test_is_built_for_the_images(self) -> None:
        backbone = built("tiny", "none", size=(4, 6), channels=2)
        assert backbone.encoder(torch.zeros(3, 2, 4, 6)).shape == (3, 5)
        assert backbone.head_name == "head"

    def test_is_suggested(self) -> None:
        with pytest.raises(ModelError, match=r"did you mean .*tiny"):
            built("tinny", "none")


class TestHub:
    """What happens without a network, wherever the test runs."""

    @pytest.fixture(autouse=True)
    def _cut_off(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))

        def nowhere(*args: object, **more: object) -> None:
            raise socket.gaierror(-3, "Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", nowhere)

    @pytest.mark.parametrize("name", ["resnet18", "resnet18.tv_in1k", "test_vit"])
    def test_one_line_that_names_the_way_out_and_soon(self, name: str) -> None:
        start = time.monotonic()
        with pytest.raises(ModelError) as caught:
            built(name, "hub")
        assert time.monotonic() - start < 5
        said = str(caught.value)
        assert said.startswith(f"backbone {name!r}: its pretrained weights can't be had")
        assert "; pass --weights FILE" in said
        assert "\n" not in said
        assert constants.HF_HUB_OFFLINE is False, "only for as long as it takes"

    def test_a_backbone_that_has_no_pretrained_weights(self) -> None:
        """Never random ones instead, without a word."""
        with pytest.raises(
            ModelError, match=r"pretrained weights can't be had.*--weights FILE.*or none"
        ):
            built("seresnet18", "hub")

    @pytest.mark.parametrize("asked", [True, False])
    def test_what_the_user_asked_for_stays(
        self, asked: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", asked)
        with pytest.raises(ModelError):
            built("resnet18", "hub")
        assert constants.HF_HUB_OFFLINE is asked

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Whether the hub is taken to be out of reach while timm asks for pretrained weights."""
        found: list[bool] = []
        plain = timm.create_model

        def asked(name: str, *, pretrained: bool, **more: Any) -> nn.Module:
            if pretrained:
                found.append(constants.HF_HUB_OFFLINE)
            return plain(name, pretrained=False, **more)

        monkeypatch.setattr(timm, "create_model", asked)
        return found

    def test_without_a_network_only_the_cache_is_looked_at(self, seen: list[bool]) -> None:
        assert built("resnet18", "hub").width == 512
        assert seen == [True]
        assert constants.HF_HUB_OFFLINE is False

    def test_with_a_network_the_hub_is_asked(
        self, seen: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[object] = []
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args: asked.append(args[0]) or [])
        monkeypatch.setattr(constants, "ENDPOINT", "https://mirror.example/hf")
        built("resnet18", "hub")
        assert seen == [False]
        assert asked == ["mirror.example"]

    def test_behind_a_proxy_names_need_not_resolve(
        self, seen: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
        built("resnet18", "hub")
        assert seen == [False]
