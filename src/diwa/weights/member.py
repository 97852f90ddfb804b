"""A member: weights, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diwa.errors import WeightsError
from diwa.weights import files


@dataclass(frozen=True, kw_only=True)
class Member:
    """One set of weights that may go into an average, wherever it came from.

    Args:
        name: what tables and errors call it.
        path: the safetensors file that holds its tensors.
        score: the validation accuracy it was kept for, if known.
        split: the digest of the split it was trained on, if known.
        init: the digest of the initialisation it started from, if known.
        about: everything else its file says: how to build its network, above all.
    """

    name: str
    path: Path
    score: float | None = None
    split: str | None = None
    init: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_file(cls, path: Path | str) -> Member:
        """The member that a safetensors file holds.

        Raises:
            WeightsError: if the file is missing or damaged, or its score is no number.
        """
        path = Path(path)
        known = files.about(path)
        score = known.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            raise WeightsError(f"{path}: its score is {score!r}, not a number")
        return cls(
            name=path.stem,
            path=path,
            score=score,
            split=known.get("split"),
            init=known.get("init"),
            about=known,
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Its tensors one at a time, by name."""
        return files.stream(self.path)
