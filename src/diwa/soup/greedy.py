"""DiWA-restricted: members join in the order of their scores while the average gets no worse."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch

from diwa.errors import DiwaError
from diwa.soup.soup import Soup, Tried
from diwa.weights.member import Member

#: Gives the validation score of a set of weights.
Score = Callable[[Mapping[str, torch.Tensor]], float]


def greedy(members: Sequence[Member], *, score: Score, rule: Literal[">=", ">"] = ">=") -> Soup:
    """Ranks the members by their own score and adds each one that does not lower the average's.

    Every member is read once; the sum of those kept stays in memory, in float64.

    Args:
        members: each with a `score`; all validated on the same split.
        score: the score of an average.
        rule: ">=" as in DiWA, or ">" as in model soups.

    Raises:
        DiwaError: if there are no members, one has no score, their splits differ, or there is no
            such rule.
        WeightsError: if their tensors differ in names, shapes or kinds.
    """
    if not members:
        raise DiwaError("no members to choose from", remedy="finish at least one run")
    better = {">=": operator.ge, ">": operator.gt}.get(rule)
    if better is None:
        raise DiwaError(f"rule {rule!r}", remedy="choose >= or >")
    _check_comparable(members)
    Soup("all", tuple(members))  # which makes sure that they agree
    ranked = sorted(members, key=_rank)
    kept: list[Member] = []
    trace: list[Tried] = []
    total: dict[str, torch.Tensor] = {}
    best = float("-inf")
    for member in ranked:
        candidate = _added(total, member)
        scored = score(_divided(candidate, len(kept) + 1))
        joins = not kept or better(scored, best)
        trace.append(Tried(member.name, scored, joins))
        if joins:
            kept.append(member)
            total, best = candidate, scored
    return Soup("restricted", tuple(kept), tuple(trace))


def _rank(member: Member) -> tuple[float, str, str]:
    """The best first; equal ones in an order that does not depend on that of the arguments."""
    assert member.score is not None
    return -member.score, member.name, str(member.path)


def _check_comparable(members: Sequence[Member]) -> None:
    for member in members:
        if member.score is None or not math.isfinite(member.score):
            raise DiwaError(
                f"{member.path}: has no validation score to be ranked by",
                remedy="use the uniform average",
            )
        if member.split != members[0].split:
            raise DiwaError(
                f"{member.path}: was validated on another split than {members[0].path}, "
                "so no split is unseen by all",
                remedy="restrict within one trial, or use the uniform average",
            )


def _added(total: Mapping[str, torch.Tensor], member: Member) -> dict[str, torch.Tensor]:
    summed: dict[str, torch.Tensor] = {}
    for name, tensor in member.tensors():
        if tensor.is_floating_point():
            wide = tensor.to(torch.float64)
            summed[name] = wide + total[name] if name in total else wide
        else:
            summed[name] = total.get(name, tensor)
    return summed


def _divided(total: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    return {
        name: tensor / count if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }
