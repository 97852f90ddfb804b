"""The restricted soup against one that averages from scratch for every candidate."""

from __future__ import annotations

import operator
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.errors import DiwaError, WeightsError
from diwa.soup.greedy import Score, greedy
from diwa.soup.soup import Tried
from diwa.weights import files
from diwa.weights.member import Member
from diwa.weights.source import Source

Make = Callable[..., Path]
Rule = Literal[">=", ">"]
RULES: tuple[Rule, ...] = (">=", ">")


def written(
    folder: Path, values: Sequence[Sequence[float]], scores: Sequence[float]
) -> list[Member]:
    """Members m0, m1 and so on with one vector, in two tensors."""
    members = []
    for number, (value, score) in enumerate(zip(values, scores, strict=True)):
        path = folder / f"m{number}.safetensors"
        tensors = {
            "first": torch.tensor(value[:2], dtype=torch.float32),
            "second": torch.tensor([value[2:]], dtype=torch.float32),
            "count": torch.tensor(4),
        }
        files.write(path, tensors, {"score": score, "split": "s"})
        members.append(Member.from_file(path))
    return members


def nearness(target: Sequence[float], step: float) -> Score:
    """A score in steps, so that ties happen: how near the weights are to a target."""

    def score(weights: Mapping[str, torch.Tensor]) -> float:
        vector = np.concatenate([weights["first"].numpy(), weights["second"].numpy()[0]])
        distance = np.abs(vector.astype(np.float64) - np.array(target)).sum()
        return -round(float(distance) / step) * step

    return score


def naive(members: Sequence[Member], score: Score, rule: Rule) -> tuple[list[str], list[Tried]]:
    """The same search as one would write it down, reading and averaging everything anew."""
    better = operator.ge if rule == ">=" else operator.gt
    left = list(members)
    kept: list[Member] = []
    best, trace = 0.0, []
    while left:
        top = max(one.score for one in left if one.score is not None)
        member = min((one for one in left if one.score == top), key=lambda one: one.name)
        left.remove(member)
        vectors = [files.read(one.path) for one in [*kept, member]]
        average = {
            name: torch.from_numpy(
                np.asarray(np.mean([v[name].numpy().astype(np.float64) for v in vectors], axis=0))
            )
            for name in ("first", "second")
        }
        value = score(average)
        joins = not kept or better(value, best)
        trace.append(Tried(member.name, value, joins))
        if joins:
            kept.append(member)
            best = value
    return [member.name for member in kept], trace


# Eighths are summed without rounding, so the naive average is the same to the last bit.
eighths = st.integers(-16, 16).map(lambda eighth: eighth / 8)
vectors = st.lists(eighths, min_size=4, max_size=4)


@settings(max_examples=120, deadline=None)
@given(
    values=st.lists(vectors, min_size=1, max_size=7),
    target=vectors,
    step=st.sampled_from([0.125, 1.0, 4.0]),
    rule=st.sampled_from(RULES),
    data=st.data(),
)
def test_chooses_as_the_naive_search_does(
    values: list[list[float]], target: list[float], step: float, rule: Rule, data: st.DataObject
) -> None:
    scores = data.draw(
        st.lists(
            st.sampled_from([-1.0, 0.0, 0.5, 0.75, 1.0]),
            min_size=len(values),
            max_size=len(values),
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        members = written(Path(folder), values, scores)
        score = nearness(target, step)
        kept, trace = naive(members, score, rule)
        soup = greedy(data.draw(st.permutations(members)), score=score, rule=rule)
        assert soup.method == "restricted"
        assert [member.name for member in soup.members] == kept
        assert list(soup.trace) == trace
        numbers = [int(name[1:]) for name in kept]
        averaged = dict(soup.tensors())
        expected = np.mean([values[number] for number in numbers], axis=0).astype(np.float32)
        assert averaged["first"].tolist() == expected[:2].tolist()
        assert averaged["second"].tolist() == [expected[2:].tolist()]
        assert averaged["count"].item() == 4


def scored(make_member: Make, **values: tuple[float, float]) -> list[Member]:
    """Members by name, each with its weight and its own score."""
    return [
        Member.from_file(make_member(name, {"score": score, "split": "s"}, w=[weight]))
        for name, (weight, score) in values.items()
    ]


def test_a_member_that_changes_nothing_joins_unless_the_rule_is_strict(make_member: Make) -> None:
    members = scored(make_member, a=(1.0, 0.9), b=(3.0, 0.8), c=(2.0, 0.7))
    flat = [0.5, 0.5, 0.5]
    for rule, kept in zip(RULES, (["a", "b", "c"], ["a"]), strict=True):
        results = iter(flat)
        soup = greedy(members, score=lambda _, results=results: next(results), rule=rule)
        assert [member.name for member in soup.members] == kept
        assert [tried.kept for tried in soup.trace] == [name in kept for name in "abc"]
    default = iter(flat)
    assert len(greedy(members, score=lambda _: next(default)).members) == 3


def test_compares_with_the_best_so_far_and_not_with_the_last(make_member: Make) -> None:
    members = scored(make_member, a=(1.0, 0.9), b=(3.0, 0.8), c=(2.0, 0.7), d=(0.0, 0.6))
    results = iter([0.6, 0.4, 0.5, 0.7])
    soup = greedy(members, score=lambda _: next(results))
    assert [(tried.member, tried.score, tried.kept) for tried in soup.trace] == [
        ("a", 0.6, True),
        ("b", 0.4, False),
        ("c", 0.5, False),
        ("d", 0.7, True),
    ]
    assert dict(soup.tensors())["w"].item() == 0.5


@pytest.mark.parametrize("first", [0.0, -5.0, float("-inf")])
def test_the_best_member_is_always_in(make_member: Make, first: float) -> None:
    members = scored(make_member, a=(1.0, 0.9))
    assert [m.name for m in greedy(members, score=lambda _: first, rule=">").members] == ["a"]


def test_ranks_by_score_then_name_then_path(tmp_path: Path) -> None:
    members = []
    for place, score in (("z", 0.5), ("a", 0.5), ("m", 0.0), ("k", -1.0), ("q", 0.75)):
        path = tmp_path / place / "best.safetensors"
        files.write(path, {"w": torch.zeros(1)}, {"score": score})
        members.append(Member.from_file(path))
    orders = {
        tuple(m.path.parent.name for m in greedy(order, score=lambda _: 1.0).members)
        for order in (members, members[::-1], [*members[2:], *members[:2]])
    }
    assert orders == {("q", "a", "z", "m", "k")}


def test_reads_each_member_once(make_member: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    members = scored(make_member, **{f"m{n}": (float(n), n / 10) for n in range(6)})
    opened: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    plain = files.stream

    def counted(source: Source) -> Iterator[tuple[str, torch.Tensor]]:
        opened[source.path.stem] += 1
        for name, tensor in plain(source):
            tensors[source.path.stem] += 1
            yield name, tensor

    monkeypatch.setattr(files, "stream", counted)
    results = iter([0.5, 0.4, 0.6, 0.3, 0.7, 0.7])
    soup = greedy(members, score=lambda _: next(results))
    assert len(soup.members) == 4
    assert opened == tensors == Counter({f"m{n}": 1 for n in range(6)})


def test_hands_over_whole_sets_of_weights(make_member: Make) -> None:
    paths = [
        make_member(name, {"score": score}, w=torch.tensor([value]).bfloat16(), n=[3, 4])
        for name, value, score in (("a", 1.0, 0.9), ("b", 2.0, 0.8))
    ]
    seen: list[dict[str, Any]] = []

    def score(weights: Mapping[str, torch.Tensor]) -> float:
        seen.append({name: tensor.tolist() for name, tensor in weights.items()})
        assert weights["w"].dtype == torch.float64
        return 1.0

    greedy([Member.from_file(path) for path in paths], score=score)
    assert seen == [{"w": [1.0], "n": [3, 4]}, {"w": [1.5], "n": [3, 4]}]


def test_a_score_that_scribbles_on_the_weights_does_no_harm(make_member: Make) -> None:
    members = scored(make_member, a=(1.0, 0.9), b=(2.0, 0.8), c=(6.0, 0.7))
    seen: list[float] = []

    def score(weights: Mapping[str, torch.Tensor]) -> float:
        seen.append(weights["w"].item())
        weights["w"].fill_(99.0)
        return 1.0

    greedy(members, score=score)
    assert seen == [1.0, 1.5, 3.0]


class TestRefuses:
    """Each of these before anything is scored, which may take hours."""

    @staticmethod
    def never(_: object) -> float:
        raise AssertionError("nothing is to be scored")

    def test_nobody(self) -> None:
        with pytest.raises(DiwaError, match="no members to choose from; finish"):
            greedy([], score=self.never)

    @pytest.mark.parametrize("place", [0, 1, 2])
    @pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
    def test_a_member_without_a_score(
        self, make_member: Make, place: int, score: float | None
    ) -> None:
        told: list[dict[str, Any]] = [{"score": 0.5}, {"score": 0.5}, {"score": 0.5}]
        told[place] = {} if score is None else {"score": score}
        paths = [make_member(f"m{n}", about, w=[1.0]) for n, about in enumerate(told)]
        with pytest.raises(DiwaError, match="no validation score") as caught:
            greedy([Member.from_file(path) for path in paths], score=self.never)
        assert str(caught.value).startswith(f"{paths[place]}: ")
        assert "; use the uniform average" in str(caught.value)

    @pytest.mark.parametrize("place", [1, 2])
    @pytest.mark.parametrize("split", ["other", None])
    def test_members_of_several_splits(
        self, make_member: Make, place: int, split: str | None
    ) -> None:
        """The dagger: no validation split is unseen by all of them."""
        told: list[dict[str, Any]] = [{"score": 0.5, "split": "s"} for _ in range(3)]
        told[place]["split"] = split
        paths = [make_member(f"m{n}", about, w=[1.0]) for n, about in enumerate(told)]
        with pytest.raises(DiwaError, match="another split") as caught:
            greedy([Member.from_file(path) for path in paths], score=self.never)
        said = str(caught.value)
        assert said.startswith(f"{paths[place]}: ")
        assert str(paths[0]) in said
        assert "unseen by all" in said
        assert "\n" not in said

    @pytest.mark.parametrize("rule", ["=>", "", "<", None])
    def test_a_rule_that_is_none(self, make_member: Make, rule: Any) -> None:
        with pytest.raises(DiwaError, match="choose >= or >"):
            greedy(scored(make_member, a=(1.0, 0.5)), score=self.never, rule=rule)

    def test_members_of_other_shapes(self, make_member: Make) -> None:
        paths = [make_member(f"m{n}", {"score": 0.5}, w=[1.0] * (n + 1)) for n in range(2)]
        with pytest.raises(WeightsError, match=r"'w' is F32 \(1,\) in m0, F32 \(2,\) in m1"):
            greedy([Member.from_file(path) for path in paths], score=self.never)


def test_integers_that_differ_are_the_best_member_s_and_reported(make_member: Make) -> None:
    paths = [make_member(f"m{n}", {"score": 1 - n / 4}, w=[1.0], n=[n // 2]) for n in range(4)]
    seen: list[list[int]] = []
    soup = greedy(
        [Member.from_file(path) for path in paths],
        score=lambda weights: seen.append(weights["n"].tolist()) or 1.0,
    )
    assert seen == [[0]] * 4
    assert dict(soup.tensors())["n"].tolist() == [0]
    assert soup.notes == ["integers that differ are the first member's: n"]
