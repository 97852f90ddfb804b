"""Whether several sets of weights hold the same tensors, and which one does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol

from diwa.errors import WeightsError
from diwa.weights.header import TensorInfo
from diwa.weights.source import Source

#: More names than this are counted, not listed.
LISTED = 20


class Named(Protocol):
    """Anything with a name and tensors: a member, a base, a located file."""

    @property
    def name(self) -> str:
        """What tables and errors call it."""
        ...

    @property
    def source(self) -> Source:
        """Its tensors."""
        ...


@dataclass(frozen=True)
class Disagreement:
    """One tensor that is not the same thing in all members.

    Args:
        tensor: its name.
        found: what it is and who has it so, the most common first; None is "not there at all".
        majority: whether more members hold the first than any other.
    """

    tensor: str
    found: tuple[tuple[TensorInfo | None, tuple[str, ...]], ...]
    majority: bool

    @property
    def differ(self) -> tuple[str, ...]:
        """The members that differ from the majority; none if there is no majority."""
        if not self.majority:
            return ()
        return tuple(name for _, names in self.found[1:] for name in names)

    def apart(self, one: str, other: str) -> bool:
        """Whether two members differ in this tensor."""
        return not any(one in names and other in names for _, names in self.found)


def always(name: str) -> bool:
    """True for every tensor."""
    del name
    return True


def holdings(sources: Sequence[Source]) -> list[dict[str, str]]:
    """For every source, the tensors it holds: name -> the name it is stored under.

    Tensors that share their numbers are often stored once. A name that one source lacks but
    another one has tied to a name that the first one has is there all the same.

    Example:
        >>> from diwa.weights.source import open_source
        >>> holdings([open_source(path) for path in example_members])
        [{'w': 'w'}, {'w': 'w'}]
    """
    tied: dict[str, set[str]] = {}
    for source in sources:
        for name, kept in source.aliases.items():
            together = tied.get(name, {name}) | tied.get(kept, {kept})
            tied.update(dict.fromkeys(together, together))
    stored = {name for source in sources for name in source.tensors}
    held = []
    for source in sources:
        own = {name: name for name in source.tensors}
        for name in sorted(stored & tied.keys() - own.keys()):
            partners = sorted(tied[name] & source.tensors.keys())
            if partners:
                own[name] = partners[0]
        held.append(own)
    return held


def disagreements(members: Sequence[Named]) -> list[Disagreement]:
    """Every tensor that some members lack, or have in another shape or kind of number.

    Floating kinds of different widths agree; an integer and a floating one do not.

    Args:
        members: their names must differ from each other.
    """
    sources = [member.source for member in members]
    if all(source.tensors is sources[0].tensors for source in sources):
        return []  # as with checkpoints of one network, most of the time
    found = [
        {name: source.tensors[kept] for name, kept in held.items()}
        for source, held in zip(sources, holdings(sources), strict=True)
    ]
    looks = [{name: _look(info) for name, info in one.items()} for one in found]
    if all(look == looks[0] for look in looks[1:]):
        return []
    differ = []
    for name in sorted({name for look in looks for name in look}):
        counts = Counter(look.get(name) for look in looks)
        if len(counts) == 1:
            continue
        # `most_common` keeps those of equal number in the order of the members.
        ranked = counts.most_common()
        groups = []
        for seen, _ in ranked:
            who = [place for place, look in enumerate(looks) if look.get(name) == seen]
            groups.append((found[who[0]].get(name), tuple(members[place].name for place in who)))
        differ.append(Disagreement(name, tuple(groups), ranked[0][1] > ranked[1][1]))
    return differ


def require_agreement(
    members: Sequence[Named], *, averaged: Callable[[str], bool] = always
) -> None:
    """Makes sure that all members hold the same tensors.

    Args:
        members: their names must differ from each other.
        averaged: says of a tensor's name whether it matters; others need not agree.

    Raises:
        WeightsError: naming every tensor that differs, by the member that differs from the others.

    Example:
        >>> from diwa.weights.source import open_source
        >>> from types import SimpleNamespace
        >>> a, b = (SimpleNamespace(name=p.stem, source=open_source(p)) for p in example_members)
        >>> require_agreement([a, b])
    """
    differ = [one for one in disagreements(members) if averaged(one.tensor)]
    if differ:
        names = [member.name for member in members]
        advice = "leave it out" if any(one.differ for one in differ) else "leave one of them out"
        raise WeightsError(
            "; ".join(described(differ, names)),
            remedy=f"{advice}, or pass --skip PATTERN for tensors that are not to be averaged",
        )


def described(differ: Sequence[Disagreement], names: Sequence[str]) -> list[str]:
    """What differs, in a phrase for each member that differs from the others.

    Args:
        differ: what was found.
        names: all members, in the order in which to name them.
    """
    phrases: dict[str, list[str]] = {}
    for name in names:
        own = [one for one in differ if name in one.differ]
        if own:
            # Members that differ in the same way share a phrase.
            phrases.setdefault(_of_one(name, own), []).append(name)
    said = []
    for phrase, who in phrases.items():
        verb = "differs" if len(who) == 1 else "differ"
        left = len(names) - len(who)
        others = "the other" if left == 1 else f"the other {left}"
        said.append(f"{_listed(who)} {verb} from {others}: {phrase}")
    split = [one for one in differ if not one.majority]
    if split:
        who = _listed(names) if len(names) == 2 else f"the {len(names)} members"
        said.append(f"{who} disagree: {_of_all(split)}")
    return said


def _of_one(name: str, differ: Sequence[Disagreement]) -> str:
    """In what a member differs from the majority."""
    lacks, has, wrong = [], [], []
    for one in differ:
        own = next(info for info, who in one.found if name in who)
        usual = one.found[0][0]
        if own is None:
            lacks.append(one.tensor)
        elif usual is None:
            has.append(one.tensor)
        else:
            wrong.append(f"{one.tensor!r} is {own}, not {usual}")
    more, less = _prefix(lacks, has), _prefix(has, lacks)
    if more or less:
        word = "with" if more else "without"
        said = f"{word} {more or less!r} before {len(has)} names"
        return f"{said}; {_counted(wrong)}" if wrong else said
    parts = [
        f"lacking {_counted([*map(repr, lacks)])}" if lacks else "",
        f"with {_counted([*map(repr, has)])} besides" if has else "",
        _counted(wrong),
    ]
    return "; ".join(part for part in parts if part)


def _prefix(plain: Sequence[str], longer: Sequence[str]) -> str:
    """What stands before each of several names to make the longer ones; empty if nothing does."""
    if len(plain) < 2 or len(plain) != len(longer):
        return ""
    ends = (name.removesuffix(plain[0]) for name in longer if name.endswith(plain[0]))
    found = (start for start in ends if {start + name for name in plain} == {*longer})
    return next(found, "")


def _of_all(differ: Sequence[Disagreement]) -> str:
    """Who has what, where there is no majority to differ from."""
    held_by: dict[tuple[str, ...], list[str]] = {}
    wrong = []
    for one in differ:
        there = [(info, who) for info, who in one.found if info is not None]
        if len(there) == 1:
            held_by.setdefault(there[0][1], []).append(one.tensor)
        else:
            looks = ", ".join(f"{info} in {_listed(who)}" for info, who in there)
            wrong.append(f"{one.tensor!r} is {looks}")
    only = _prefixed(held_by) or [
        f"only {_listed(who)} {_has(who)} {_counted([*map(repr, held)])}"
        for who, held in held_by.items()
    ]
    return "; ".join([*only, *([_counted(wrong)] if wrong else [])])


def _prefixed(held_by: Mapping[tuple[str, ...], Sequence[str]]) -> list[str]:
    """Where two sides have names of their own, and the one's are the other's after a prefix."""
    for one, other in permutations(held_by, 2):
        if len(held_by) == 2 and (start := _prefix(held_by[one], held_by[other])):
            count = f"{len(held_by[one])} names"
            return [f"only {_listed(other)} {_has(other)} {start!r} before {count}"]
    return []


def _look(info: TensorInfo) -> tuple[str, tuple[int, ...]]:
    return info.kind.family, info.shape


def _has(who: Sequence[str]) -> str:
    return "has" if len(who) == 1 else "have"


def _counted(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - LISTED} more" if len(parts) > LISTED else ""
    return ", ".join(parts[:LISTED]) + more


def _listed(names: Sequence[str]) -> str:
    """Names as one would say them: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
