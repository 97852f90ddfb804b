"""Which members can be averaged with which, and what speaks against the others.

The thresholds were set on networks of known origin: tf_efficientnet_lite0 with ImageNet weights,
fine-tuned on PACS for 150 steps from one linear probe with Adam at 1e-4 to 3e-3, from two heads
drawn apart, and from two random initialisations. `tests/analysis/test_calibration.py` has the
same in small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Literal, NamedTuple

from diwa.analysis.evidence import Evidence, MemberFacts, PairFacts

#: Standard deviations. Strangers had at most 0.3 and siblings 170, even where training had gone
#: astray; ten is what no chance gives. Between the last two, who knows.
CERTAIN = 10.0
LIKELY = 5.0
STRANGE = 3.0
#: Below this correlation a matrix was drawn apart. Heads drawn apart had at most .06 after
#: training; one head that went through linear probing in one member and not in the other had .65.
APART = 0.3
#: Distances over the norm. Siblings that averaged well were .02 to .10 apart, those whose average
#: was lost (learning rates ten times as high) .15 to .43, strangers 1.4. From here on, who is
#: much farther than usual is left out,
NEAR = 0.15
USUAL = 3.0
#: and from here on, who is as far: half of the way to a right angle.
FAR = 0.5
#: Nearer than this they are copies, but for rounding.
SAME = 1e-6
#: How far the loss may rise between two members, over what they have learnt: the loss of
#: guessing, log(classes), less theirs. Siblings that averaged well had at most .03, heads drawn
#: apart .05 to .17, strangers .11 and more, those whose average was lost .38 and more.
BARRIER = 0.075
#: Who has learnt less than this part of the loss of guessing has nothing to lose on any way.
LEARNT = 0.1
#: How far a member's accuracy may be below the best one's. An average of four members at .9 with
#: one at .37 fell to .44.
BEHIND = 0.1

Word = Literal["certain", "likely", "no sign of it", "can't tell"]
#: What keeps two members apart, the gravest first.
Obstacle = Literal["tensors", "origin", "heads", "barrier", "far"]


class Grounds(NamedTuple):
    """Why a member is not averaged."""

    name: str
    why: str


class Sorted(NamedTuple):
    """Members by what is to be done with them.

    Args:
        group: those to average.
        useless: those that are of no use, whatever the others are.
        copies: those that are the same weights as another one.
        strangers: those that don't fit the group, though they may be good.
    """

    group: list[str]
    useless: list[Grounds]
    copies: list[Grounds]
    strangers: list[Grounds]


def origin(pair: PairFacts) -> Word:
    """How sure it is that two members descend from one initialisation."""
    if pair.same_init:
        return "certain"
    if pair.sigma is None or pair.power is None:
        return "can't tell"
    if pair.sigma >= CERTAIN:
        return "certain"
    if pair.sigma >= LIKELY:
        return "likely"
    return "no sign of it" if pair.sigma < STRANGE and pair.power >= LIKELY else "can't tell"


def weakest(pairs: Iterable[PairFacts]) -> Word:
    """How sure it is for the least sure of some pairs."""
    order: list[Word] = ["no sign of it", "can't tell", "likely", "certain"]
    return order[min((order.index(origin(pair)) for pair in pairs), default=1)]


def limit(evidence: Evidence, names: Sequence[str]) -> float | None:
    """How far the loss may rise between some members; None if they have nothing to lose."""
    land = evidence.landscape
    if land is None:
        return None
    guessing = math.log(land.classes)
    learnt = guessing - sum(land.members[name].loss for name in names) / len(names)
    return BARRIER * learnt if learnt > LEARNT * guessing else None


def usual_distance(evidence: Evidence) -> float:
    """How far a member usually is from the one nearest to it, among those of one origin."""
    nearest: dict[str, float] = {}
    for pair in evidence.pairs:
        if pair.agree and pair.distance is not None and origin(pair) != "no sign of it":
            for name in (pair.one, pair.other):
                nearest[name] = min(nearest.get(name, math.inf), pair.distance)
    return median(nearest.values()) if nearest else 0.0


def obstacle(evidence: Evidence, pair: PairFacts, usual: float) -> Obstacle | None:
    """What speaks against averaging two members; what was measured with data settles it."""
    if not pair.agree:
        return "tensors"
    most = limit(evidence, (pair.one, pair.other))
    measured = pair.barrier is not None and most is not None
    if measured and (pair.barrier or 0.0) <= (most or 0.0):
        return None
    causes: dict[Obstacle, bool] = {
        "origin": origin(pair) == "no sign of it",
        "heads": bool(pair.apart) and not pair.same_init,
        "barrier": measured,
        "far": _too_far(pair.distance or 0.0, usual),
    }
    return next((what for what, there in causes.items() if there), None)


def _too_far(distance: float, usual: float) -> bool:
    return distance > FAR or (distance > NEAR and distance > USUAL * usual)


def sort_members(evidence: Evidence) -> Sorted:
    """Finds the largest group of members that can all be averaged with each other."""
    useless = _useless(evidence)
    out = {one.name for one in useless}
    left = [member for member in evidence.members if member.name not in out]
    copies = _copies(evidence, left)
    out |= {one.name for one in copies}
    names = [member.name for member in left if member.name not in out]
    usual = usual_distance(evidence)
    against: dict[frozenset[str], Obstacle | None] = {
        frozenset(two): obstacle(evidence, evidence.pair(*two), usual)
        for two in combinations(names, 2)
    }
    group = _largest(evidence, names, {two for two, what in against.items() if what is None})
    strangers = [
        Grounds(name, _why(evidence, name, group, against)) for name in names if name not in group
    ]
    useless = [one._replace(why=_foreign(evidence, one, group, usual)) for one in useless]
    return Sorted(group, useless, copies, strangers)


def percent(share: float) -> str:
    """A share for people.

    Example:
        >>> percent(0.123), percent(0.00012)
        ('12.3 %', '0.012 %')
    """
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else f"{100 * share:.2g} %"


def _useless(evidence: Evidence) -> list[Grounds]:
    found = [
        Grounds(member.name, f"holds NaN or infinity in {member.broken!r}")
        for member in evidence.members
        if member.broken
    ]
    scores = evidence.scores()
    best = max(scores.values(), default=0.0)
    broken = {one.name for one in found}
    for name, score in scores.items():
        if score < best - BEHIND and name not in broken:
            found.append(Grounds(name, f"scores {percent(score)}, the best {percent(best)}"))
    return found


def _foreign(evidence: Evidence, one: Grounds, group: Sequence[str], usual: float) -> str:
    """What speaks against a useless member, its origin first if that is another one."""
    against = [obstacle(evidence, evidence.pair(one.name, other), usual) for other in group]
    both = (_WHY[what]([]) for what in ("tensors", "origin") if what in against)
    return "; ".join([*both, one.why])


def _copies(evidence: Evidence, members: Sequence[MemberFacts]) -> list[Grounds]:
    found: dict[str, Grounds] = {}
    for first, second in combinations(members, 2):
        pair = evidence.pair(first.name, second.name)
        if first.name in found or second.name in found or not pair.agree:
            continue
        if pair.distance is not None and pair.distance <= SAME:
            found[second.name] = Grounds(second.name, f"the same weights as {first.name}")
    return list(found.values())


def _largest(evidence: Evidence, names: Sequence[str], friends: set[frozenset[str]]) -> list[str]:
    """The largest group in which everybody can be averaged with everybody.

    Grown from every member in turn, nearest first. That finds the largest wherever origins divide
    members into camps, and a large one otherwise.
    """
    scores = evidence.scores()
    apart = {
        frozenset(two): distance
        for two in combinations(names, 2)
        if (distance := evidence.pair(*two).distance) is not None
    }
    best: tuple[tuple[float, ...], list[str]] = ((), [])
    for seed in names:
        others = [name for name in names if frozenset((seed, name)) in friends]
        others.sort(key=lambda name: (apart.get(frozenset((seed, name)), math.inf), name))
        group = [seed]
        for name in others:
            if all(frozenset((name, member)) in friends for member in group):
                group.append(name)
        known = [scores[name] for name in group if name in scores]
        within = [apart.get(frozenset(two), math.inf) for two in combinations(group, 2)]
        rank = (
            len(group),
            sum(known) / len(known) if known else 0.0,
            -sum(within) / len(within) if within else 0.0,
        )
        if rank > best[0]:
            best = (rank, group)
    return [name for name in names if name in best[1]]


def _why(
    evidence: Evidence,
    name: str,
    group: Sequence[str],
    against: Mapping[frozenset[str], Obstacle | None],
) -> str:
    """What keeps a member out of the group: the gravest of what lies between it and them."""
    pairs = {other: against[frozenset((name, other))] for other in group}
    grave = [what for what in _WHY if what in pairs.values()]
    assert grave
    hindered = [evidence.pair(name, other) for other, what in pairs.items() if what == grave[0]]
    return _WHY[grave[0]](hindered)


def _origin(pairs: Sequence[PairFacts]) -> str:
    return f"does not descend from the same initialisation{_rise(pairs)}"


def _heads(pairs: Sequence[PairFacts]) -> str:
    apart = listed_tensors(sorted({name for pair in pairs for name in pair.apart}))
    return f"{apart} has nothing in common with theirs{_rise(pairs)}"


def _rise(pairs: Sequence[PairFacts]) -> str:
    """How far the loss rises on the way, where that was measured."""
    rise = max((pair.barrier or 0.0 for pair in pairs), default=0.0)
    return f", the loss rises by up to {rise:.2f} on the way" if rise else ""


def _far(pairs: Sequence[PairFacts]) -> str:
    return f"lies {percent(min(p.distance or 0.0 for p in pairs))} of the norm or more from them"


#: What to say of a member for what lies between it and the others; the gravest first.
_WHY = {
    "tensors": lambda pairs: "does not hold the same tensors",
    "origin": _origin,
    "heads": _heads,
    "barrier": lambda pairs: _rise(pairs).removeprefix(", "),
    "far": _far,
}


def listed_tensors(names: Sequence[str], most: int = 3) -> str:
    """Some names, and how many more there are.

    Example:
        >>> listed_tensors(["head.weight"]), listed_tensors(["a", "b", "c"], 1)
        ("'head.weight'", "'a' and 2 more")
    """
    shown = ", ".join(map(repr, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
