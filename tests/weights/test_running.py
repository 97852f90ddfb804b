"""A mean that grows: exact, and the same in whatever order and grouping its parts come."""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
import tempfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import diwa
from diwa.errors import StoreError, WeightsError
from diwa.weights.kinds import KINDS
from diwa.weights.running import RunningMean

BF16 = KINDS["BF16"].numpy()


def f32(values: Sequence[float]) -> NDArray:
    return np.array(values, np.float32)


def i64(values: Sequence[int]) -> NDArray:
    return np.array(values, np.int64)


def mean_of(sets: Sequence[dict[str, Any]]) -> RunningMean:
    mean = RunningMean()
    for one in sets:
        mean.add(one)
    return mean


def held(mean: RunningMean) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {n: (str(a.dtype), a.shape, a.tobytes()) for n, a in mean.result().items()}


# -- what it is for


def test_the_mean() -> None:
    mean = RunningMean()
    for value in (1.0, 2.0, 6.0):
        mean.add({"w": np.array([value, -value], np.float32), "b": np.float64(value)})
    found = mean.result()
    assert mean.count == 3
    assert found["w"].tolist() == [3.0, -3.0]
    assert found["w"].dtype == np.float32
    assert found["b"] == 3.0
    assert found["b"].dtype == np.float64


def test_is_a_public_name() -> None:
    assert diwa.RunningMean is RunningMean


def test_machines_average_apart_and_join(tmp_path: Path) -> None:
    sets = [{"w": np.array([n, 2.0**n], np.float32)} for n in range(7)]
    here, there = mean_of(sets[:3]), mean_of(sets[3:])
    sent = there.save(tmp_path / "new" / "there.safetensors")
    assert sent == tmp_path / "new" / "there.safetensors"
    here.merge(RunningMean.load(str(sent)))
    assert here.count == 7
    assert held(here) == held(mean_of(sets))
    # Whom one took from is left as it was.
    assert there.count == 4
    assert held(there) == held(mean_of(sets[3:]))


def test_goes_on_after_it_was_asked() -> None:
    mean = mean_of([{"w": np.array([2.0], np.float32)}])
    mean.result()["w"][0] = 99.0
    assert mean.result()["w"].tolist() == [2.0]
    mean.add({"w": np.array([4.0], np.float32)})
    assert mean.result()["w"].tolist() == [3.0]


def test_keeps_nothing_of_what_it_was_given() -> None:
    given = {"w": np.array([1.0], np.float64), "n": np.array([1], np.int64)}
    mean = mean_of([given])
    given["w"][0], given["n"][0] = 9.0, 9
    assert {n: a.tolist() for n, a in mean.result().items()} == {"w": [1.0], "n": [1]}
    other = RunningMean()
    other.merge(mean)
    other.add({"w": np.array([3.0], np.float64), "n": np.array([3], np.int64)})
    assert {n: a.tolist() for n, a in mean.result().items()} == {"w": [1.0], "n": [1]}
    assert {n: a.tolist() for n, a in other.result().items()} == {"w": [2.0], "n": [1]}


def test_takes_torchs_tensors_and_pairs() -> None:
    one = torch.nn.Linear(2, 1)
    two = torch.nn.Linear(2, 1)
    mean = RunningMean()
    mean.add(one.state_dict())
    mean.add((name, parameter) for name, parameter in two.named_parameters())
    found = mean.result()
    for name, tensor in one.state_dict().items():
        expected = (tensor.double() + two.state_dict()[name].double()) / 2
        assert torch.equal(torch.from_numpy(found[name]), expected.float())


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_every_kind_of_float(dtype: str, tmp_path: Path) -> None:
    tensor = torch.tensor([1.0, -2.0, 0.5]).to(getattr(torch, dtype))
    mean = mean_of([{"w": tensor}, {"w": np.array([3.0, -4.0, 1.5], np.float32)}])
    again = RunningMean.load(mean.save(tmp_path / "m.safetensors"))
    for one in (mean, again):
        assert one.result()["w"].dtype.name == dtype
        assert one.result()["w"].astype(float).tolist() == [2.0, -3.0, 1.0]


def test_shapes_stay(tmp_path: Path) -> None:
    shapes = {"scalar": (), "none": (0,), "no rows": (0, 3), "deep": (1, 2, 1, 3)}
    sets = [{name: np.full(shape, n, "f4") for name, shape in shapes.items()} for n in (1, 2)]
    sets[0]["count"], sets[1]["count"] = np.array(7), np.array(8)
    mean = mean_of(sets)
    again = RunningMean.load(mean.save(tmp_path / "m.safetensors"))
    joined = RunningMean()
    joined.merge(again)
    for one in (mean, again, joined):
        found = one.result()
        assert all(isinstance(array, np.ndarray) for array in found.values())
        assert {name: array.shape for name, array in found.items()} == {**shapes, "count": ()}
        assert found["scalar"].tolist() == 1.5
        assert found["count"].tolist() == 7
        assert found["scalar"].dtype == np.float32


@pytest.mark.parametrize("code", [code for code, kind in KINDS.items() if not kind.floating])
def test_integers_are_the_firsts(code: str, tmp_path: Path) -> None:
    kind = KINDS[code].numpy()
    mean = mean_of([{"n": np.array(values, kind)} for values in ([1, 0], [1, 1])])
    again = RunningMean.load(mean.save(tmp_path / "m.safetensors"))
    for one in (mean, again):
        assert one.result()["n"].dtype == kind
        assert one.result()["n"].tolist() == np.array([1, 0], kind).tolist()


def test_a_large_integer_is_exact(tmp_path: Path) -> None:
    mean = mean_of([{"n": np.array([2**63 - 1, -(2**63)])}] * 3)
    again = RunningMean.load(mean.save(tmp_path / "m.safetensors"))
    assert again.result()["n"].tolist() == [2**63 - 1, -(2**63)]


def test_a_mean_of_nothing_takes_over_anything() -> None:
    mean, empty = mean_of([{"w": np.array([3.0], np.float32)}]), RunningMean()
    mean.merge(empty)
    assert mean.count == 1
    empty.merge(mean)
    assert held(empty) == held(mean)
    empty.merge(empty)
    assert empty.count == 2
    assert held(empty) == held(mean)


# -- exact


def test_what_is_small_is_not_lost() -> None:
    values = [2.0**60, 1.0, -(2.0**60), 2.0**-10]
    for order in itertools.permutations(values):
        mean = mean_of([{"w": np.array([value], np.float32)} for value in order])
        assert mean.result()["w"].tolist() == [(1 + 2.0**-10) / 4]
    # In plain float64, most orders lose it. (From Python 3.12 on, `sum` does not.)
    plain = [functools.reduce(operator.add, order) for order in itertools.permutations(values)]
    assert plain.count(1 + 2.0**-10) < 24


#: Whole multiples of 2**low, of 24 bits each: float32 numbers that span 2**75.
@st.composite
def sets(draw: st.DrawFn) -> list[list[float]]:
    low = draw(st.integers(-140, 50))
    number = st.builds(
        lambda whole, shift: math.ldexp(whole, low + shift),
        st.integers(-(2**24) + 1, 2**24 - 1),
        st.integers(0, 51),
    )
    length = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(number, min_size=length, max_size=length), min_size=1,
                         max_size=9))  # fmt: skip


def _grouped(draw: st.DrawFn | Callable[..., Any], parts: list[RunningMean]) -> RunningMean:
    """All of them as one, joined two by two in any way, some by way of a file."""
    while len(parts) > 1:
        one = parts.pop(draw(st.integers(0, len(parts) - 1)))
        place = draw(st.integers(0, len(parts) - 1))
        if draw(st.booleans()):
            with tempfile.TemporaryDirectory() as folder:
                one = RunningMean.load(one.save(Path(folder) / "m.safetensors"))
        parts[place].merge(one)
    return parts[0]


@settings(max_examples=150, deadline=None)
@given(values=sets(), data=st.data())
def test_order_and_grouping_do_not_matter(values: list[list[float]], data: st.DataObject) -> None:
    arrays = [{"w": np.array(row, dtype=np.float32)} for row in values]
    assert [one["w"].tolist() for one in arrays] == values
    plain = held(mean_of(arrays))
    shuffled = [arrays[n] for n in data.draw(st.permutations(range(len(arrays))))]
    assert held(mean_of(shuffled)) == plain
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(arrays) - 1)))))
    edges = [0, *(cut for cut in cuts if cut < len(arrays)), len(arrays)]
    parts = [mean_of(shuffled[a:b]) for a, b in itertools.pairwise(edges)]
    assert held(_grouped(data.draw, parts)) == plain


@settings(max_examples=150, deadline=None)
@given(values=sets(), wide=st.booleans())
def test_against_exact_fractions(values: list[list[float]], wide: bool) -> None:
    arrays = [np.array(row, dtype=np.float32) for row in values]
    if wide:  # the mean in float64
        arrays = [arrays[0].astype(np.float64), *arrays[1:]]
    found = mean_of([{"w": array} for array in arrays]).result()["w"]
    for place, number in enumerate(found):
        exact = sum((Fraction(row[place]) for row in values), Fraction()) / len(values)
        step = Fraction(float(np.spacing(np.abs(number))))
        # One rounding for the kind, besides two far smaller ones; three in float64 itself.
        allowed = step * (Fraction(3, 2) if wide else Fraction(1, 2) + Fraction(1, 2**20))
        assert abs(Fraction(float(number)) - exact) <= allowed


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 8), data=st.data())
def test_float64_beyond_what_is_exact(seed: int, count: int, data: st.DataObject) -> None:
    """Of any size, in any order: as near as float64 can tell, for what does not cancel out."""
    chance = np.random.default_rng(seed)
    arrays = np.ldexp(chance.uniform(1, 2, (count, 5)), chance.integers(-300, 300, (count, 5)))
    order = data.draw(st.permutations(range(count)))
    found = mean_of([{"w": arrays[n]} for n in order]).result()["w"]
    for place, number in enumerate(found):
        exact = sum((Fraction(float(one)) for one in arrays[:, place]), Fraction()) / count
        assert abs(Fraction(float(number)) - exact) <= exact * Fraction(2, 2**52)


def test_many_sets_are_still_exact() -> None:
    chance = np.random.default_rng(0)
    arrays = [chance.normal(size=50).astype(np.float32) for _ in range(300)]
    found = mean_of([{"w": np.float64(array)} for array in arrays]).result()["w"]
    for place, number in enumerate(found):
        assert number == math.fsum(float(array[place]) for array in arrays) / 300


def test_is_the_mean_that_a_merge_gives(make_member: Callable[..., Path]) -> None:
    chance = np.random.default_rng(0)
    arrays = [chance.normal(size=50).astype(np.float32) for _ in range(5)]
    paths = [make_member(f"m{n}", w=array) for n, array in enumerate(arrays)]
    (_, merged), *_ = diwa.merge(paths).arrays()
    assert mean_of([{"w": array} for array in arrays]).result()["w"].tolist() == merged.tolist()


# -- what is refused


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"w": f32([1])}, "'n': the set of tensors has no such tensor"),
        (
            {"w": f32([1]), "n": i64([1]), "v": f32([1])},
            "'v': what was added before has no such tensor",
        ),
        ({"w": f32([1, 2]), "n": i64([1])}, r"'w': shape \(2,\), before \(1,\)"),
        ({"w": np.float32(1), "n": i64([1])}, r"'w': shape \(\), before \(1,\)"),
        ({"w": i64([1]), "n": i64([1])}, "'w': I64, before F32"),
        ({"w": f32([1]), "n": f32([1])}, "'n': F32, before I64"),
        ({"w": f32([1]), "n": np.array([True])}, "'n': BOOL, before I64"),
        ({"w": f32([math.nan]), "n": i64([1])}, "'w' holds NaN or infinity; leave"),
        (
            {"w": np.array([-math.inf], np.float16), "n": i64([1])},
            "'w' holds NaN or infinity; leave",
        ),
        ({"w": np.array([math.inf], BF16), "n": i64([1])}, "'w' holds NaN or infinity; "),
        ({"w": np.array([1j]), "n": i64([1])}, "'w' holds complex128, which can't be"),
        ({"w": np.array(["a"]), "n": i64([1])}, "'w' holds <U1, which can't be averaged"),
        ({"w": [1.0], "n": i64([1])}, "'w' is a list; give arrays or tensors"),
        ({"w": None, "n": i64([1])}, "'w' is a NoneType; give arrays or tensors"),
        ({"w": torch.tensor([1j]), "n": i64([1])}, "complex64, which files can't hold"),
    ],
)
def test_a_set_that_does_not_fit_changes_nothing(second: dict[str, Any], says: str) -> None:
    mean = mean_of([{"w": f32([1.0]), "n": i64([5])}])
    before = held(mean)
    with pytest.raises(WeightsError, match=says) as caught:
        mean.add(second)
    assert "\n" not in str(caught.value)
    assert mean.count == 1
    assert held(mean) == before
    mean.add({"w": f32([3.0]), "n": i64([5])})
    assert mean.result()["w"].tolist() == [2.0]


def test_the_first_set_is_looked_at_too() -> None:
    mean = RunningMean()
    with pytest.raises(WeightsError, match="'w' holds NaN or infinity"):
        mean.add({"w": f32([math.nan])})
    assert mean.count == 0
    mean.add({"v": f32([1.0])})
    assert mean.result()["v"].tolist() == [1.0]


def test_bits_that_signal_are_nan_like_others() -> None:
    """No warning on the way."""
    signalling = {"F16": np.uint16(0x7C01), "BF16": np.uint16(0x7F81), "F32": np.uint32(0x7F800001)}
    for code, bits in signalling.items():
        array = np.array([bits]).view(KINDS[code].numpy())
        with pytest.raises(WeightsError, match="'w' holds NaN or infinity"):
            RunningMean().add({"w": array})


def test_another_mean_that_does_not_fit_changes_nothing() -> None:
    mean = mean_of([{"w": f32([1.0])}])
    others: list[dict[str, NDArray]] = [
        {"v": f32([1])},
        {"w": f32([1, 2])},
        {"w": np.array([1], np.int32)},
    ]
    for other in others:
        with pytest.raises(WeightsError, match=r"'[vw]': "):
            mean.merge(mean_of([other]))
    assert mean.count == 1
    assert mean.result()["w"].tolist() == [1.0]


def test_a_mean_of_nothing_has_no_result() -> None:
    with pytest.raises(WeightsError, match=r"^nothing to average; add at least one set"):
        RunningMean().result()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("F16", 1e6), ("BF16", 3.4e38), ("F8_E4M3", 1e3), ("F8_E5M2", 1e6), ("F32", 1e39)],
)
def test_a_mean_too_large_for_the_firsts_kind(kind: str, value: float) -> None:
    first = np.array([1.0], KINDS[kind].numpy())
    mean = mean_of([{"w": first}, {"w": np.array([2 * value], np.float64)}])
    with pytest.raises(WeightsError, match=f"'w'.*too large for {kind}"):
        mean.result()


def test_a_sum_too_large_for_float64() -> None:
    """Right or refused, and never NaN or infinite."""
    mean = mean_of([{"w": np.array([1.0], np.float64)}])
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            mean.add({"w": np.array([1.7e308], np.float64)})
            mean.add({"w": np.array([1.7e308], np.float64)})
            found = mean.result()["w"]
        except WeightsError as error:
            assert "'w'" in str(error)  # noqa: PT017 - either is right
        else:
            assert found == pytest.approx(1.7e308 / 3 * 2)


def test_a_sum_too_large_changes_nothing() -> None:
    """Not even what comes before it in the same set."""
    large = {"a": np.array([1.0]), "w": np.array([1.7e308])}
    mean = mean_of([large])
    before = held(mean)
    with pytest.raises(WeightsError, match="'w': the sum is too large for float64; scale"):
        mean.add(large)
    with pytest.raises(WeightsError, match="'w': the sum is too large for float64; scale"):
        mean.merge(mean_of([large]))
    assert mean.count == 1
    assert held(mean) == before
    mean.add({"a": np.array([2.0]), "w": np.array([-1.7e308])})
    assert {n: a.tolist() for n, a in mean.result().items()} == {"a": [1.5], "w": [0.0]}


# -- files


def test_a_saved_mean_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    sets = [{"w": f32([n]), "n": i64([n]), "b": np.float16(n)} for n in range(3)]
    paths = [mean_of(sets).save(tmp_path / f"{n}.safetensors") for n in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    stored = safetensors.numpy.load_file(paths[0])
    assert stored["sum/w"].tolist() == [3.0]


def test_a_saved_mean_of_nothing(tmp_path: Path) -> None:
    again = RunningMean.load(RunningMean().save(tmp_path / "m.safetensors"))
    assert again.count == 0
    again.add({"w": f32([1.0])})
    assert again.result()["w"].tolist() == [1.0]


def test_names_that_look_like_those_of_the_file(tmp_path: Path) -> None:
    given = {
        "w": f32([1.0]),
        "sum/w": i64([5]),
        "rest/w": f32([6.0]),
        "rest/sum/w": i64([7]),
    }
    again = RunningMean.load(mean_of([given]).save(tmp_path / "m.safetensors"))
    assert {n: a.tolist() for n, a in again.result().items()} == {
        n: a.tolist() for n, a in given.items()
    }


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="can't be written"):
        mean_of([{"w": f32([1.0])}]).save(tmp_path / "file" / "m.safetensors")


def _file(path: Path, said: Any, **tensors: NDArray) -> Path:
    about = said if isinstance(said, str) else json.dumps(said)
    safetensors.numpy.save_file(dict(tensors), path, {"diwa": about})
    return path


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        "no JSON",
        {"running": None},
        {"running": []},
        {"running": {"count": 2}},
        {"running": {"count": "two", "kinds": {"w": "F32"}}},
        {"running": {"count": None, "kinds": {"w": "F32"}}},
        {"running": {"count": -1, "kinds": {"w": "F32"}}},
        {"running": {"count": 0, "kinds": {"w": "F32"}}},
        {"running": {"count": True, "kinds": {"w": "F32"}}},
        {"running": {"count": 2.0, "kinds": {"w": "F32"}}},
        {"running": {"count": 2**53, "kinds": {"w": "F32"}}},
        {"running": {"count": 2, "kinds": {}}},
        "[" * 100_000,
        {"running": {"count": 2, "kinds": {"w": "F7"}}},
        {"running": {"count": 2, "kinds": {"w": []}}},
        {"running": {"count": 2, "kinds": ["w"]}},
        {"running": {"count": 2, "kinds": {"v": "F32"}}},
        {"running": {"count": 2, "kinds": {"w": "I64"}}},
    ],
)
def test_a_file_that_is_no_running_mean(tmp_path: Path, said: Any) -> None:
    numbers = np.array([1.0], np.float64)
    path = _file(tmp_path / "m.safetensors", said, **{"sum/w": numbers, "rest/w": numbers * 0})
    with pytest.raises(WeightsError) as caught:
        RunningMean.load(path)
    assert str(caught.value) == (
        f"{path}: not a running mean; give a file that RunningMean.save wrote"
    )


@pytest.mark.parametrize(
    "tensors",
    [
        {"sum/w": np.array([1.0], np.float64)},
        {"sum/w": np.array([1.0], np.float64), "rest/w": np.array([0.0, 0.0], np.float64)},
        {"sum/w": f32([1.0]), "rest/w": f32([0.0])},
        {"sum/w": i64([1]), "rest/w": i64([0])},
        {"sum/w": np.array([math.nan], np.float64), "rest/w": np.array([0.0], np.float64)},
        {"sum/w": np.array([1.0]), "rest/w": np.array([0.0]), "sum/v": np.array([1.0])},
        {"sum/w": np.array([1.0]), "rest/w": np.array([0.0]), "w": np.array([1.0])},
    ],
)
def test_a_running_mean_with_other_sums(tmp_path: Path, tensors: dict[str, NDArray]) -> None:
    said = {"running": {"count": 2, "kinds": {"w": "F32"}}}
    path = _file(tmp_path / "m.safetensors", said, **tensors)
    with pytest.raises(WeightsError, match="not a running mean; "):
        RunningMean.load(path)


def test_a_running_mean_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"m\.safetensors: no such file"):
        RunningMean.load(tmp_path / "m.safetensors")


def test_ordinary_weights_are_no_running_mean(make_member: Callable[..., Path]) -> None:
    with pytest.raises(WeightsError, match="not a running mean"):
        RunningMean.load(make_member("m", w=[1.0]))
