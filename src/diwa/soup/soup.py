"""A soup: members, how much of each, and how they were chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diwa.weights import files
from diwa.weights.average import mean
from diwa.weights.member import Member


@dataclass(frozen=True)
class Tried:
    """One candidate of a greedy search."""

    member: str
    """Its name."""
    score: float
    """Of the average with it."""
    kept: bool
    """Whether it stayed."""


@dataclass(frozen=True)
class Soup:
    """An average that is computed when its tensors are asked for.

    Args:
        method: how the members were chosen.
        members: those that are averaged, each with the same weight.
        trace: what was tried, in order, where something was.
    """

    method: str
    members: tuple[Member, ...]
    trace: tuple[Tried, ...] = ()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The averaged tensors one at a time, by name."""
        return mean(self.members)

    @property
    def about(self) -> Mapping[str, Any]:
        """What its file says: the network, and what went into it."""
        said = {
            key: self.members[0].about[key] for key in ("model",) if key in self.members[0].about
        }
        return {
            **said,
            "soup": {
                "method": self.method,
                "members": [{"name": m.name, "score": m.score} for m in self.members],
                "trace": [[t.member, t.score, t.kept] for t in self.trace],
            },
        }

    def save(self, path: Path | str) -> Path:
        """Writes the averaged weights as safetensors, under the names that timm gives them."""
        files.write(Path(path), dict(self.tensors()), self.about)
        return Path(path)
