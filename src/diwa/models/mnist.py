"""The small network that DomainBed trains on digits, as an encoder."""

from __future__ import annotations

import torch
from torch import nn

from diwa.models.backbones import Backbone

_WIDTH = 128


class MnistCnn(nn.Module):
    """Four convolutions, each followed by ReLU and group norm, then the mean over all places.

    Args:
        channels: of the images.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1)
        self.conv2 = nn.Conv2d(64, _WIDTH, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1)
        self.conv4 = nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1)
        self.norm1 = nn.GroupNorm(8, 64)
        self.norm2 = nn.GroupNorm(8, _WIDTH)
        self.norm3 = nn.GroupNorm(8, _WIDTH)
        self.norm4 = nn.GroupNorm(8, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to vectors."""
        x = self.norm1(self.conv1(x).relu())
        x = self.norm2(self.conv2(x).relu())
        x = self.norm3(self.conv3(x).relu())
        x = self.norm4(self.conv4(x).relu())
        return x.mean(dim=(2, 3))


def mnist_cnn(size: tuple[int, int], channels: int) -> Backbone:
    """The network for images of any size; pixels go in as they are, between 0 and 1."""
    del size
    return Backbone(MnistCnn(channels), _WIDTH, mean=(0.0,) * channels, std=(1.0,) * channels)
