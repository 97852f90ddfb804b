"""The small network for digits, against its description written out plainly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from diwa.errors import ModelError
from diwa.models.backbones import build_backbone
from diwa.models.network import ModelSpec, build_network, restore_network


def plainly(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """conv 64, 128 (stride 2), 128, 128; group norm in 8 groups after each ReLU; mean."""
    for number in (1, 2, 3, 4):
        stride = 2 if number == 2 else 1
        weight, bias = tensors[f"conv{number}.weight"], tensors[f"conv{number}.bias"]
        x = F.relu(F.conv2d(x, weight, bias, stride=stride, padding=1))
        scale, shift = tensors[f"norm{number}.weight"], tensors[f"norm{number}.bias"]
        x = F.group_norm(x, 8, scale, shift)
    return x.mean((2, 3))


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_it_computes_what_it_should(channels: int) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("mnist_cnn", size=(28, 28), channels=channels, weights="none")
    x = torch.rand(5, channels, 28, 28)
    features = backbone.encoder(x)
    assert features.shape == (5, backbone.width) == (5, 128)
    torch.testing.assert_close(features, plainly(backbone.encoder.state_dict(), x))
    shapes = [tuple(backbone.encoder.state_dict()[f"conv{n}.weight"].shape) for n in (1, 2, 3, 4)]
    assert shapes == [(64, channels, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3), (128, 128, 3, 3)]


def test_pixels_go_in_between_0_and_1_and_nothing_else_is_done_to_them() -> None:
    spec = ModelSpec(backbone="mnist_cnn", size=(28, 28), channels=2, classes=("5-9", "0-4"))
    network = build_network(spec, weights="none")
    pixels = torch.from_numpy(np.random.RandomState(0).randint(0, 256, (3, 2, 28, 28)))
    torch.testing.assert_close(network.normalise(pixels.byte()), pixels / 255)


def test_its_weights_are_restored() -> None:
    spec = ModelSpec(backbone="mnist_cnn", size=(28, 28), channels=1, classes=("0", "1"))
    network = build_network(spec, weights="none").eval()
    about = {
        "model": {"backbone": "mnist_cnn", "size": [28, 28], "channels": 1, "classes": ["0", "1"]}
    }
    again = restore_network(about, network.weights()).eval()
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(network(x), again(x))


def test_it_takes_no_file_of_weights() -> None:
    with pytest.raises(ModelError, match="brings its own weights"):
        build_backbone("mnist_cnn", size=(28, 28), channels=1, weights={})
