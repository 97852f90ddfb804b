"""Encoders by name: any of timm's, or one that a package registered."""

from __future__ import annotations

import difflib
import logging
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.models import PretrainedCfg
from torch import nn

from diwa.errors import ModelError
from diwa.models.lukemelas import is_lukemelas, to_timm
from diwa.registry import Registry

#: Encoders besides timm's: name -> a function (size, channels) -> Backbone.
ENCODERS = Registry("encoder", {"mnist_cnn": "diwa.models.mnist:mnist_cnn"}, group="diwa.encoders")

#: Where weights come from, besides a file's tensors.
FROM_HUB, FROM_NOWHERE = "hub", "none"

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Backbone:
    """An encoder, and what belongs to it.

    Args:
        encoder: images to feature vectors.
        width: the length of those.
        mean: what normalisation subtracts from pixels between 0 and 1, per channel.
        std: what it divides by.
        head_name: what timm calls the classifier of the whole network.
    """

    encoder: nn.Module
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    head_name: str = "head"


def check_backbone(name: str) -> None:
    """Makes sure that there is such an encoder, without building it.

    Raises:
        ModelError: for an unknown name, or weights that timm does not have; it suggests others.
    """
    if name in ENCODERS:
        return
    if not timm.is_model(name.partition(".")[0]):
        raise ModelError(_unknown(name))
    _config(name)


def build_backbone(
    name: str, *, size: tuple[int, int], channels: int, weights: Tensors | str = FROM_HUB
) -> Backbone:
    """Builds an encoder.

    Args:
        name: a timm model, with a tag for its weights if need be, or a registered encoder.
        size: height and width of the images.
        channels: of the images; pretrained first layers are adapted to it.
        weights: tensors, "hub" for timm's pretrained ones, or "none" for random ones.

    Raises:
        ModelError: for an unknown name, weights that don't fit or can't be had.
    """
    if name in ENCODERS.names():
        if not isinstance(weights, str):
            raise ModelError(
                f"backbone {name!r}: brings its own weights, and takes no file",
                remedy="leave --weights out",
            )
        build: Callable[..., Backbone] = ENCODERS.get(name)
        return build(size=size, channels=channels)
    check_backbone(name)
    settings: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    config = _config(name)
    if config is not None and config.fixed_input_size:
        settings["img_size"] = size
    encoder = (
        _from_source(name, weights, settings)
        if isinstance(weights, str)
        else _from_tensors(name, weights, settings)
    )
    known: dict[str, Any] = vars(encoder)["pretrained_cfg"]
    mean, std = known["mean"], known["std"]
    if channels != len(mean):
        mean, std = (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels
    head_name = known.get("classifier") or "head"
    if not isinstance(head_name, str):
        raise ModelError(
            f"backbone {name!r}: has several classifiers ({', '.join(head_name)})",
            remedy="choose one with a single classifier",
        )
    return Backbone(encoder, _width(encoder, size, channels), tuple(mean), tuple(std), head_name)


def _config(name: str) -> PretrainedCfg | None:
    try:
        return timm.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError as error:
        architecture, _, tag = name.partition(".")
        known = timm.list_pretrained(f"{architecture}.*") or [architecture]
        raise ModelError(
            f"backbone {name!r}: timm has no weights tagged {tag!r}",
            remedy=f"choose {', '.join(known)}",
        ) from error


def _from_source(name: str, source: str, settings: dict[str, Any]) -> nn.Module:
    if source == FROM_NOWHERE:
        return timm.create_model(name, pretrained=False, **settings)
    try:
        with _told_at_once():
            return timm.create_model(name, pretrained=True, **settings)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise ModelError(
            f"backbone {name!r}: its pretrained weights can't be had "
            f"({type(error).__name__}; is there no network?)",
            remedy="pass --weights FILE with a local copy, or demo (the demo extra's), or none",
        ) from error


@contextmanager
def _told_at_once() -> Iterator[None]:
    """Without a network, looks only at what was downloaded before, instead of retrying for long."""
    from huggingface_hub import constants

    kept = constants.HF_HUB_OFFLINE
    try:
        if not urllib.request.getproxies():
            host = urllib.parse.urlsplit(constants.ENDPOINT).hostname
            try:
                socket.getaddrinfo(host, 443)
            except OSError:
                constants.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE = kept


def _from_tensors(name: str, tensors: Tensors, settings: dict[str, Any]) -> nn.Module:
    bare = timm.create_model(name, pretrained=False, **settings)
    if is_lukemelas(tensors) and hasattr(bare, "blocks"):
        stages = [len(list(stage.children())) for stage in bare.blocks.children()]  # pyright: ignore
        tensors = to_timm(tensors, stages)
    wanted = bare.state_dict().keys()
    missing = [k for k in wanted if k not in tensors and not k.endswith("num_batches_tracked")]
    if missing:
        raise ModelError(
            f"backbone {name!r}: the weights lack {len(missing)} of its {len(wanted)} tensors, "
            f"{missing[0]!r} first",
            remedy="give --weights a file of this very backbone, with timm's names",
        )
    known = {key: tensors[key] for key in wanted if key in tensors}
    quiet = logging.getLogger("timm.models")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # it would report the missing classifier, which is meant
    try:
        # timm's own loading adapts the first layer to the channels, position embeddings to the
        # size, and drops the classifier.
        return timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay={"state_dict": known}, **settings
        )
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ModelError(
            f"backbone {name!r}: the weights don't fit ({why[:160]})",
            remedy="give --weights a file of this very backbone",
        ) from error
    finally:
        quiet.setLevel(level)


def _width(encoder: nn.Module, size: tuple[int, int], channels: int) -> int:
    """The length of the encoder's vectors, seen from one of them."""
    encoder.eval()
    try:
        with torch.no_grad():
            features = encoder(torch.zeros(1, channels, *size))
    except (RuntimeError, AssertionError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ModelError(
            f"images of {size[0]}x{size[1]} with {channels} channels don't fit the backbone "
            f"({why[:120]})",
            remedy="choose another --size",
        ) from error
    if features.ndim != 2:
        raise ModelError(
            f"the backbone gives features of shape {tuple(features.shape)}, not vectors"
        )
    return features.shape[1]


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*timm.list_models(), *ENCODERS.names()], n=3)
    guess = f"; did you mean {', '.join(near)}?" if near else ""
    return f"backbone {name!r}: neither timm nor a plug-in has it{guess}"
