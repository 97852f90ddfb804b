"""A soup: members, how they were chosen, and how they are blended; computed when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diwa.errors import SpecError, WeightsError
from diwa.progress import QUIET, Progress
from diwa.soup.engine import Plan, blend, copied
from diwa.soup.methods.base import Method
from diwa.soup.methods.uniform import Uniform
from diwa.soup.recipe import Recipe, about
from diwa.soup.rules import Rules, check_pattern, matches
from diwa.weights.agree import require_agreement
from diwa.weights.header import TensorInfo
from diwa.weights.member import Member

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

#: Tensors are computed in groups of about so many numbers, to keep all cores busy.
_GROUP = 1 << 24


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
    """Several members as one; its tensors are computed, with little memory, when asked for.

    Args:
        method: how the members were chosen, or blended.
        members: who goes in; the first gives the order of tensors, their kinds and integers.
        trace: what was tried, in order, where something was.
        blending: how several tensors become one.
        base: what differences are taken to, for methods that do.
        rules: which tensors are blended, and what they are written as.
        taken: tensors that come from one file as they are: that file, and the names' pattern.

    Raises:
        DiwaError: if there are no members, they disagree, or the settings don't suit them.
    """

    method: str
    members: tuple[Member, ...]
    trace: tuple[Tried, ...] = ()
    blending: Method = field(default_factory=Uniform)
    base: Member | None = None
    rules: Rules = field(default_factory=Rules)
    taken: tuple[tuple[Member, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.members:
            raise WeightsError("no members to merge", remedy="give at least one")
        self.blending.check(len(self.members))
        if self.blending.wants_base != (self.base is not None):
            raise SpecError(
                f"{self.blending.name} works {'on' if self.blending.wants_base else 'without'} "
                f"differences to a base",
                remedy="pass --base FILE" if self.blending.wants_base else "leave --base out",
            )
        names = dict.fromkeys(name for member in self.members for name in member.source.tensors)
        self.rules.check(names)
        for member, pattern in self.taken:
            if not any(matches(name, (pattern,)) for name in member.source.tensors):
                check_pattern("take-from", pattern, names)
                check_pattern(f"take-from {member.path}", pattern, member.source.tensors)
        require_agreement(self.members, averaged=self._averaged)
        if not (self.rules.only or self.rules.skip or self.taken):
            self._require_one_network()

    def _require_one_network(self) -> None:
        """Shapes don't show everything: classes in another order have heads of the same shape."""
        told = [member for member in self.members if "model" in member.about]
        for member in told[1:]:
            if member.about["model"] != told[0].about["model"]:
                raise WeightsError(
                    f"{member.path}: says it is of another network or other classes than "
                    f"{told[0].path}",
                    remedy="average members of one backbone, image size and list of classes",
                )

    def _averaged(self, name: str) -> bool:
        taken = (pattern for _, pattern in self.taken)
        return self.rules.averaged(name) and not matches(name, taken)

    @cached_property
    def notes(self) -> list[str]:
        """What a reader should know of the result, a line each."""
        return list(self.recipe.notes())

    @cached_property
    def recipe(self) -> Recipe:
        """What each tensor is computed from."""
        return Recipe(self)

    @property
    def _plans(self) -> list[Plan]:
        return self.recipe.plans

    @property
    def infos(self) -> dict[str, TensorInfo]:
        """What every tensor of the result is."""
        return {name: plan.info for plan in self._plans for name in plan.written}

    def arrays(self) -> Iterator[tuple[str, NDArray]]:
        """The merged tensors as arrays, in the order of the first member's file.

        Raises:
            WeightsError: if a member holds NaN or infinity.
        """
        for group in self._groups():
            ready, sink = copied(group)
            for _ in blend(group, sink):
                pass
            for plan in group:
                for name in plan.written:
                    yield name, ready[plan.name]

    def _groups(self) -> Iterator[list[Plan]]:
        group: list[Plan] = []
        size = 0
        for plan in self._plans:
            if group and size + plan.info.size > _GROUP:
                yield group
                group, size = [], 0
            group.append(plan)
            size += plan.info.size
        if group:
            yield group

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The merged tensors one at a time."""
        from diwa.weights.files import as_tensor

        for name, array in self.arrays():
            yield name, as_tensor(array)

    @property
    def about(self) -> Mapping[str, Any]:
        """What is known of the result: how to build its network, and what went into it."""
        return about(self)

    def save(
        self,
        path: Path | str,
        *,
        shard_size: int | None = None,
        progress: Progress = QUIET,
    ) -> Path:
        """Writes the result beside its place and renames it there; see `diwa.soup.save`.

        Args:
            path: a .safetensors file, or a folder for shards and for what lies beside the
                first member's weights, such as a configuration.
            shard_size: how many bytes a file may have; one file holds everything by default.
            progress: who hears how it goes.

        Raises:
            DiwaError: if a member holds NaN or infinity, or the place can't be written.
        """
        from diwa.soup.save import save

        return save(self, Path(path), self._plans, shard_size=shard_size, progress=progress)
