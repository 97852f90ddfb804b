"""What a source holds, as plain data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from diwa.spec import Spec
from diwa.weights.member import said_by
from diwa.weights.source import METADATA_KEY, Source, open_source


class TensorDescription(Spec, frozen=True, kw_only=True):
    """One tensor."""

    name: str
    """Its name."""
    kind: str
    """Of its numbers, as safetensors calls it."""
    shape: tuple[int, ...]
    """Its sides."""
    bytes: int
    """What it takes."""


class Description(Spec, frozen=True, kw_only=True):
    """A file or folder of weights."""

    path: str
    """Where it is."""
    files: dict[str, str]
    """SHA-256 by name of every file in it."""
    tensors: list[TensorDescription]
    """In the order of the file."""
    kinds: dict[str, int]
    """How many tensors there are of each kind."""
    parameters: int
    """How many numbers all tensors hold; tied ones count once."""
    bytes: int
    """What they take."""
    aliases: dict[str, str]
    """Tensors that share their numbers with another one."""
    about: dict[str, Any]
    """What diwa knows of it: the network, what was merged."""
    metadata: dict[str, str]
    """What others wrote into it."""


def describe(weights: Source | Path | str) -> Description:
    """Tells what a file or folder of weights holds, and what was merged into it.

    Raises:
        WeightsError: if it can't be read.

    Example:
        >>> import diwa
        >>> told = diwa.describe(example_members[0])
        >>> told.parameters, told.kinds
        (2, {'F32': 1})
    """
    source = weights if isinstance(weights, Source) else open_source(weights)
    tied = set(source.aliases)
    infos = source.tensors
    return Description(
        path=str(source.path),
        files=dict(source.digests),
        tensors=[
            TensorDescription(name=name, kind=info.kind.code, shape=info.shape, bytes=info.bytes)
            for name, info in infos.items()
        ],
        kinds=dict(Counter(info.kind.code for info in infos.values())),
        parameters=sum(info.size for name, info in infos.items() if name not in tied),
        bytes=sum(info.bytes for info in infos.values()),
        aliases=dict(source.aliases),
        about=said_by(source),
        metadata={key: text for key, text in source.metadata.items() if key != METADATA_KEY},
    )
