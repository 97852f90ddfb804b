"""The network: an encoder with frozen batch norm, dropout, one linear head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn

from diwa.errors import ModelError
from diwa.models.backbones import FROM_HUB, FROM_NOWHERE, Backbone, Tensors, build_backbone
from diwa.models.batchnorm import fold, freeze
from diwa.spec import Spec

AnyNetwork = TypeVar("AnyNetwork", bound="Network")


class ModelSpec(Spec, frozen=True, kw_only=True):
    """How to build a network that weights fit into; travels in the files of weights."""

    backbone: str
    """A timm model or a registered encoder."""
    size: tuple[int, int]
    """Height and width of the images."""
    channels: int
    """Of the images."""
    classes: tuple[str, ...]
    """The names of the classes, in the order of the outputs."""


class Network(nn.Module):
    """Encoder, dropout, head. Its weights are saved under timm's own names.

    Args:
        backbone: the encoder and what belongs to it.
        classes: how many outputs.
        dropout: the probability after pooling.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, backbone: Backbone, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = backbone.encoder
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(backbone.width, classes)
        self._head_name = backbone.head_name
        shape = (1, len(backbone.mean), 1, 1)
        scaled_mean = torch.tensor(backbone.mean).view(shape) * 255
        scaled_std = torch.tensor(backbone.std).view(shape) * 255
        self.register_buffer("mean", scaled_mean, persistent=False)
        self.register_buffer("std", scaled_std, persistent=False)
        self.train()

    def train(self: AnyNetwork, mode: bool = True) -> AnyNetwork:
        """Training mode, in which batch norm keeps its statistics all the same."""
        super().train(mode)
        freeze(self)
        return self

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Bytes of shape (N, C, H, W) as the encoder expects them."""
        return (pixels.float() - self.mean) / self.std

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The pooled vectors of normalised images."""
        return self.encoder(x)

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        """The logits of pooled vectors."""
        return self.head(self.dropout(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of normalised images."""
        return self.classify(self.features(x))

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights under the names that timm gives them."""
        named = {name: tensor.detach() for name, tensor in self.encoder.state_dict().items()}
        for name, tensor in self.head.state_dict().items():
            named[f"{self._head_name}.{name}"] = tensor.detach()
        return named

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes over weights that `weights` gave, into the tensors that are there.

        Raises:
            ModelError: if a name or a shape differs.
        """
        own = self.weights()
        for name in sorted(own.keys() | tensors.keys()):
            if name not in tensors or name not in own or own[name].shape != tensors[name].shape:
                has = tuple(tensors[name].shape) if name in tensors else "missing"
                wants = tuple(own[name].shape) if name in own else "unknown here"
                raise ModelError(
                    f"weights {name!r}: {has}, expected {wants}",
                    remedy="give weights of this very network",
                )
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def build_network(
    spec: ModelSpec, *, weights: Tensors | str = FROM_HUB, dropout: float = 0.0
) -> Network:
    """Builds a network whose encoder is pretrained and whose head is freshly drawn.

    Args:
        spec: the backbone, the images and the classes.
        weights: the encoder's tensors, "hub" or "none"; see `build_backbone`.
        dropout: the probability after pooling.

    Raises:
        ModelError: if the backbone can't be built.
    """
    backbone = build_backbone(
        spec.backbone, size=spec.size, channels=spec.channels, weights=weights
    )
    network = Network(backbone, len(spec.classes), dropout)
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    fold(network.encoder, torch.zeros(1, spec.channels, *spec.size).normal_(generator=_fixed()))
    return network


def restore_network(about: Mapping[str, Any], tensors: Tensors, *, dropout: float = 0.0) -> Network:
    """Builds the network that a file of weights describes, with those weights.

    Args:
        about: the file's metadata; its entry "model" says how to build the network.
        tensors: the file's tensors.
        dropout: the probability after pooling.

    Raises:
        ModelError: if the file does not say, or the weights don't fit.
    """
    spec = described(about)
    network = build_network(spec, weights=FROM_NOWHERE, dropout=dropout)
    network.load_weights(tensors)
    return network


def head_names(about: Mapping[str, Any]) -> tuple[str, str]:
    """What the head's weight and bias are called in a file with that metadata.

    Raises:
        ModelError: if it does not say which network it is of.
    """
    spec = described(about)
    backbone = build_backbone(
        spec.backbone, size=spec.size, channels=spec.channels, weights=FROM_NOWHERE
    )
    return f"{backbone.head_name}.weight", f"{backbone.head_name}.bias"


def described(about: Mapping[str, Any]) -> ModelSpec:
    """Which network a file's metadata describes.

    Raises:
        ModelError: if it does not say.
    """
    try:
        return msgspec.convert(about["model"], ModelSpec)
    except KeyError as error:
        raise ModelError(
            "the weights don't say which network they are of",
            remedy="use a file that diwa wrote",
        ) from error
    except msgspec.ValidationError as error:
        raise ModelError(f"the weights' description of their network: {error}") from error


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)
