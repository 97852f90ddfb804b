"""The uniform soup: everyone, equally."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diwa.errors import DiwaError, WeightsError
from diwa.soup.uniform import uniform
from diwa.weights.member import Member

Make = Callable[..., Path]


def test_averages_everyone_in_the_order_given(make_member: Make) -> None:
    values = {"b": [[1.0, 2.0]], "a": [[4.0, 0.5]], "c": [[1.0, 0.5]]}
    members = [Member.from_file(make_member(name, w=value)) for name, value in values.items()]
    soup = uniform(members)
    assert soup.method == "uniform"
    assert soup.members == tuple(members)
    assert soup.trace == ()
    assert {name: tensor.tolist() for name, tensor in soup.tensors()} == {"w": [[2.0, 1.0]]}


def test_needs_no_scores_and_no_common_split(make_member: Make) -> None:
    told = [{"score": 0.5, "split": "one"}, {"split": "two"}, {}]
    paths = [make_member(f"m{n}", about, w=[float(n)]) for n, about in enumerate(told)]
    soup = uniform([Member.from_file(path) for path in paths])
    assert dict(soup.tensors())["w"].tolist() == [1.0]


def test_counts_a_member_as_often_as_it_is_given(make_member: Make) -> None:
    one = Member.from_file(make_member("one", w=[0.0]))
    two = Member.from_file(make_member("two", w=[3.0]))
    assert dict(uniform([one, two, two]).tensors())["w"].tolist() == [2.0]


def test_keeps_its_members_when_the_list_changes(make_member: Make) -> None:
    members = [Member.from_file(make_member("one", w=[1.0]))]
    soup = uniform(members)
    members.clear()
    assert len(soup.members) == 1


def test_nobody() -> None:
    with pytest.raises(DiwaError, match="no members to average; finish at least one run"):
        uniform([])


def test_members_that_differ_are_refused_before_anything_is_averaged(make_member: Make) -> None:
    members = [
        Member.from_file(make_member("one", w=[1.0])),
        Member.from_file(make_member("two", w=[1.0, 2.0])),
    ]
    with pytest.raises(WeightsError, match=r"'w' is F32 \(1,\) in one, F32 \(2,\) in two"):
        uniform(members)
