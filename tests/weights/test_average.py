"""The mean of weights against one that is worked out in fractions."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.errors import WeightsError
from diwa.weights import files
from diwa.weights.average import check_alike, mean
from diwa.weights.member import Member

Tensors = dict[str, torch.Tensor]


def written(folder: Path, sets: Sequence[Tensors], about: Sequence[Any] = ()) -> list[Member]:
    """A member m0, m1 and so on for each set of tensors."""
    members = []
    for number, tensors in enumerate(sets):
        path = folder / f"m{number}.safetensors"
        files.write(path, tensors, about[number] if about else {})
        members.append(Member.from_file(path))
    return members


def random_sets(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensors]:
    chance = torch.Generator().manual_seed(seed)
    return [
        {
            "layer.weight": torch.randn(6, 5, generator=chance, dtype=torch.float64).to(dtype),
            "layer.bias": (torch.randn(7, generator=chance, dtype=torch.float64) * 1e3).to(dtype),
            "scale": torch.randn((), generator=chance, dtype=torch.float64).to(dtype),
            "none": torch.zeros(0, 2, dtype=dtype),
        }
        for _ in range(count)
    ]


def in_fractions(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """The exact mean, rounded once to float64."""
    flat = [[Fraction(float(value)) for value in tensor.flatten()] for tensor in tensors]
    exact = [float(sum(column) / len(tensors)) for column in zip(*flat, strict=True)]
    return np.array(exact, dtype=np.float64).reshape(tensors[0].shape)


def bits(tensors: Tensors) -> dict[str, bytes]:
    return {
        name: tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if tensor.numel()
        else b""
        for name, tensor in ((name, torch.atleast_1d(tensor)) for name, tensor in tensors.items())
    }


class TestMean:
    @pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
    def test_float32(self, tmp_path: Path, count: int) -> None:
        sets = random_sets(count)
        averaged = dict(mean(written(tmp_path, sets)))
        assert averaged.keys() == sets[0].keys()
        for name, tensor in averaged.items():
            exact = in_fractions([one[name] for one in sets])
            # Rounded once, at the end: there is no nearer float32.
            assert tensor.dtype == torch.float32
            assert np.array_equal(tensor.numpy(), exact.astype(np.float32)), name

    @pytest.mark.parametrize("count", [2, 3, 20])
    def test_float64(self, tmp_path: Path, count: int) -> None:
        sets = random_sets(count, torch.float64)
        for name, tensor in mean(written(tmp_path, sets)):
            stacked = np.stack([one[name].numpy() for one in sets])
            assert tensor.dtype == torch.float64
            np.testing.assert_allclose(tensor.numpy(), stacked.mean(axis=0), rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
    )
    def test_short_floats_are_summed_wide(self, tmp_path: Path, dtype: torch.dtype) -> None:
        sets = [{"w": torch.linspace(-2, 3, 40).mul(1 + k).to(dtype)} for k in range(5)]
        tensor = dict(mean(written(tmp_path, sets)))["w"]
        exact = torch.from_numpy(in_fractions([one["w"].double() for one in sets]))
        assert tensor.dtype == dtype
        assert torch.equal(tensor.double(), exact.to(dtype).double())

    def test_a_sum_that_would_overflow(self, tmp_path: Path) -> None:
        sets = [{"w": torch.tensor([60000.0, -60000.0], dtype=torch.float16)}] * 30
        assert dict(mean(written(tmp_path, sets)))["w"].tolist() == [60000.0, -60000.0]

    def test_small_differences_beside_large_values(self, tmp_path: Path) -> None:
        """Summed in float32, three times 2**24 + 1 would lose the ones."""
        sets = [{"w": torch.tensor([value])} for value in (2.0**24, 2.0**24 + 2, 2.0**24 + 4)]
        assert dict(mean(written(tmp_path, sets)))["w"].item() == 2.0**24 + 2

    def test_one_member_is_itself(self, tmp_path: Path) -> None:
        (tensors,) = random_sets(1)
        tensors["count"] = torch.tensor([3, 4])
        assert bits(dict(mean(written(tmp_path, [tensors])))) == bits(tensors)

    def test_the_same_member_thrice_is_itself(self, tmp_path: Path) -> None:
        (tensors,) = random_sets(1)
        (member,) = written(tmp_path, [tensors])
        assert bits(dict(mean([member] * 3))) == bits(tensors)

    def test_by_name_and_one_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        members = written(tmp_path, random_sets(3))
        read: list[tuple[str, str]] = []
        plain = files.stream

        def counted(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in plain(path):
                read.append((path.stem, name))
                yield name, tensor

        monkeypatch.setattr(files, "stream", counted)
        names = []
        for number, (name, _) in enumerate(mean(members), start=1):
            names.append(name)
            assert len(read) == 3 * number
        assert names == sorted(names) == ["layer.bias", "layer.weight", "none", "scale"]
        assert sorted(read) == sorted((m.name, name) for m in members for name in names)

    def test_the_files_stay_as_they_are(self, tmp_path: Path) -> None:
        members = written(tmp_path, random_sets(3))
        before = [member.path.read_bytes() for member in members]
        for _, tensor in mean(members):
            tensor.fill_(0)
        assert [member.path.read_bytes() for member in members] == before


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.lists(
            st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
            min_size=3,
            max_size=3,
        ),
        min_size=2,
        max_size=6,
    ),
    data=st.data(),
)
def test_the_order_of_members_does_not_matter_to_the_last_bit(
    values: list[list[float]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sets = [{"w": torch.tensor(one, dtype=torch.float64)} for one in values]
        members = written(Path(folder), sets)
        shuffled = data.draw(st.permutations(members))
        one, other = dict(mean(members)), dict(mean(shuffled))
        assert bits(one) == bits(other)
        largest = max(abs(value) for row in values for value in row)
        np.testing.assert_allclose(
            one["w"].numpy(),
            in_fractions([tensors["w"] for tensors in sets]),
            rtol=0,
            atol=1e-15 * len(sets) * largest,
        )


def test_members_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    """Three runs whose files are all called best: the order must still not matter."""
    members = []
    for number, value in enumerate([1.0, 1e16, -1e16]):
        path = tmp_path / str(number) / "best.safetensors"
        files.write(path, {"w": torch.tensor([value], dtype=torch.float64)}, {})
        members.append(Member.from_file(path))
    one, two, three = members
    results = {
        bits(dict(mean(order)))["w"]
        for order in ([one, two, three], [three, two, one], [two, three, one], [two, one, three])
    }
    assert len(results) == 1


def test_members_of_several_types_average_the_same_in_any_order(tmp_path: Path) -> None:
    sets = [{"w": torch.tensor([1.0, 2.5]).to(t)} for t in (torch.float32, torch.bfloat16)]
    members = written(tmp_path, [*sets, {"w": torch.tensor([4.0, 0.25], dtype=torch.float64)}])
    results = [dict(mean(order))["w"] for order in (members, members[::-1])]
    assert results[0].dtype == results[1].dtype
    assert results[0].tolist() == results[1].tolist() == [2.0, 1.75]


class TestIntegers:
    @pytest.mark.parametrize(
        "value", [torch.tensor(5), torch.tensor([1, 2], dtype=torch.int32), torch.tensor([True])]
    )
    def test_that_agree_are_kept(self, tmp_path: Path, value: torch.Tensor) -> None:
        averaged = dict(mean(written(tmp_path, [{"n": value, "w": torch.ones(1)}] * 3)))
        assert averaged["n"].dtype == value.dtype
        assert torch.equal(averaged["n"], value)

    @pytest.mark.parametrize(
        ("one", "other"),
        [(torch.tensor(5), torch.tensor(6)), (torch.tensor([True]), torch.tensor([False]))],
    )
    def test_that_differ_are_refused(
        self, tmp_path: Path, one: torch.Tensor, other: torch.Tensor
    ) -> None:
        members = written(tmp_path, [{"n": one}, {"n": one}, {"n": other}])
        with pytest.raises(WeightsError, match="integers of 'n' differ") as caught:
            list(mean(members))
        assert str(members[2].path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_name_their_member(
    tmp_path: Path, value: float, place: int, dtype: torch.dtype
) -> None:
    sets = random_sets(3, dtype)
    sets[place]["layer.bias"][3] = value
    members = written(tmp_path, sets)
    with pytest.raises(WeightsError, match=r"'layer\.bias' holds NaN or infinity") as caught:
        list(mean(members))
    assert str(caught.value).startswith(f"{members[place].path}: ")


class TestAlike:
    @pytest.mark.parametrize("check", [check_alike, lambda members: list(mean(members))])
    @pytest.mark.parametrize(
        ("odd", "words"),
        [
            ({"a": torch.ones(2), "b": torch.ones(4)}, ["'b' is (4,), but (3,)"]),
            ({"a": torch.ones(2), "b": torch.ones(3, 1)}, ["'b' is (3, 1), but (3,)"]),
            ({"a": torch.ones(2)}, ["'b' is no such tensor, but (3,)"]),
            (
                {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(())},
                ["'c' is (), but none"],
            ),
            # The scalar is as many numbers as the vector of one: only its shape tells.
            ({"a": torch.ones(()), "b": torch.ones(4)}, ["'a' is (), but (2,)"]),
            ({"a": torch.ones(2), "B": torch.ones(3)}, ["'B' is (3,), but none"]),
        ],
    )
    @pytest.mark.parametrize("place", [1, 2])
    def test_the_one_that_differs_is_named(
        self,
        tmp_path: Path,
        check: Callable[[list[Member]], Any],
        odd: Tensors,
        words: list[str],
        place: int,
    ) -> None:
        plain = {"a": torch.ones(2), "b": torch.ones(3)}
        sets = [plain, plain, plain]
        sets[place] = odd
        members = written(tmp_path, sets)
        with pytest.raises(WeightsError) as caught:
            check(members)
        said = str(caught.value)
        assert said.startswith(f"{members[place].path}: ")
        assert str(members[0].path) in said
        assert "; average checkpoints of one architecture" in said
        assert "\n" not in said
        for word in words:
            assert word in said

    def test_alike(self, tmp_path: Path) -> None:
        check_alike(written(tmp_path, random_sets(3)))

    def test_nobody(self) -> None:
        with pytest.raises(WeightsError, match="no members"):
            list(mean([]))

    def test_classes_in_another_order_are_refused(self, tmp_path: Path) -> None:
        """Their heads have the same shape, and their mean would be nonsense."""
        told = [{"model": {"classes": names}} for names in (["a", "b"], ["a", "b"], ["b", "a"])]
        members = written(tmp_path, random_sets(3), told)
        with pytest.raises(WeightsError, match="another network or other classes") as caught:
            list(mean(members))
        assert str(caught.value).startswith(f"{members[2].path}: ")
        assert str(members[0].path) in str(caught.value)

    def test_a_member_that_does_not_say_is_taken(self, tmp_path: Path) -> None:
        told = [{}, {"model": {"classes": ["a", "b"]}}, {}]
        assert len(dict(mean(written(tmp_path, random_sets(3), told)))) == 4

    def test_those_that_say_are_compared_over_one_that_does_not(self, tmp_path: Path) -> None:
        told = [{}, {"model": {"classes": ["a", "b"]}}, {"model": {"classes": ["b", "a"]}}]
        with pytest.raises(WeightsError, match="another network"):
            check_alike(written(tmp_path, random_sets(3), told))
