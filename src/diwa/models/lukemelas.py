"""The names of EfficientNet weights in the layout of lukemelas' port, turned into timm's.

Several packages on the index carry ImageNet weights in that layout, among them those of the
`demo` extra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

_BLOCK = re.compile(r"_blocks\.(\d+)\._(\w+)\.(\w+)")


def is_lukemelas(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether the names are those of that layout."""
    return "_conv_stem.weight" in tensors


def to_timm(tensors: Mapping[str, torch.Tensor], stages: Sequence[int]) -> dict[str, torch.Tensor]:
    """The same tensors under timm's names.

    Args:
        tensors: name -> tensor.
        stages: how many blocks each stage of timm's network has.
    """
    places = [(stage, block) for stage, count in enumerate(stages) for block in range(count)]
    expanding = {
        int(match[1]) for name in tensors if (match := _BLOCK.match(name)) and match[2] == "bn0"
    }
    return {_renamed(name, places, expanding): tensor for name, tensor in tensors.items()}


def _renamed(name: str, places: Sequence[tuple[int, int]], expanding: set[int]) -> str:
    outer = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    outer["_fc"] = "classifier"
    if match := _BLOCK.match(name):
        number, layer, leaf = int(match[1]), match[2], match[3]
        if number >= len(places):
            return name
        stage, block = places[number]
        # timm numbers a block's norms from 1, and a block that does not expand has no first one.
        if number in expanding:
            inner = {"expand_conv": "conv_pw", "bn0": "bn1", "depthwise_conv": "conv_dw"}
            inner |= {"bn1": "bn2", "project_conv": "conv_pwl", "bn2": "bn3"}
        else:
            inner = {"depthwise_conv": "conv_dw", "bn1": "bn1"}
            inner |= {"project_conv": "conv_pw", "bn2": "bn2"}
        inner |= {"se_reduce": "se.conv_reduce", "se_expand": "se.conv_expand"}
        return f"blocks.{stage}.{block}.{inner.get(layer, layer)}.{leaf}"
    first, _, leaf = name.partition(".")
    return f"{outer.get(first, first)}.{leaf}"
