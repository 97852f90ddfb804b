"""The names that DomainBed and DiWA's own code give to a ResNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Where they keep the encoder and the classifier. An algorithm holds both twice, by themselves
#: and in a sequence, which is what predicts; a shared initialisation is the sequence alone.
_PLACES = (
    ("network.0.network.", "network.1."),
    ("featurizer.network.", "classifier."),
    ("0.network.", "1."),
)
#: Only a torchvision ResNet has it: of another encoder we would not know what its head is called.
_OF_A_RESNET = "layer4."
_HEAD = "fc."


def bare_names(
    tensors: Mapping[str, Any], same: Callable[[Any, Any], bool]
) -> tuple[dict[str, Any], str] | None:
    """The tensors by the names that torchvision and timm give them, and what was taken off.

    What is neither encoder nor classifier keeps its name.

    Args:
        tensors: name -> tensor.
        same: whether two tensors hold the same numbers.

    Returns:
        None if these are not DomainBed's, or if encoder and classifier are there twice and differ.

    Example:
        >>> held = {"network.0.network.layer4.0.conv1.weight": 1, "network.1.bias": 2}
        >>> bare_names(held, lambda one, other: one == other)
        ({'layer4.0.conv1.weight': 1, 'fc.bias': 2}, 'network.0.network.')
    """
    found: dict[str, Any] = {}
    taken = ""
    for encoder, head in _PLACES:
        renamed = _renamed(tensors, encoder, head)
        if not renamed:
            continue
        if encoder == _PLACES[2][0] and len(renamed) < len(tensors):
            continue
        if not taken:
            found, taken = renamed, encoder
        elif found.keys() != renamed.keys() or not all(
            same(found[name], tensor) for name, tensor in renamed.items()
        ):
            return None
    if not taken:
        return None
    prefixes = tuple(prefix for place in _PLACES[:2] for prefix in place)
    others = {
        name: tensor
        for name, tensor in tensors.items()
        if taken != _PLACES[2][0] and not name.startswith(prefixes)
    }
    return None if found.keys() & others.keys() else ({**found, **others}, taken)


def _renamed(tensors: Mapping[str, Any], encoder: str, head: str) -> dict[str, Any]:
    """Encoder and classifier at one of their places; empty if it is not both of a ResNet."""
    starts = {
        prefix: [name for name in tensors if name.startswith(prefix)] for prefix in (encoder, head)
    }
    if not all(starts.values()) or not any(
        name.startswith(encoder + _OF_A_RESNET) for name in starts[encoder]
    ):
        return {}
    return {
        name.removeprefix(encoder)
        if name.startswith(encoder)
        else _HEAD + name.removeprefix(head): tensor
        for name, tensor in tensors.items()
        if name.startswith((encoder, head))
    }
