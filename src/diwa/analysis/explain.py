"""What else to know about several sets of weights: surprises explained before they happen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from diwa.analysis.compare import (
    LIKELY,
    NEAR,
    SAME,
    Sorted,
    listed_tensors,
    origin,
    percent,
)
from diwa.analysis.evidence import Evidence

#: Averaging shrinks weights that have little in common: siblings kept .98 of their norm at least,
#: even where the average was lost, strangers .71 (two of them) and less.
SHRUNK = 0.9
#: Over the norm. A learning rate of 1e-5 for 150 steps left siblings .004 apart, whose average
#: scored what the better one did.
ALIKE = 5e-3
#: A best member that is so far ahead of the next one is likely to lose by every average; less is
#: within what the draw of a few hundred validation images explains.
AHEAD = 0.05
#: Between the largest and the smallest learning rate; the paper's mild ones differ by 5, and
#: those of DomainBed, from which averages gain less, by 30.
WIDE = 30.0


def explained(evidence: Evidence, found: Sorted) -> list[str]:
    """Notes, the gravest first."""
    notes = [
        *_collapse(evidence, found),
        *_greedy(evidence, found),
        *_alike(evidence, found),
        *_heads(evidence),
        *_far(evidence, found),
        *_statistics(evidence, found),
        *_spread(evidence),
        *_base(evidence),
    ]
    return list(dict.fromkeys(notes))


def _collapse(evidence: Evidence, found: Sorted) -> Iterator[str]:
    """Why the average of all members would lose what they know."""
    count = len(evidence.members)
    land = evidence.landscape
    if land and found.strangers + found.useless:
        scores = [point.accuracy for point in land.members.values()]
        usual = sum(scores) / len(scores)
        if land.mean.accuracy < min(scores) or land.mean.accuracy < usual - 0.05:
            yield (
                f"a uniform average of all {len(scores)} collapses here: it scores "
                f"{percent(land.mean.accuracy)}, the members {percent(usual)} on average"
            )
    if evidence.ratio is not None and evidence.ratio < SHRUNK:
        yield (
            f"a uniform average of all would lose much: its norm is {evidence.ratio:.2f} of the "
            f"members' (1 for siblings, {1 / math.sqrt(count):.2f} for {count} strangers), so what "
            "every layer gives shrinks"
        )


def _greedy(evidence: Evidence, found: Sorted) -> Iterator[str]:
    """Why a greedy search would end with one model."""
    useful = {*found.group, *(one.name for one in found.strangers)}
    scores = {name: score for name, score in evidence.scores().items() if name in useful}
    ranked = sorted(scores.values(), reverse=True)
    best = max(scores, key=lambda name: (scores[name], name)) if scores else ""
    if found.strangers and len(found.group) < 2:
        yield (
            "a greedy search would keep one model only: no two of these can be averaged, so "
            "whatever is added to the best one makes it worse"
        )
    elif best and len(found.group) > 1 and best in {one.name for one in found.strangers}:
        yield (
            f"a greedy search would keep {best} only: it scores best but can't be averaged with "
            "the others, so whatever is added to it makes it worse"
        )
    elif len(ranked) > 1 and ranked[0] - ranked[1] > AHEAD:
        yield (
            f"a greedy search may keep {best} only: it scores {percent(ranked[0])} and the next "
            f"one {percent(ranked[1])}, so an average with any of the others may score less"
        )


def _alike(evidence: Evidence, found: Sorted) -> Iterator[str]:
    distances = [evidence.pair(*two).distance or 0.0 for two in combinations(found.group, 2)]
    if distances and SAME < max(distances) < ALIKE:
        yield (
            f"the members are almost the same, {percent(max(distances))} of their norm apart at "
            "most: averaging gains little; train longer, or with larger or more diverse learning "
            "rates"
        )


def _heads(evidence: Evidence) -> Iterator[str]:
    pairs = [pair for pair in evidence.pairs if not pair.same_init]
    apart = sorted({name for pair in pairs for name in pair.apart})
    if apart:
        yield (
            f"{listed_tensors(apart)}: nothing in common though the rest descends from one "
            "initialisation, as heads that were drawn apart; share one by linear probing before "
            "fine-tuning, or keep one member's with diwa merge --take-from FILE PATTERN"
        )


def _far(evidence: Evidence, found: Sorted) -> Iterator[str]:
    if evidence.landscape:
        return
    pairs = [evidence.pair(*two) for two in combinations(found.group, 2)]
    farthest = max((pair.distance or 0.0 for pair in pairs), default=0.0)
    if farthest > NEAR:
        yield (
            f"members to merge are up to {percent(farthest)} of their norm apart, which the "
            "weights alone can't judge: give --data (and --model) to measure the loss between them"
        )


def _statistics(evidence: Evidence, found: Sorted) -> Iterator[str]:
    pairs = [evidence.pair(*two) for two in combinations(found.group, 2)]
    if any((pair.statistics or 0.0) > SAME for pair in pairs):
        yield (
            "batch norm was trained with live statistics, which differ between members and fit "
            "no average: after merging, call diwa.recalibrate_batchnorm(model, loader)"
        )
    if evidence.integers:
        yield (
            f"integers differ in {listed_tensors(evidence.integers)}: a merge takes the first "
            "member's"
        )


def _spread(evidence: Evidence) -> Iterator[str]:
    rates = evidence.spread().get("lr", [])
    if rates and rates[0] > 0 and rates[-1] / rates[0] >= WIDE:
        yield (
            f"learning rates differ by a factor of {rates[-1] / rates[0]:.0f} ({rates[0]:g} to "
            f"{rates[-1]:g}): averages gain most from mild differences"
        )
    scored = [member for member in evidence.members if member.score is not None]
    if len({member.split for member in scored}) > 1 and not evidence.landscape:
        yield "members were validated on different splits, so their scores can't be compared"


def _base(evidence: Evidence) -> Iterator[str]:
    pairs = [pair for pair in evidence.pairs if origin(pair) in ("certain", "likely")]
    if evidence.base and evidence.base_sigma is not None and evidence.base_sigma < LIKELY and pairs:
        yield f"{evidence.base} is not where these started: they have nothing in common with it"
