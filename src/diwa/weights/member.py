"""A member: weights, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diwa.errors import WeightsError
from diwa.weights.source import METADATA_KEY, Source, open_source

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Member:
    """One set of weights that may go into an average, wherever it came from.

    Args:
        name: what tables and errors call it.
        source: where its tensors are read from.
        score: the validation accuracy it was kept for, if known.
        split: the digest of the split it was trained on, if known.
        init: the digest of the initialisation it started from, if known.
        about: everything else its file says: how to build its network, above all.
    """

    name: str
    source: Source
    score: float | None = None
    split: str | None = None
    init: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_file(cls, path: Path | str) -> Member:
        """The member that a file or folder of weights holds; see `open_source`.

        Raises:
            WeightsError: if it is missing or damaged, or its score is no number.
        """
        return cls.from_source(open_source(path))

    @classmethod
    def from_source(cls, source: Source, name: str | None = None) -> Member:
        """The member that a source holds, under a name or that of its file.

        Raises:
            WeightsError: if what it says of itself is no JSON, its score is no number, or its split
                or initialisation no digest.
        """
        known = said_by(source)
        score = known.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            raise WeightsError(f"{source.path}: its score is {score!r}, not a number")
        for what in ("split", "init"):
            if not isinstance(known.get(what), str | None):
                raise WeightsError(f"{source.path}: its {what} is {known[what]!r}, not a digest")
        return cls(
            name=source.path.stem if name is None else name,
            source=source,
            score=score,
            split=known.get("split"),
            init=known.get("init"),
            about=known,
        )

    @property
    def path(self) -> Path:
        """The file or folder that holds its tensors."""
        return self.source.path

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Its tensors one at a time, by name."""
        from diwa.weights.files import stream

        return stream(self.source)


def said_by(source: Source) -> dict[str, Any]:
    """What a file that diwa wrote says of itself; empty for others.

    Raises:
        WeightsError: if it is not a JSON object.
    """
    try:
        known = json.loads(source.metadata.get(METADATA_KEY, "{}"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{source.path}: its metadata is not JSON ({error})") from error
    if not isinstance(known, dict):
        raise WeightsError(f"{source.path}: its metadata is not a JSON object")
    return known
