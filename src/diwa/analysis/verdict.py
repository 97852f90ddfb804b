"""The verdict on several sets of weights: merge, leave some out, or ensemble instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

from diwa.analysis.compare import (
    Grounds,
    Sorted,
    limit,
    listed_tensors,
    obstacle,
    percent,
    sort_members,
    usual_distance,
    weakest,
)
from diwa.analysis.evidence import Evidence, Point
from diwa.analysis.explain import explained
from diwa.spec import Spec

Action = Literal["merge", "leave out", "ensemble"]

#: What `diwa check` exits with; 3 if it could not find out.
CODES: dict[Action, int] = {"merge": 0, "leave out": 1, "ensemble": 2}


#: How a verdict on copies of one model begins.
_NOTHING = "Nothing to gain"


class LeftOut(Spec, frozen=True, kw_only=True):
    """A member that does not belong into the average."""

    name: str
    """Its name."""
    why: str
    """What speaks against it."""


class Verdict(Spec, frozen=True, kw_only=True):
    """Whether to average, whom to leave out, and why."""

    action: Action
    """Average all of them, some of them, or none."""
    code: int
    """The exit code of `diwa check`: 0, 1 or 2."""
    sentence: str
    """The same in plain words."""
    merge: list[str]
    """Whom to average; empty if nobody."""
    leave_out: tuple[LeftOut, ...] = ()
    """Whom to leave out."""
    merged: Point | None = None
    """What their average scores, if data was given."""
    notes: tuple[str, ...] = ()
    """What else to know, and what to do about it."""
    evidence: Evidence
    """All that was measured."""

    @property
    def gains(self) -> bool:
        """Whether it names a merge that gives something new."""
        return len(self.merge) > 1 and not self.sentence.startswith(_NOTHING)


def decide(
    evidence: Evidence, *, merged: Callable[[Sequence[str]], Point] | None = None
) -> Verdict:
    """Weighs what was measured.

    Args:
        evidence: of two members or more.
        merged: what the average of some of them scores, where there is data.

    Example:
        >>> from diwa.analysis.evidence import MemberFacts, PairFacts
        >>> a, b = (MemberFacts(name=name, path=name) for name in "ab")
        >>> strangers = PairFacts(one="a", other="b", distance=1.4, sigma=0.2, power=90.0)
        >>> decide(Evidence(members=[a, b], pairs=[strangers])).sentence
        'Ensemble a and b instead: there is no sign that they descend from one initialisation.'
    """
    found = sort_members(evidence)
    group = found.group
    score = merged(group) if merged and evidence.landscape and len(group) > 1 else None
    lost = score is not None and _lost(evidence, group, score)
    action: Action = "merge"
    if lost or (len(group) < 2 and found.strangers):
        action = "ensemble"
    elif found.strangers or found.useless or (found.copies and len(group) > 1):
        action = "leave out"
    if action == "merge":
        group = [member.name for member in evidence.members]
    out = [*found.strangers, *found.useless, *found.copies] if action == "leave out" else []
    if action == "ensemble":
        out = list(found.useless)
    return Verdict(
        action=action,
        code=CODES[action],
        sentence=_sentence(evidence, found, action, score, lost=lost),
        merge=[] if action == "ensemble" else group,
        leave_out=tuple(LeftOut(name=one.name, why=one.why) for one in out),
        merged=score,
        notes=tuple(explained(evidence, found)),
        evidence=evidence,
    )


def _lost(evidence: Evidence, group: Sequence[str], score: Point) -> bool:
    """Whether the loss of the average is too far above the average loss."""
    assert evidence.landscape
    losses = [evidence.landscape.members[name].loss for name in group]
    most = limit(evidence, group)
    return most is not None and score.loss - sum(losses) / len(losses) > most


def _sentence(
    evidence: Evidence, found: Sorted, action: Action, score: Point | None, *, lost: bool
) -> str:
    names = [member.name for member in evidence.members]
    if action == "merge":
        if len(found.group) == 1:
            return f"{_NOTHING}: {_all(names, names)} are the same weights; use any of them."
        return f"Merge {_all(names, names)}: {_why_merge(evidence, names, score)}."
    out = [*found.strangers, *found.useless, *found.copies]
    if action == "leave out":
        if not found.group:
            return f"Use none of them: {_with_why(out)}."
        if len(found.group) == 1:
            return f"Use {found.group[0]} alone and leave out {_with_why(out)}."
        why = _why_merge(evidence, found.group, score)
        return f"Merge {_all(found.group, names)}, and leave out {_with_why(out)}: {why}."
    bad = [*found.useless, *found.copies]
    usable = [name for name in names if name not in {one.name for one in bad}]
    besides = f" Leave out {_with_why(bad)}." if bad else ""
    why = (
        "though any two of them could be merged, the average of all loses what they know"
        if lost
        else _why_not(evidence, usable)
    )
    return f"Ensemble {_all(usable, names)} instead: {why}.{besides}"


def _with_why(out: Sequence[Grounds]) -> str:
    """Members to leave out, each with what speaks against it unless they are many."""
    if len(out) > 2:
        return _all([one.name for one in out], [])
    return " and ".join(f"{one.name} ({one.why})" for one in out)


def _why_merge(evidence: Evidence, names: Sequence[str], score: Point | None) -> str:
    pairs = [evidence.pair(*two) for two in combinations(names, 2)]
    if score is not None:
        assert evidence.landscape
        scores = [evidence.landscape.members[name].accuracy for name in names]
        return (
            f"their average scores {percent(score.accuracy)}, "
            f"they themselves {percent(min(scores))} to {percent(max(scores))}"
        )
    distances = [pair.distance for pair in pairs if pair.distance is not None]
    near = (
        f"they are close together, {percent(max(distances))} of their norm apart at most"
        if distances
        else "they hold the same tensors"
    )
    words = {
        "certain": "they certainly descend from one initialisation, and ",
        "likely": "they are likely to descend from one initialisation, and ",
    }
    return words.get(weakest(pairs), "") + near


def _why_not(evidence: Evidence, names: Sequence[str]) -> str:
    usual = usual_distance(evidence)
    pairs = [evidence.pair(*two) for two in combinations(names, 2)]
    against = {id(pair): obstacle(evidence, pair, usual) for pair in pairs}
    what = Counter(against.values()).most_common(1)[0][0]
    hindered = [pair for pair in pairs if against[id(pair)] == what]
    if what == "tensors":
        return "they do not hold the same tensors"
    if what == "origin":
        return "there is no sign that they descend from one initialisation"
    if what == "heads":
        apart = listed_tensors(sorted({name for pair in hindered for name in pair.apart}))
        return f"{apart} has nothing in common from one to another, as if drawn apart"
    if what == "barrier":
        rises = [pair.barrier or 0.0 for pair in hindered]
        return f"on the way from one to another the loss rises by {min(rises):.2f} or more"
    distances = [pair.distance or 0.0 for pair in hindered]
    return f"they lie {percent(min(distances))} of their norm apart or more, too far to average"


def _all(some: Sequence[str], names: Sequence[str], most: int = 6) -> str:
    """Members as one would say them."""
    if len(some) == len(names) > 2:
        return f"all {len(names)}"
    if len(some) > most:
        return f"{', '.join(some[:most])} and {len(some) - most} more"
    return f"{', '.join(some[:-1])} and {some[-1]}" if len(some) > 1 else "".join(some)
