"""What is said of evidence that is written down by hand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import msgspec
import pytest

from diwa.analysis.compare import obstacle, origin, sort_members, usual_distance
from diwa.analysis.evidence import Evidence, Landscape, MemberFacts, PairFacts, Point
from diwa.analysis.verdict import Verdict, decide

SIBLINGS: dict[str, Any] = {"distance": 0.05, "correlation": 0.99, "sigma": 170.0, "power": 171.0}
STRANGERS: dict[str, Any] = {"distance": 1.41, "correlation": 0.0, "sigma": 0.2, "power": 171.0}


def evidence(
    names: str,
    pairs: Mapping[str, Mapping[str, Any]] | None = None,
    members: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Evidence:
    """Siblings called a, b and so on, but for what is said of some."""
    return Evidence(
        members=[
            MemberFacts(name=name, path=f"{name}.pt", **(members or {}).get(name, {}))
            for name in names
        ],
        pairs=[
            PairFacts(one=one, other=other, **{**SIBLINGS, **(pairs or {}).get(one + other, {})})
            for one, other in combinations(names, 2)
        ],
        **more,
    )


def away(name: str, names: str, **facts: Any) -> dict[str, dict[str, Any]]:
    """The same for every pair that a member is in."""
    return {"".join(sorted((name, other))): facts for other in names if other != name}


def measured(evidence: Evidence, losses: Mapping[str, float], mean: float, **barriers: float):
    """The same with losses, of two classes, and barriers by pair."""
    points = {n: Point(loss=loss, accuracy=max(0.5, 1 - loss / 2)) for n, loss in losses.items()}
    land = Landscape(
        images=1000,
        domains=["d"],
        classes=2,
        members=points,
        mean=Point(loss=mean, accuracy=1 - mean / 2),
        ways=[],
        to_mean=[],
    )
    pairs = [
        msgspec.structs.replace(pair, barrier=barriers.get(pair.one + pair.other, 0.0))
        for pair in evidence.pairs
    ]
    return msgspec.structs.replace(evidence, pairs=pairs, landscape=land)


def notes(verdict: Verdict) -> str:
    return "\n".join(verdict.notes)


def test_siblings_are_merged() -> None:
    verdict = decide(evidence("abc"))
    assert (verdict.action, verdict.code, verdict.merge) == ("merge", 0, ["a", "b", "c"])
    assert verdict.sentence == (
        "Merge all 3: they certainly descend from one initialisation, and they are close together, "
        "5.0 % of their norm apart at most."
    )
    assert verdict.leave_out == ()
    assert verdict.notes == ()


def test_one_that_is_of_another_origin_is_left_out() -> None:
    verdict = decide(evidence("abcd", away("c", "abcd", **STRANGERS), ratio=0.8))
    assert (verdict.action, verdict.code, verdict.merge) == ("leave out", 1, ["a", "b", "d"])
    assert [(one.name, one.why) for one in verdict.leave_out] == [
        ("c", "does not descend from the same initialisation")
    ]
    assert verdict.sentence.startswith("Merge a, b and d, and leave out c (does not descend from")
    assert "its norm is 0.80 of the members' (1 for siblings, 0.50 for 4 strangers)" in notes(
        verdict
    )


def test_strangers_are_ensembled() -> None:
    pairs = {one + other: STRANGERS for one, other in combinations("abc", 2)}
    verdict = decide(evidence("abc", pairs, ratio=0.58))
    assert (verdict.action, verdict.code, verdict.merge) == ("ensemble", 2, [])
    assert verdict.sentence == (
        "Ensemble all 3 instead: there is no sign that they descend from one initialisation."
    )
    assert "a greedy search would keep one model only" in notes(verdict)
    assert "a uniform average of all would lose much" in notes(verdict)


def test_the_better_of_two_camps() -> None:
    camps = {one + other: STRANGERS for one in "ab" for other in "cd"}
    known = {n: {"score": s} for n, s in zip("abcd", (0.8, 0.8, 0.85, 0.85), strict=True)}
    verdict = decide(evidence("abcd", camps, known))
    assert verdict.merge == ["c", "d"]
    nearer = decide(evidence("abcd", {**camps, "ab": {"distance": 0.01}}))
    assert nearer.merge == ["a", "b"]


def test_heads_that_were_drawn_apart() -> None:
    verdict = decide(evidence("ab", {"ab": {"apart": ("head.weight",)}}))
    assert verdict.code == 2
    assert "'head.weight' has nothing in common from one to another" in verdict.sentence
    assert "linear probing" in notes(verdict)
    assert "--take-from" in notes(verdict)
    # Files that tell of one initialisation know better: then training moved it far.
    told = {"apart": ("head.weight",), "same_init": True}
    assert decide(evidence("ab", {"ab": told})).code == 0


def test_other_tensors() -> None:
    verdict = decide(evidence("abc", away("a", "abc", agree=False), disagreements=("a differs",)))
    assert verdict.merge == ["b", "c"]
    assert verdict.leave_out[0].why == "does not hold the same tensors"
    two = decide(evidence("ab", {"ab": {"agree": False, "distance": None}}))
    assert two.sentence == "Ensemble a and b instead: they do not hold the same tensors."


def test_one_that_is_much_farther_than_usual() -> None:
    assert decide(evidence("abc", away("c", "abc", distance=0.2))).merge == ["a", "b"]
    # As far, but so is everybody; and beyond half of a right angle it is too far for anybody.
    pairs = {key: {"distance": 0.2} for key in ("ab", "ac", "bc")}
    apart = decide(evidence("abc", pairs))
    assert apart.code == 0
    assert "give --data" in notes(apart)
    assert decide(evidence("ab", {"ab": {"distance": 0.6}})).code == 2


def test_copies_count_once() -> None:
    pairs = {"ab": {"distance": 1e-9}}
    verdict = decide(evidence("abc", pairs))
    assert verdict.merge == ["a", "c"]
    assert verdict.leave_out[0].why == "the same weights as a"
    same = decide(evidence("ab", pairs))
    assert same.code == 0
    assert same.sentence == "Nothing to gain: a and b are the same weights; use any of them."


def test_almost_the_same_gains_little() -> None:
    assert "averaging gains little" in notes(decide(evidence("ab", {"ab": {"distance": 1e-3}})))
    assert "averaging gains little" not in notes(decide(evidence("ab")))


def test_one_that_scores_far_below_the_best() -> None:
    known = {"a": {"score": 0.9}, "b": {"score": 0.85}, "c": {"score": 0.4}}
    verdict = decide(evidence("abc", None, known))
    assert verdict.merge == ["a", "b"]
    assert verdict.leave_out[0].why == "scores 40.0 %, the best 90.0 %"
    alone = decide(evidence("ac", None, known))
    assert alone.sentence == "Use a alone and leave out c (scores 40.0 %, the best 90.0 %)."
    assert alone.code == 1
    strange = decide(evidence("abc", away("c", "abc", **STRANGERS), known))
    assert strange.leave_out[0].why == (
        "does not descend from the same initialisation; scores 40.0 %, the best 90.0 %"
    )


def test_scores_of_different_splits_are_not_compared() -> None:
    known = {"a": {"score": 0.9, "split": "x"}, "b": {"score": 0.4, "split": "y"}}
    verdict = decide(evidence("ab", None, known))
    assert verdict.code == 0
    assert "different splits" in notes(verdict)


def test_greedy_would_pick_one() -> None:
    ahead = {"a": {"score": 0.9}, "b": {"score": 0.82}, "c": {"score": 0.81}}
    assert "a greedy search may keep a only: it scores 90.0 % and the next one 82.0 %" in notes(
        decide(evidence("abc", None, ahead))
    )
    close = {"a": {"score": 0.9}, "b": {"score": 0.89}, "c": {"score": 0.88}}
    assert "greedy" not in notes(decide(evidence("abc", None, close)))
    best_is_strange = decide(evidence("abc", away("a", "abc", **STRANGERS), close))
    assert best_is_strange.merge == ["b", "c"]
    assert "a greedy search would keep a only: it scores best but can't be averaged" in notes(
        best_is_strange
    )


def test_what_is_broken_is_left_out() -> None:
    broken = {"b": {"broken": "conv.weight"}}
    nothing: dict[str, Any] = {"distance": None, "sigma": None, "power": None}
    verdict = decide(evidence("abc", away("b", "abc", **nothing), broken))
    assert verdict.merge == ["a", "c"]
    assert verdict.leave_out[0].why == "holds NaN or infinity in 'conv.weight'"


def test_many_to_leave_out_are_only_named() -> None:
    known = {name: {"score": 0.1} for name in "cdefghij"} | {
        "a": {"score": 0.9},
        "b": {"score": 0.9},
    }
    verdict = decide(evidence("abcdefghij", None, known))
    assert verdict.sentence.startswith(
        "Merge a and b, and leave out c, d, e, f, g, h and 2 more: they"
    )
    assert len(verdict.leave_out) == 8


def test_with_data_the_barrier_decides() -> None:
    near = measured(evidence("abc"), {"a": 0.1, "b": 0.1, "c": 0.1}, 0.3, ac=0.3, bc=0.3)
    verdict = decide(near, merged=lambda names: Point(loss=0.1, accuracy=0.96))
    assert verdict.merge == ["a", "b"]
    assert verdict.leave_out[0].why == "the loss rises by up to 0.30 on the way"
    assert "their average scores 96.0 %, they themselves 95.0 % to 95.0 %" in verdict.sentence
    # The other way about: what looks strange, but nothing rises between them.
    odd = measured(evidence("ab", {"ab": STRANGERS}), {"a": 0.1, "b": 0.1}, 0.1)
    assert decide(odd, merged=lambda names: Point(loss=0.1, accuracy=0.95)).code == 0


def test_without_anything_learnt_no_barrier_says_anything() -> None:
    land = measured(evidence("ab", {"ab": STRANGERS}), {"a": 0.69, "b": 0.68}, 0.69)
    assert decide(land, merged=lambda names: Point(loss=0.69, accuracy=0.5)).code == 2


def test_an_average_that_loses_what_each_two_keep() -> None:
    losses = {"a": 0.1, "b": 0.1, "c": 0.1}
    verdict = decide(
        measured(evidence("abc"), losses, 0.5), merged=lambda names: Point(loss=0.5, accuracy=0.6)
    )
    assert verdict.code == 2
    assert "though any two of them could be merged" in verdict.sentence


def test_uniform_collapses_as_measured() -> None:
    land = measured(evidence("abc"), {"a": 0.1, "b": 0.1, "c": 0.1}, 0.9, ac=0.5, bc=0.5)
    verdict = decide(land, merged=lambda names: Point(loss=0.1, accuracy=0.95))
    assert (
        "a uniform average of all 3 collapses here: it scores 55.0 %, the members 95.0 %"
        in notes(verdict)
    )


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"sigma": 12.0, "power": 90.0}, "certain"),
        ({"sigma": 7.0, "power": 90.0}, "likely"),
        ({"sigma": 4.0, "power": 90.0}, "can't tell"),
        ({"sigma": 1.0, "power": 90.0}, "no sign of it"),
        ({"sigma": 2.0, "power": 4.0}, "can't tell"),
        ({"sigma": None, "power": None}, "can't tell"),
        ({"sigma": 0.0, "power": 90.0, "same_init": True}, "certain"),
        ({"sigma": 80.0, "power": 90.0, "same_init": False}, "certain"),
    ],
)
def test_words_for_sureness(facts: dict[str, Any], word: str) -> None:
    assert origin(PairFacts(one="a", other="b", **facts)) == word


def test_live_statistics_and_integers_matter_to_who_merges() -> None:
    live = evidence("ab", {"ab": {"statistics": 0.1}}, integers=("steps",))
    assert "diwa.recalibrate_batchnorm" in notes(decide(live))
    assert "integers differ in 'steps'" in notes(decide(live))
    strangers = evidence("ab", {"ab": {**STRANGERS, "statistics": 0.1}})
    assert "recalibrate" not in notes(decide(strangers))


def test_learning_rates_far_apart_and_a_base_that_is_none() -> None:
    rates = {"a": {"hparams": {"lr": 1e-5}}, "b": {"hparams": {"lr": 1e-3}}}
    verdict = decide(evidence("ab", None, rates, base="init", base_sigma=0.1))
    assert "learning rates differ by a factor of 100" in notes(verdict)
    assert "init is not where these started" in notes(verdict)
    assert decide(evidence("ab", base="init", base_sigma=90.0)).notes == ()


def test_the_largest_group_is_found_among_many() -> None:
    # Three camps of 5, 4 and 3, shuffled together.
    names = "abcdefghijkl"
    camp = {name: (0 if n % 12 < 5 else 1 if n % 12 < 9 else 2) for n, name in enumerate(names)}
    pairs = {
        one + other: STRANGERS for one, other in combinations(names, 2) if camp[one] != camp[other]
    }
    found = sort_members(evidence(names, pairs))
    assert found.group == list("abcde")
    assert [one.name for one in found.strangers] == list("fghijkl")


def test_a_pair_is_found_whichever_way_it_is_asked_for() -> None:
    told = evidence("abcd", {"bd": {"distance": 0.123}})
    assert told.pair("d", "b").distance == told.pair("b", "d").distance == 0.123
    assert usual_distance(told) == 0.05
    assert obstacle(told, told.pair("a", "b"), 0.05) is None


def test_a_verdict_is_json_that_reads_back() -> None:
    verdict = decide(evidence("abc", away("c", "abc", **STRANGERS)))
    assert Verdict.from_json(verdict.to_json()) == verdict
