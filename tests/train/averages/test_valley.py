"""The valley of a loss curve, against an evaluation of SWAD's own rules one segment at a time."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diwa.train.averages.valley import Valley, valley

#: Few values, so that ties and plateaus are frequent.
LOSSES = st.lists(st.sampled_from([1.0, 1.1, 1.25, 1.5, 2.0, 3.0]), max_size=30)
SETTINGS = st.tuples(st.integers(1, 5), st.integers(1, 8), st.sampled_from([0.0, 0.1, 0.3]))


def naive(
    losses: list[float], converge: int, overfit: int, tolerance: float
) -> tuple[list[int] | None, float]:
    """Queues of segments, as SWAD's authors have them, each segment put in once by its number."""
    recent: deque[int] = deque(maxlen=converge)
    window: deque[int] = deque(maxlen=overfit)
    converged, limit, taken, dead = -1, math.inf, set(), False
    for number in range(len(losses)):
        if dead:
            break
        recent.append(number)
        window.append(number)
        full = len(recent) == converge
        if converged < 0 and full and losses[recent[0]] == min(losses[n] for n in recent):
            converged = recent[0]
            limit = sum(losses[n] for n in recent) / converge * (1 + tolerance)
            taken.add(converged)
            for before in sorted(window, reverse=True):
                if before < converged:
                    if losses[before] > limit:
                        break
                    taken.add(before)
            # Windows that begin between convergence and its notice are looked at below.
        if converged >= 0 and len(window) == overfit and window[0] > converged:
            if min(losses[n] for n in window) > limit:
                dead = True
            else:
                taken.add(window[0])
    if converged < 0:
        return None, limit
    if not dead:
        # What is left at the end, by windows that shrink.
        for number in range(max(converged + 1, len(losses) - overfit + 1), len(losses)):
            if min(losses[number:]) > limit:
                break
            taken.add(number)
    return sorted(taken), limit


@given(LOSSES, SETTINGS)
def test_equals_the_naive_evaluation(losses: list[float], settings: tuple[int, int, float]) -> None:
    converge, overfit, tolerance = settings
    if overfit < converge:
        # Their queue then starts late; ours is the same rule with nothing to look back at.
        overfit = converge
    expected, _ = naive(losses, converge, overfit, tolerance)
    found = valley(losses, converge=converge, overfit=overfit, tolerance=tolerance)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert expected == list(range(found.first, found.last + 1))


@given(LOSSES, SETTINGS)
def test_later_losses_only_move_its_end_forwards(
    losses: list[float], settings: tuple[int, int, float]
) -> None:
    """Which is why segments can be added up while the run goes on."""
    converge, overfit, tolerance = settings
    found = [
        valley(losses[:count], converge=converge, overfit=overfit, tolerance=tolerance)
        for count in range(len(losses) + 1)
    ]
    for before, after, count in zip(found, found[1:], range(1, len(losses) + 1), strict=False):
        if before is None:
            # No segment is needed that a run has thrown away by then.
            assert after is None or after.first >= count - max(overfit, converge)
            continue
        assert after is not None
        assert after.first == before.first
        assert after.last >= before.last
        if count - 2 - before.last >= overfit:
            assert after == before, "the valley was behind already"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([5, 4], None),
        ([5, 4, 3, 2, 1], None),
        # Converges at 2 (noticed at 4); 1.4 is above the limit of 1.0333 * 1.3.
        ([2.0, 1.4, 1.0, 1.1, 1.0], Valley(2, 4)),
        # The loss before is within the limit, the one before that is not.
        ([2.0, 1.3, 1.0, 1.1, 1.0], Valley(1, 4)),
        # Looks back over six validations in all, not further.
        ([1.05, 1.04, 1.03, 1.02, 1.01, 1.0, 1.0, 1.0], Valley(2, 7)),
        # A single loss within the limit keeps the valley going, however far up it was before.
        ([1.0, 1.0, 1.0, 9, 9, 9, 9, 9, 1.0], Valley(0, 8)),
        ([1.0, 1.0, 1.0, 9, 9, 9, 9, 9, 9, 1.0], Valley(0, 2)),
        # At the end of a run fewer than six will do.
        ([1.0, 1.0, 1.0, 9, 9], Valley(0, 2)),
        # A run that breaks down.
        ([1.0, 1.0, 1.0, math.nan, math.nan], Valley(0, 2)),
        ([math.nan] * 9, None),
    ],
)
def test_by_hand(losses: list[float], expected: Valley | None) -> None:
    assert valley(losses) == expected


def test_the_settings_are_those_of_the_protocol() -> None:
    from diwa.runs.spec import SwadSpec

    held = SwadSpec()
    assert (held.converge, held.overfit, held.tolerance) == (3, 6, 0.3)
    curve = [2.0, 1.3, 1.0, 1.1, 1.0]
    assert valley(curve) == valley(curve, converge=3, overfit=6, tolerance=0.3)
    assert valley(curve, tolerance=0.2) == Valley(2, 4)
