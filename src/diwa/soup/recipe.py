"""From a soup's members and rules to what each tensor is computed from, and to its manifest."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from diwa.errors import WeightsError
from diwa.soup.engine import STRETCH, Part, Plan
from diwa.soup.methods.base import RUNNING
from diwa.soup.methods.uniform import Uniform
from diwa.soup.rules import matches
from diwa.weights.agree import holdings
from diwa.weights.header import TensorInfo
from diwa.weights.member import Member
from diwa.weights.unwrap import WRAPPINGS

if TYPE_CHECKING:
    from diwa.soup.soup import Soup

_PLAIN = Uniform()


class Recipe:
    """What each tensor of a soup is computed from.

    Args:
        soup: the soup, whose members agree.

    Attributes:
        statistics: what the method reads beside the members, one for each.

    Raises:
        WeightsError: if a file of statistics can't be read.
    """

    def __init__(self, soup: Soup) -> None:
        self._soup = soup
        self._first = soup.members[0]
        self.statistics = [Member.from_file(path) for path in soup.blending.statistics()]
        base = [soup.base] if soup.base else []
        taken = [member for member, _ in soup.taken]
        every = [*soup.members, *base, *taken, *self.statistics]
        held = holdings([member.source for member in every])
        self._held = {id(member): one for member, one in zip(every, held, strict=True)}
        self._held_by_members = [(one, self._held[id(one)]) for one in soup.members]
        self._aliases = {id(member): member.source.aliases for member in every}
        self._any_tied = any(self._aliases.values())

    @cached_property
    def places(self) -> list[int]:
        """Where the members stand among the arguments, in an order that their content tells.

        Floating sums depend on the order of what is added; this makes it always the same.
        """
        members = self._soup.members
        shares = self._soup.blending.coefficients(len(members))

        def sample(place: int) -> bytes:
            return members[place].source.fingerprint

        def content(place: int) -> tuple[str, float, str, str]:
            return (
                members[place].source.digest,
                shares[place] if shares else 0.0,
                self.statistics[place].source.digest if self.statistics else "",
                members[place].name,
            )

        ordered: list[int] = []
        for _, alike in groupby(sorted(range(len(members)), key=sample), key=sample):
            group = list(alike)
            ordered += sorted(group, key=content) if len(group) > 1 else group
        return ordered

    @cached_property
    def plans(self) -> list[Plan]:
        """How to make each tensor.

        Raises:
            WeightsError: if a file lacks what is to be taken from it, or has no statistics of a
                tensor, or such that don't fit it.
        """
        wanted = dict.fromkeys(self._wanted())
        every = dict.fromkeys([*wanted, *self._held[id(self._first)]])
        origins = {name: self._origin(name) for name in every}
        # Tensors that are made of the same numbers in the same way are tied, and computed once.
        tied: dict[Hashable, list[str]] = {}
        for name, (blended, parts) in origins.items():
            key = (blended, *map(self._numbers, parts)) if self._any_tied else name
            tied.setdefault(key, []).append(name)
        plans = []
        for names in map(sorted, tied.values()):
            # What the first member left out as a copy is written only if it no longer is one.
            written = [name for name in names if name in wanted] or names
            # The least of the names stands for all, whichever of them the first member has.
            plans.append(self._plan(names[0], *origins[names[0]], written))
        return plans

    @property
    def tied(self) -> dict[str, str]:
        """Tensors of the result that share their numbers with another one: name -> that one's."""
        return {name: plan.written[0] for plan in self.plans for name in plan.written[1:]}

    def notes(self) -> Iterator[str]:
        """What a reader should know of the result."""
        integers = [plan for plan in self.plans if self._differs(plan)]
        if integers:
            yield f"integers that differ are the first member's: {_some(integers)}"
        blended = [plan for plan in self.plans if plan.method is not None]
        plain = [plan for plan in blended if plan.method is not self._soup.blending]
        if plain:
            lacking = "in the base" if self._soup.base else "in the statistics"
            yield f"not {lacking}, so averaged plainly: {_some(plain)}"
        mixed = [plan for plan in blended if len(_kinds(plan)) > 1]
        if mixed and not self._soup.rules.dtype:
            kinds = ", ".join(sorted(_kinds(mixed[0])))
            where = _some(mixed)
            yield f"members hold {kinds} in {where}; written as in the first, or pass --dtype"
        made = {name: plan for plan in self.plans for name in plan.written}
        ties = self._aliases[id(self._first)].items()
        written = [tie for tie in ties if made.keys() >= {*tie}]
        apart = [(one, kept) for one, kept in written if made[one] is not made[kept]]
        if apart:
            pairs = [f"{one} and {kept}" for one, kept in apart]
            yield f"tied in {self._first.path}, but no longer: {_listed(pairs)}"
        odd = [plan for plan in self.plans if plan.method is None and not _finite(plan.members[0])]
        if odd:
            path = odd[0].members[0].member.path
            yield f"holds NaN or infinity, taken over as {path} has it: {_some(odd)}"
        for member in self._soup.members:
            others = member.source.metadata.get("left_out", "").split(", ")
            if beside := [name for name in others if name in WRAPPINGS]:
                yield f"{member.path}: also holds {', '.join(beside)}, which was not taken"

    def _wanted(self) -> Iterator[str]:
        """What the first member stores, and what else of another file is to be taken."""
        yield from self._first.source.tensors
        for member, pattern in self._soup.taken:
            yield from (name for name in member.source.tensors if matches(name, (pattern,)))

    def _origin(self, name: str) -> tuple[bool, list[Part]]:
        """Whether a tensor is blended, and what it comes from."""
        for member, pattern in self._soup.taken:
            if matches(name, (pattern,)):
                part = self._part(member, name)
                if part is None:
                    raise WeightsError(
                        f"{member.path}: lacks {name!r}, which take-from {pattern!r} stands for",
                        remedy="give a pattern of what it has",
                    )
                return False, [part]
        first = self._part(self._first, name)
        assert first is not None
        if not self._soup.rules.averaged(name) or not first.info.kind.floating:
            return False, [first]
        return True, [Part(one, held[name]) for one, held in self._held_by_members if name in held]

    def _part(self, member: Member, name: str) -> Part | None:
        """A tensor of a member, which may store it under another name that is tied to it."""
        kept = self._held[id(member)].get(name)
        return None if kept is None else Part(member, kept)

    def _numbers(self, part: Part) -> Hashable:
        """Equal for parts that are the same numbers."""
        who = id(part.member)
        return who, self._aliases[who].get(part.name, part.name)

    def _plan(
        self, name: str, blended: bool, parts: Sequence[Part], written: Sequence[str]
    ) -> Plan:
        info = parts[0].info
        target = TensorInfo(self._soup.rules.kind(info.kind), info.shape)
        if not blended:
            return Plan(name, target, None, parts, (0,), written=written)
        members = [parts[place] for place in self.places]
        method = self._soup.blending
        base = self._base(name, info)
        extra = self._extra(name, info)
        unfit = method.by_rows and len(info.shape) != 2
        if unfit or (method.wants_base and base is None) or (self.statistics and not extra):
            return Plan(name, target, _PLAIN, members, self.places, written=written)
        return Plan(name, target, method, members, self.places, base, extra, written)

    def _base(self, name: str, info: TensorInfo) -> Part | None:
        part = self._part(self._soup.base, name) if self._soup.base else None
        suits = part and part.info.shape == info.shape and part.info.kind.floating
        return part if suits else None

    def _extra(self, name: str, info: TensorInfo) -> list[Part]:
        """The method's statistics of a tensor."""
        method = self._soup.blending
        wanted = method.statistics_shape(info.shape)
        found = []
        for place in self.places if self.statistics else ():
            member = self.statistics[place]
            part = self._part(member, name)
            if part is not None and part.info.shape != wanted:
                raise WeightsError(
                    f"{member.path}: {part.name!r} is {part.info}, which does not suit a tensor of "
                    f"shape {info.shape}",
                    remedy=f"give what {method.name} asks for, or pass --skip for this tensor",
                )
            # What training has no gradients of has none to be squared.
            if part is None and not method.sparing and not name.endswith(RUNNING):
                raise WeightsError(
                    f"{member.path}: has no statistics of {name!r}",
                    remedy="collect them for every tensor, or pass --skip for those without",
                )
            found.append(part)
        return found if None not in found else []

    def _differs(self, plan: Plan) -> bool:
        """Whether these are integers of the first member's that differ in others."""
        own = plan.members[0]
        if own.info.kind.floating or own.member is not self._first:
            return False
        others = [self._part(member, plan.name) for member in self._soup.members]
        return any(other is not None and not _same(own, other) for other in others)


def _same(one: Part, other: Part) -> bool:
    if one.info.shape != other.info.shape:
        return False
    left, right = one.array().reshape(-1), other.array().reshape(-1)
    starts = range(0, left.size, STRETCH)
    return all(np.array_equal(left[at : at + STRETCH], right[at : at + STRETCH]) for at in starts)


def _finite(part: Part) -> bool:
    if not part.info.kind.floating:
        return True
    numbers = part.array().reshape(-1)
    starts = range(0, numbers.size, STRETCH)
    return all(np.isfinite(numbers[at : at + STRETCH]).all() for at in starts)


def _kinds(plan: Plan) -> set[str]:
    return {part.info.kind.code for part in plan.members}


def _some(plans: Sequence[Plan]) -> str:
    return _listed([name for plan in plans for name in plan.written])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def about(soup: Soup, digests: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the result says of itself.

    Args:
        soup: what was made.
        digests: the SHA-256 of each file, by path, where they were computed.
    """

    def told(member: Member, **more: Any) -> dict[str, Any]:
        said: dict[str, Any] = {"name": member.name, **more}
        if digests is not None:
            said["sha256"] = digests[str(member.path)]
        if member.score is not None:
            said["score"] = member.score
        return said

    from diwa import __version__

    shares = soup.blending.coefficients(len(soup.members))
    places = soup.recipe.places
    members = [
        told(soup.members[place], **({"coefficient": shares[place]} if shares else {}))
        for place in places
    ]
    # What belongs to each member is told as coefficients or statistics, in their order.
    settings = {
        name: value
        for name, value in msgspec.to_builtins(soup.blending).items()
        if name not in soup.blending.each
    }
    soup_said: dict[str, Any] = {
        "version": __version__,
        "method": soup.method,
        "blending": soup.blending.name,
        "settings": settings,
        "members": members,
        "trace": [[tried.member, tried.score, tried.kept] for tried in soup.trace],
    }
    if soup.base is not None:
        soup_said["base"] = told(soup.base)
    if soup.recipe.statistics:
        soup_said["statistics"] = [told(soup.recipe.statistics[place]) for place in places]
    rules = msgspec.to_builtins(soup.rules)
    soup_said.update({name: value for name, value in rules.items() if value})
    if soup.taken:
        soup_said["taken"] = [told(member, pattern=pattern) for member, pattern in soup.taken]
    said: dict[str, Any] = {"soup": soup_said}
    models = [member.about["model"] for member in soup.members if "model" in member.about]
    if models and all(model == models[0] for model in models):
        said["model"] = models[0]
    inits = {member.init for member in soup.members}
    if len(inits) == 1 and None not in inits:
        said["init"] = inits.pop()
    if tied := soup.recipe.tied:
        said["tied"] = tied
    return said
