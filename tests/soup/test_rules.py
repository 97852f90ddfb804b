"""Which tensors are merged, and where the others come from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diwa
from diwa.errors import DiwaError, SpecError, WeightsError
from diwa.soup.rules import Rules, check_pattern, matches
from diwa.weights.kinds import KINDS

Make = Callable[..., Path]


def merged(members: list[Path], **how: Any) -> dict[str, list]:
    return {name: array.tolist() for name, array in diwa.merge(members, **how).arrays()}


@pytest.fixture
def two(make_member: Make) -> list[Path]:
    held = [
        {"conv.weight": [1.0], "fc.weight": [10.0], "fc.bias": [100.0], "n": [1]},
        {"conv.weight": [3.0], "fc.weight": [30.0], "fc.bias": [300.0], "n": [2]},
    ]
    return [make_member(name, **one) for name, one in zip("ab", held, strict=True)]


# -- the rules themselves


@pytest.mark.parametrize(
    ("only", "skip", "averaged"),
    [
        ((), (), {"conv.weight", "fc.weight", "fc.bias"}),
        (("fc.*",), (), {"fc.weight", "fc.bias"}),
        ((), ("fc.*",), {"conv.weight"}),
        (("*.weight",), ("fc.*",), {"conv.weight"}),  # skip has the last word
        (("fc.*", "conv.*"), ("*.bias",), {"conv.weight", "fc.weight"}),
        (("FC.*",), (), set()),
        (("fc.????",), (), {"fc.bias"}),
        (("[!f]*",), (), {"conv.weight"}),
        (("weight",), (), set()),  # the whole name, not a part of it
    ],
)
def test_only_and_skip(only: tuple[str, ...], skip: tuple[str, ...], averaged: set[str]) -> None:
    rules = Rules(only=only, skip=skip)
    names = ("conv.weight", "fc.weight", "fc.bias")
    assert {name for name in names if rules.averaged(name)} == averaged


def test_the_kind_is_changed_of_floats_only() -> None:
    rules = Rules(dtype="bf16")
    assert rules.kind(KINDS["F32"]) == KINDS["BF16"]
    assert rules.kind(KINDS["I64"]) == KINDS["I64"]
    assert rules.kind(KINDS["BOOL"]) == KINDS["BOOL"]
    assert Rules().kind(KINDS["F16"]) == KINDS["F16"]


@pytest.mark.parametrize("dtype", ["float32", "FP16", "int8", "fp8"])
def test_a_kind_that_there_is_not(dtype: str) -> None:
    with pytest.raises(SpecError, match=rf"dtype '{dtype}'; choose one of fp8_e4m3, .*fp64"):
        Rules(dtype=dtype)


def test_a_pattern_that_stands_for_nothing() -> None:
    names = ["conv.weight", "fc.weight", "fc.bias", "n"]
    check_pattern("only", "fc.*", iter(names))
    with pytest.raises(SpecError) as caught:
        check_pattern("only", "head.*", iter(names))
    assert str(caught.value) == (
        "only 'head.*': matches none of the 4 tensors; names look like 'conv.weight', "
        "'fc.weight', 'fc.bias'; diwa show FILE lists them"
    )
    assert matches("fc.bias", ("head.*", "fc.*"))
    assert not matches("fc.bias", ())


# -- merging by them


def test_what_is_not_merged_is_the_firsts(two: list[Path]) -> None:
    expected = {"conv.weight": [2.0], "fc.weight": [10.0], "fc.bias": [100.0], "n": [1]}
    assert merged(two, skip="fc.*") == expected
    assert merged(two, skip=["fc.weight", "*.bias"]) == expected
    assert merged(two, only="conv.*") == expected
    assert merged(two, only=("conv.*", "fc.*"), skip=("fc.*",)) == expected
    assert merged(two[::-1], skip="fc.*")["fc.bias"] == [300.0]


@pytest.mark.parametrize("how", ["only", "skip"])
def test_every_pattern_must_stand_for_something(two: list[Path], how: str) -> None:
    with pytest.raises(SpecError, match=rf"^{how} 'heda\.\*': matches none of the 4 tensors; "):
        merged(two, **{how: ("fc.*", "heda.*")})


def test_a_tensor_is_taken_from_a_member(two: list[Path]) -> None:
    found = merged(two, take_from=[(two[1], "fc.*")])
    assert found == {"conv.weight": [2.0], "fc.weight": [30.0], "fc.bias": [300.0], "n": [1]}
    assert merged(two, take_from=[(two[1], "n")])["n"] == [2]


def test_a_tensor_is_taken_from_a_file_that_is_no_member(
    two: list[Path], make_member: Make
) -> None:
    other = make_member("other", **{"fc.bias": [7.0], "unrelated": [1.0]})
    found = merged(two, take_from=[(other, "fc.bias")])
    assert found == {"conv.weight": [2.0], "fc.weight": [20.0], "fc.bias": [7.0], "n": [1]}


def test_what_is_taken_wins_over_the_other_rules(two: list[Path]) -> None:
    for rules in ({"skip": "fc.*"}, {"only": "fc.*"}, {"only": "conv.*"}):
        assert merged(two, take_from=[(two[1], "fc.bias")], **rules)["fc.bias"] == [300.0]
    both = [(two[1], "fc.bias"), (two[0], "fc.*")]
    found = merged(two, take_from=both)
    assert (found["fc.bias"], found["fc.weight"]) == ([300.0], [10.0])  # the first that fits


def test_a_head_is_kept_from_one_member_whose_head_differs(make_member: Make) -> None:
    one = make_member("one", conv=[1.0], **{"fc.weight": [[1.0]] * 3, "fc.bias": [1.0] * 3})
    two = make_member("two", conv=[3.0], **{"fc.weight": [[2.0]] * 5, "fc.bias": [2.0] * 5})
    with pytest.raises(WeightsError, match=r"'fc\.bias' is F32 \(3,\) in one, F32 \(5,\) in two"):
        diwa.merge([one, two])
    soup = diwa.merge([one, two], take_from=[(two, "fc.*")])
    assert soup.infos["fc.weight"].shape == (5, 1)
    assert {name: array.tolist() for name, array in soup.arrays()} == {
        "conv": [2.0],
        "fc.weight": [[2.0]] * 5,
        "fc.bias": [2.0] * 5,
    }
    assert merged([one, two], skip="fc.*")["fc.bias"] == [1.0] * 3


def test_a_head_of_another_kind_of_number(make_member: Make) -> None:
    one = make_member("one", conv=[1.0], fc=[1.0])
    two = make_member("two", conv=[3.0], fc=torch.tensor([2.0], dtype=torch.bfloat16))
    soup = diwa.merge([one, two], take_from=[(two, "fc")])
    assert soup.infos["fc"].kind.code == "BF16"
    assert diwa.merge([one, two], take_from=[(two, "fc")], dtype="fp64").infos[
        "fc"
    ].kind.code == ("F64")  # fmt: skip


def test_a_head_that_only_some_members_have(make_member: Make) -> None:
    bare = make_member("bare", conv=[1.0])
    full = make_member("full", conv=[3.0], fc=[9.0])
    with pytest.raises(WeightsError, match=r"only full has 'fc'; .*--skip PATTERN"):
        diwa.merge([bare, full])
    assert merged([full, bare], skip="fc") == {"conv": [2.0], "fc": [9.0]}
    # What the error advises works whoever comes first.
    assert merged([bare, full], skip="fc") == {"conv": [2.0]}


def test_taking_what_the_file_has_only_in_part(make_member: Make) -> None:
    one = make_member("one", conv=[1.0], **{"fc.weight": [1.0], "fc.bias": [1.0]})
    two = make_member("two", conv=[3.0], **{"fc.weight": [2.0]})
    with pytest.raises(DiwaError, match=r"two\.safetensors.*'fc\.bias'") as caught:
        merged([one, one], take_from=[(two, "fc.*")])
    assert "\n" not in str(caught.value)


def test_taking_more_than_the_members_have(make_member: Make) -> None:
    """A head without its bias would be another head: all of it comes along, or it is refused."""
    one = make_member("one", conv=[1.0], **{"fc.weight": [1.0]})
    two = make_member("two", conv=[3.0], **{"fc.weight": [2.0], "fc.bias": [5.0]})
    try:
        found = merged([one, two], take_from=[(two, "fc.*")])
    except DiwaError as error:
        assert "fc.bias" in str(error)  # noqa: PT017 - either is right
    else:
        assert found == {"conv": [2.0], "fc.weight": [2.0], "fc.bias": [5.0]}


def test_taking_a_head_that_no_member_has(make_member: Make) -> None:
    bare = [make_member("a", conv=[1.0]), make_member("b", conv=[3.0])]
    full = make_member("full", conv=[9.0], **{"fc.weight": [5.0], "fc.bias": [6.0]})
    expected = {"conv": [2.0], "fc.bias": [6.0], "fc.weight": [5.0]}
    assert merged(bare, take_from=[(full, "fc.*")]) == expected


def test_taking_what_nobody_has(two: list[Path], make_member: Make) -> None:
    other = make_member("other", head=[1.0])
    with pytest.raises(SpecError, match=r"^take-from 'heda': matches none of the 4 tensors; "):
        diwa.merge(two, take_from=[(other, "heda")])
    with pytest.raises(SpecError, match=r"^take-from .*other.safetensors 'fc\.\*': matches none"):
        diwa.merge(two, take_from=[(other, "fc.*")])
    with pytest.raises(WeightsError, match=r"missing\.safetensors: no such file; "):
        diwa.merge(two, take_from=[(two[0].with_name("missing.safetensors"), "fc.*")])


def test_a_base_may_lack_what_is_not_merged_with_it(make_member: Make) -> None:
    members = [make_member("a", w=[1.0], head=[1.0]), make_member("b", w=[3.0], head=[5.0])]
    base = make_member("base", w=[0.0], old_head=[1.0, 2.0])
    soup = diwa.merge(members, method="interpolate", base=base, alpha=0.5)
    assert {name: array.tolist() for name, array in soup.arrays()} == {"w": [1.0], "head": [3.0]}
    assert soup.notes == ["not in the base, so averaged plainly: head"]
    # Nothing is said to be averaged that is not.
    assert diwa.merge(members, method="interpolate", base=base, skip="head").notes == []
    taken = [(members[1], "head")]
    assert diwa.merge(members, method="interpolate", base=base, take_from=taken).notes == []


@pytest.mark.parametrize("head", [[1.0, 2.0], [[1.0]], [1]])
def test_a_base_with_another_head(make_member: Make, head: list) -> None:
    members = [make_member("a", w=[1.0], head=[1.0]), make_member("b", w=[3.0], head=[5.0])]
    soup = diwa.merge(members, method="ties", base=make_member("base", w=[0.0], head=head))
    assert dict(soup.arrays())["head"].tolist() == [3.0]
    assert soup.notes == ["not in the base, so averaged plainly: head"]


def test_notes_on_integers_are_of_those_that_are_the_firsts(two: list[Path]) -> None:
    assert diwa.merge(two).notes == ["integers that differ are the first member's: n"]
    assert diwa.merge(two, take_from=[(two[1], "n")]).notes == []


def test_notes_on_kinds_that_differ(make_member: Make) -> None:
    one = make_member("one", w=torch.tensor([1.0]).half(), v=[1.0])
    two = make_member("two", w=[2.0], v=[1.0])
    assert diwa.merge([one, two]).notes == [
        "members hold F16, F32 in w; written as in the first, or pass --dtype"
    ]
    assert diwa.merge([one, two]).infos["w"].kind.code == "F16"
    assert diwa.merge([two, one]).infos["w"].kind.code == "F32"
    assert diwa.merge([one, two], dtype="fp32").notes == []


def test_other_weights_in_a_file_are_told(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.pt" for n in range(2)]
    for path in paths:
        held = {"w": torch.ones(2)}
        torch.save({"model": held, "model_ema": held, "optimizer": {"w": held}}, path)
    told = "also holds model_ema, which was not taken"
    assert diwa.merge(paths).notes == [f"{path}: {told}" for path in paths]


# -- tensors that share their numbers


@pytest.fixture
def tied(tmp_path: Path) -> list[Path]:
    paths = []
    for name, value in (("a", 1.0), ("b", 3.0)):
        shared = torch.full((2,), value)
        paths.append(tmp_path / f"{name}.pt")
        torch.save({"embed": shared, "head": shared, "w": torch.tensor([value])}, paths[-1])
    return paths


def test_tied_tensors_are_merged_once_and_stay_tied(tied: list[Path]) -> None:
    soup = diwa.merge(tied)
    found = dict(soup.arrays())
    assert found.keys() == {"embed", "head", "w"}
    assert found["embed"].tolist() == found["head"].tolist() == [2.0, 2.0]
    assert soup.about["tied"] == {"head": "embed"}
    assert soup.notes == []


@pytest.mark.parametrize("name", ["embed", "head"])
def test_a_rule_for_one_of_two_tied_tensors_is_kept(
    tied: list[Path], make_member: Make, name: str
) -> None:
    other = "head" if name == "embed" else "embed"
    every: list[dict[str, Any]] = [
        {"skip": name},
        {"only": [other, "w"]},
        {"take_from": [(tied[0], name)]},
    ]
    for rules in every:
        soup = diwa.merge(tied, **rules)
        found = dict(soup.arrays())
        assert found[name].tolist() == [1.0, 1.0], rules
        assert found[other].tolist() == [2.0, 2.0], rules
        assert "tied" not in soup.about
        assert soup.notes == [f"tied in {tied[0]}, but no longer: head and embed"]
    new = make_member("new", **{name: [9.0, 9.0, 9.0]})
    found = dict(diwa.merge(tied, take_from=[(new, name)]).arrays())
    assert found[name].tolist() == [9.0] * 3
    assert found[other].tolist() == [2.0] * 2


def test_tensors_that_are_tied_in_some_members_only(tied: list[Path], tmp_path: Path) -> None:
    apart = tmp_path / "c.pt"
    tensors = {"embed": torch.tensor([5.0, 5.0]), "head": torch.tensor([8.0, 8.0])}
    torch.save({**tensors, "w": torch.tensor([0.0])}, apart)
    for order in ([*tied, apart], [apart, *tied]):
        soup = diwa.merge(order)
        found = dict(soup.arrays())
        assert found["embed"].tolist() == [3.0, 3.0]
        assert found["head"].tolist() == [4.0, 4.0]
        assert "tied" not in soup.about


@pytest.mark.parametrize("kept", ["embed", "head"])
def test_a_member_that_stores_tied_tensors_once(
    tied: list[Path], make_member: Make, kept: str
) -> None:
    """As transformers writes them: without a word on the other one."""
    once = make_member("once", w=[5.0], **{kept: [5.0, 5.0]})
    for order in ([*tied, once], [once, *tied], [tied[0], once, tied[1]]):
        found = {name: array.tolist() for name, array in diwa.merge(order).arrays()}
        assert found["w"] == [3.0]
        assert found[kept] == [3.0, 3.0]
        assert found.get("head", [3.0, 3.0]) == found.get("embed", [3.0, 3.0]) == [3.0, 3.0]


def test_a_rule_for_a_tensor_that_the_first_left_out_as_a_copy(
    tied: list[Path], make_member: Make
) -> None:
    once = make_member("once", w=[5.0], embed=[5.0, 5.0])
    soup = diwa.merge([once, *tied], skip="head")
    found = {name: array.tolist() for name, array in soup.arrays()}
    assert found == {"embed": [3.0, 3.0], "w": [3.0], "head": [5.0, 5.0]}
    assert "tied" not in soup.about
    assert merged([once, *tied], skip=["head", "embed"]) == {"embed": [5.0, 5.0], "w": [3.0]}


@pytest.mark.parametrize("kept", ["embed", "head"])
def test_draws_for_tied_tensors_do_not_depend_on_who_comes_first(
    tied: list[Path], make_member: Make, kept: str
) -> None:
    once = make_member("once", w=[5.0], **{kept: [5.0, 5.0]})
    base = make_member("base", w=[0.0], embed=[0.0, 0.0], head=[7.0, 7.0])
    for seed in range(5):
        how = {"method": "dare", "base": base, "seed": seed}
        every = [merged(list(order), **how)[kept] for order in permutations([*tied, once])]
        assert every == every[:1] * 6


@pytest.mark.parametrize("kept", ["embed", "head"])
def test_statistics_of_one_of_two_tied_tensors(
    tied: list[Path], make_member: Make, kept: str
) -> None:
    files = [make_member(f"f{n}", w=[1.0], **{kept: [1.0, n * 2.0 + 1]}) for n in range(2)]
    soup = diwa.merge(tied, method="fisher", statistics_files=[str(path) for path in files])
    found = dict(soup.arrays())
    assert found["embed"].tolist() == found["head"].tolist() == [2.0, 2.5]
    assert soup.about["tied"] == {"head": "embed"}


def test_tied_tensors_that_are_taken_stay_tied(tied: list[Path]) -> None:
    soup = diwa.merge(tied, take_from=[(tied[1], "[eh]*")])
    found = dict(soup.arrays())
    assert found["embed"].tolist() == found["head"].tolist() == [3.0, 3.0]
    assert soup.about["tied"] == {"head": "embed"}


def test_a_base_that_stores_tied_tensors_once(tied: list[Path], make_member: Make) -> None:
    for kept in ("embed", "head"):
        base = make_member("base", w=[0.0], **{kept: [0.0, 0.0]})
        soup = diwa.merge(tied, method="interpolate", base=base, alpha=0.5)
        found = {name: array.tolist() for name, array in soup.arrays()}
        assert found == {"embed": [1.0, 1.0], "head": [1.0, 1.0], "w": [1.0]}
        assert soup.notes == []


def test_rules_are_said_in_the_manifest(two: list[Path]) -> None:
    said = diwa.merge(two, only=["conv.*", "fc.*"], skip="fc.weight", dtype="fp16",
                      take_from=[(two[1], "fc.bias")]).about["soup"]  # fmt: skip
    assert (list(said["only"]), list(said["skip"])) == (["conv.*", "fc.*"], ["fc.weight"])
    assert said["dtype"] == "fp16"
    assert said["taken"] == [{"name": "b", "pattern": "fc.bias"}]
    plain = diwa.merge(two).about["soup"]
    assert not {"only", "skip", "dtype", "taken"} & plain.keys()
    assert np.isclose([one["coefficient"] for one in plain["members"]], 0.5).all()
