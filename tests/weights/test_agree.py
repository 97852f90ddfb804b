"""Which member differs from the others, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from diwa.errors import WeightsError
from diwa.weights.agree import disagreements, holdings, require_agreement
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import KINDS
from diwa.weights.source import Source

Shape = tuple[int, ...]


class Told(Source):
    """Names, shapes and kinds without numbers."""

    def __init__(self, tensors: Mapping[str, TensorInfo], aliases: Mapping[str, str]) -> None:
        super().__init__(Path("told"))
        self._tensors, self._aliases = tensors, aliases

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    @property
    def aliases(self) -> Mapping[str, str]:
        return self._aliases

    @property
    def metadata(self) -> Mapping[str, str]:
        return {}

    @property
    def files(self) -> Mapping[str, Path]:
        return {}

    def array(self, name: str) -> NDArray:
        raise AssertionError(f"{name} was read")


@dataclass(frozen=True)
class One:
    name: str
    source: Source


def one(name: str, tied: Mapping[str, str] | None = None, /, **tensors: str) -> One:
    """A member from texts like "F32 3x4"; underscores in names stand for dots."""
    infos = {}
    for tensor, text in tensors.items():
        kind, _, sides = text.partition(" ")
        shape = tuple(int(side) for side in sides.split("x")) if sides else ()
        infos[tensor.replace("_", ".")] = TensorInfo(KINDS[kind], shape)
    return One(name, Told(infos, tied or {}))


def message(members: Sequence[One]) -> str:
    with pytest.raises(WeightsError) as raised:
        require_agreement(members)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_members_that_agree() -> None:
    members = [one(name, w="F32 3x4", b="F32 4") for name in "abc"]
    assert disagreements(members) == []
    require_agreement(members)


def test_float_widths_may_differ_but_not_families() -> None:
    members = [one("a", w="F32 3"), one("b", w="BF16 3"), one("c", w="F64 3")]
    assert disagreements(members) == []
    with_integers = [*members, one("d", w="I32 3")]
    (differ,) = disagreements(with_integers)
    assert differ.differ == ("d",)
    assert "d differs from the other 3: 'w' is I32 (3,), not F32 (3,)" in message(with_integers)
    assert disagreements([one("a", n="I64"), one("b", n="I32")]) == []
    assert disagreements([one("a", n="U8"), one("b", n="BOOL")]) != []


def test_all_that_differs_is_told_at_once_by_who_differs() -> None:
    usual = {"w": "F32 3x4", "b": "F32 4", "n": "I64"}
    members = [
        one("a", None, **usual),
        one("b", w="F32 3x5", b="F32 5", n="I64"),
        one("c", None, **usual),
        one("d", w="F32 3x4", extra_w="F32 1"),
    ]
    text = message(members)
    assert text.startswith(
        "b differs from the other 3: 'b' is F32 (5,), not F32 (4,), "
        "'w' is F32 (3, 5), not F32 (3, 4); "
        "d differs from the other 3: lacking 'b', 'n'; with 'extra.w' besides; "
    )
    assert text.endswith(
        "leave it out, or pass --skip PATTERN for tensors that are not to be averaged"
    )


def test_members_that_differ_in_the_same_way_share_a_phrase() -> None:
    usual = [one(name, w="F32 3", head="F32 7") for name in "abc"]
    text = message([*usual, one("d", w="F32 3", head="F32 9"), one("e", w="F32 3", head="F32 9")])
    assert text.startswith("d and e differ from the other 3: 'head' is F32 (9,), not F32 (7,); ")


def test_of_two_members_neither_is_the_odd_one() -> None:
    text = message([one("a", w="F32 3", x="F32 1"), one("b", w="F32 4", y="F32 1", z="F32 1")])
    assert text.startswith(
        "a and b disagree: only a has 'x'; only b has 'y', 'z'; "
        "'w' is F32 (3,) in a, F32 (4,) in b; leave one of them out"
    )


def test_two_against_two() -> None:
    members = [one("a", w="F32 3"), one("b", w="F32 4"), one("c", w="F32 4"), one("d", w="F32 3")]
    assert disagreements(members)[0].differ == ()
    assert "the 4 members disagree: 'w' is F32 (3,) in a and d, F32 (4,) in b and c" in message(
        members
    )


def test_a_prefix_is_told_in_a_phrase() -> None:
    """As wrappers leave one: to list hundreds of names twice would hide what is wrong."""
    plain = {"w": "F32 3", "b": "F32 4", "n": "I64"}
    more = {f"backbone_{name}": look for name, look in plain.items()}
    said = message([one("a", **plain), one("b", **more)])
    assert said.startswith("a and b disagree: only b has 'backbone.' before 3 names; ")
    said = message([one("b", **more), one("a", **plain)])
    assert said.startswith("b and a disagree: only b has 'backbone.' before 3 names; ")
    said = message([one("a", **plain), one("b", **more), one("c", **plain)])
    assert said.startswith("b differs from the other 2: with 'backbone.' before 3 names; ")
    said = message([one("a", **more), one("b", **plain), one("c", **more)])
    assert said.startswith("b differs from the other 2: without 'backbone.' before 3 names; ")
    odd = {**more, "x": "F32 1"}
    said = message([one("a", **plain), one("b", **odd)])
    assert "only b has 'backbone.b', 'backbone.n', 'backbone.w', 'x'" in said


def test_what_is_not_averaged_need_not_agree() -> None:
    members = [one("a", w="F32 3", head="F32 7"), one("b", w="F32 3", head="F32 9")]
    require_agreement(members, averaged=lambda name: name != "head")
    with pytest.raises(WeightsError, match="'head'"):
        require_agreement(members, averaged=lambda name: name != "w")


def test_many_names_are_counted() -> None:
    many = {f"t{number:02}": "F32 1" for number in range(51)}
    text = message([one("a", None, **many), one("b", None, **many), one("c", t00="F32 1")])
    assert "'t01', " in text
    assert "'t20' and 30 more; " in text
    assert "'t21'" not in text


def test_a_tied_tensor_is_there_under_its_other_name() -> None:
    told = one("a", {"head": "embed"}, embed="F32 9x4")
    stored_twice = one("b", {"head": "embed"}, embed="F32 9x4", head="F32 9x4")
    other_way = one("c", {"embed": "head"}, head="F32 9x4")
    silent = one("d", embed="F32 9x4")
    members = [told, stored_twice, other_way, silent]
    assert disagreements(members) == []
    assert holdings([member.source for member in members]) == [
        {"embed": "embed", "head": "embed"},
        {"embed": "embed", "head": "head"},
        {"head": "head", "embed": "head"},
        {"embed": "embed", "head": "embed"},
    ]
    lacks_both = one("e", other="F32 1")
    assert {d.tensor for d in disagreements([*members, lacks_both])} == {"embed", "head", "other"}


def test_a_tie_of_another_shape_is_no_excuse() -> None:
    members = [
        one("a", {"head": "embed"}, embed="F32 9x4", head="F32 9x4"),
        one("b", embed="F32 8x4"),
    ]
    assert {differ.tensor for differ in disagreements(members)} == {"embed", "head"}


LOOKS = st.sampled_from(["", "F32 1", "F16 1", "F32 2", "I64 1"])


@given(st.lists(st.tuples(LOOKS, LOOKS, LOOKS), min_size=2, max_size=6), st.randoms())
def test_against_counting_by_hand(rows: list[tuple[str, str, str]], chance) -> None:
    names = "xyz"
    members = [
        one(f"m{n}", None, **{k: look for k, look in zip(names, row, strict=True) if look})
        for n, row in enumerate(rows)
    ]
    expected = {}
    for place, tensor in enumerate(names):
        looks = [row[place].replace("F16", "F32") for row in rows]
        if len(set(looks)) > 1:
            top = sorted((looks.count(look), look) for look in set(looks))
            usual = top[-1][1] if top[-1][0] > top[-2][0] else None
            expected[tensor] = {
                f"m{n}" for n, look in enumerate(looks) if usual is not None and look != usual
            }
    assert {d.tensor: set(d.differ) for d in disagreements(members)} == expected
    chance.shuffle(members)
    assert {d.tensor: set(d.differ) for d in disagreements(members)} == expected
    if expected:
        said = message(members)
        assert all(repr(tensor) in said for tensor in expected)
