"""Members: what a file says of itself, and nothing made up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diwa.errors import WeightsError
from diwa.weights.member import Member


def test_says_what_its_file_says(make_member: Callable[..., Path]) -> None:
    about = {"score": 0.75, "split": "s1", "init": "i1", "model": {"backbone": "b"}, "step": 3}
    path = make_member("run-1", about, w=[1.0, 2.0])
    member = Member.from_file(path)
    assert (member.name, member.path) == ("run-1", path)
    assert (member.score, member.split, member.init) == (0.75, "s1", "i1")
    assert member.about == about


def test_takes_a_path_as_text(make_member: Callable[..., Path]) -> None:
    path = make_member("run-1", w=[1.0])
    member = Member.from_file(str(path))
    assert (member.name, member.path) == ("run-1", path)


def test_knows_nothing_of_a_file_that_says_nothing(make_member: Callable[..., Path]) -> None:
    member = Member.from_file(make_member("run-1", w=[1.0]))
    assert (member.score, member.split, member.init, member.about) == (None, None, None, {})


@pytest.mark.parametrize("score", [0, 1, 0.5, -2.0, None])
def test_scores_it_takes(make_member: Callable[..., Path], score: float | None) -> None:
    assert Member.from_file(make_member("m", {"score": score}, w=[1.0])).score == score


@pytest.mark.parametrize("score", ["0.5", True, [0.5], {"in": 0.5}])
def test_scores_it_refuses(make_member: Callable[..., Path], score: Any) -> None:
    path = make_member("m", {"score": score}, w=[1.0])
    with pytest.raises(WeightsError, match=r"its score is .*, not a number") as caught:
        Member.from_file(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("what", ["init", "split"])
def test_digests_it_refuses(make_member: Callable[..., Path], what: str) -> None:
    path = make_member("m", {what: [1]}, w=[1.0])
    with pytest.raises(WeightsError, match=rf"its {what} is \[1\], not a digest"):
        Member.from_file(path)


def test_gives_its_tensors_by_name_and_anew_each_time(make_member: Callable[..., Path]) -> None:
    member = Member.from_file(make_member("m", b=[1.0], a=[[2, 3]], c=[True]))
    for _ in range(2):
        held = list(member.tensors())
        assert [name for name, _ in held] == ["a", "b", "c"]
        assert [tensor.tolist() for _, tensor in held] == [[[2, 3]], [1.0], [True]]
    dict(member.tensors())["b"].fill_(9.0)
    assert torch.equal(dict(member.tensors())["b"], torch.tensor([1.0]))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        Member.from_file(tmp_path / "missing.safetensors")


def test_cannot_be_changed(make_member: Callable[..., Path]) -> None:
    member = Member.from_file(make_member("m", w=[1.0]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        member.score = 1.0  # pyright: ignore[reportAttributeAccessIssue]
