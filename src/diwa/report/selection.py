"""Choosing runs and checkpoints by their validations, exactly as DomainBed does.

Even its ties matter: of equal runs it takes the one with the highest number, of equal checkpoints
the first, and another order would give another test accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from diwa.report.record import Chosen
from diwa.runs.domainbed import Evaluation


class Choice(NamedTuple):
    """The run and checkpoint that were chosen.

    Args:
        validation: what they were chosen for.
        test: their accuracy on the unseen domain's training split.
    """

    validation: float
    test: float


class Picked(NamedTuple):
    """A choice among several runs, and among how many."""

    test: float
    runs: int


#: Trial, data set, algorithm, and the number of the unseen domain.
Group = tuple[int, str, str, int]


def grouped(rows: Sequence[Evaluation]) -> dict[Group, list[Evaluation]]:
    """The evaluations by what is compared: runs that leave two domains out count for both."""
    groups: dict[Group, list[Evaluation]] = {}
    for row in rows:
        for domain in row.unseen:
            groups.setdefault((row.trial, row.data, row.algorithm, domain), []).append(row)
    return groups


def pick(rows: Sequence[Evaluation], chosen: Chosen) -> Picked | None:
    """The test accuracy of the best run of a group, by one of the ways to choose.

    Args:
        rows: evaluations of one group, see `grouped`.
        chosen: the way.

    Returns:
        None if no run can be chosen from that way.
    """
    by_draw: dict[int, list[Evaluation]] = {}
    for row in rows:
        by_draw.setdefault(row.draw, []).append(row)
    choices = [_WAYS[chosen](by_draw[draw]) for draw in sorted(by_draw)]
    able = [choice for choice in choices if choice is not None]
    if not able:
        return None
    best = sorted(able, key=lambda choice: _orderly(choice.validation))[-1]
    return Picked(best.test, len(able))


def _orderly(value: float) -> float:
    return float("-inf") if np.isnan(value) else value


def _alone(rows: Sequence[Evaluation]) -> list[Evaluation]:
    return [row for row in rows if len(row.unseen) == 1]


def _training_domain(rows: Sequence[Evaluation]) -> Choice | None:
    """The checkpoint with the best mean validation accuracy of the source domains."""
    choices = []
    for row in _alone(rows):
        (unseen,) = row.unseen
        others = [accuracy for domain, accuracy in enumerate(row.outer) if domain != unseen]
        choices.append(Choice(float(np.mean(others)), row.inner[unseen]))
    return max(choices, key=lambda choice: choice.validation, default=None)


def _oracle(rows: Sequence[Evaluation]) -> Choice | None:
    """The last checkpoint, by the unseen domain's own validation split."""
    ordered = sorted(_alone(rows), key=lambda row: row.step)
    if not ordered:
        return None
    (unseen,) = ordered[-1].unseen
    return Choice(ordered[-1].outer[unseen], ordered[-1].inner[unseen])


def _leave_one_out(rows: Sequence[Evaluation]) -> Choice | None:
    """The step at which runs that leave one more domain out do best on that one."""
    by_step: dict[int, list[Evaluation]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row)
    choices = [_left_out(by_step[step]) for step in sorted(by_step)]
    able = [choice for choice in choices if choice is not None]
    return max(able, key=lambda choice: choice.validation, default=None)


def _left_out(rows: Sequence[Evaluation]) -> Choice | None:
    alone = _alone(rows)
    # Also two of them are one too many, as after a run that was done twice.
    if len(alone) != 1:
        return None
    (unseen,) = alone[0].unseen
    found: dict[int, float] = {}
    for row in rows:
        if len(row.unseen) == 2 and len(set(row.unseen)) == 2:
            (other,) = set(row.unseen) - {unseen}
            found[other] = row.inner[other]
    count = len(alone[0].outer)
    domains = [domain for domain in range(count) if domain != unseen]
    if any(domain not in found for domain in domains):
        return None
    total = np.sum([found[domain] for domain in domains])
    return Choice(float(total / (count - 1)), alone[0].inner[unseen])


_WAYS: dict[Chosen, Callable[[Sequence[Evaluation]], Choice | None]] = {
    "training-domain": _training_domain,
    "leave-one-out": _leave_one_out,
    "oracle": _oracle,
}
