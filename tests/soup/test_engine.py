"""The rules of the arithmetic, whatever the numbers, their kinds, and who adds them up."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import diwa
from diwa.errors import DiwaError, WeightsError
from diwa.soup import engine
from diwa.soup.methods import METHODS
from diwa.weights import sums
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import FLOATS, KINDS, kind_of
from diwa.weights.source import open_source
from diwa.weights.sums import Located
from diwa.weights.writer import FileWriter

KIND = {code: KINDS[code].numpy() for code in FLOATS.values()}
ELEMENTWISE = ("uniform", "weighted", "interpolate", "arithmetic", "ties", "fisher")
WITH_BASE = ("interpolate", "arithmetic", "ties", "dare", "stock")


@pytest.fixture(scope="module", params=["as installed", "NumPy"], autouse=True)
def _way_to_add(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever holds, holds with the compiled loop and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(sums, "COMPILED", None)
        yield


def write(path: Path, **tensors: Any) -> Path:
    arrays = {name: np.asarray(held) for name, held in tensors.items()}
    infos = {}
    for name, array in arrays.items():
        kind = kind_of(array.dtype)
        assert kind is not None
        infos[name] = TensorInfo(kind, array.shape)
    with FileWriter(path, infos, {}) as writer:
        for name, array in arrays.items():
            writer.put(name, 0, array)
    return path


def numbers(seed: int, code: str, shape: tuple[int, ...], *, wild: bool = True) -> NDArray:
    """Any bits at all that are a finite number, or, if not wild, some near 1."""
    chance = np.random.default_rng(seed)
    kind = KIND[code]
    if not wild:
        return chance.normal(size=shape).astype(np.float32).astype(kind)
    found = np.frombuffer(chance.bytes(math.prod(shape) * kind.itemsize), kind).copy()
    with np.errstate(invalid="ignore"):  # some bits are a NaN that signals
        found[~np.isfinite(found)] = 0
    if code == "F64":
        # Not so large that a sum overflows, nor so that a product does.
        exponents = chance.integers(-160, 140, size=found.shape)
        found = np.ldexp(np.frexp(found)[0], exponents)
    return found.reshape(shape)


def merged(members: Sequence[Path], **how: Any) -> dict[str, NDArray]:
    return dict(diwa.merge(members, **how).arrays())


def same(one: Mapping[str, NDArray], other: Mapping[str, NDArray]) -> None:
    """To the last bit, but for the sign of zero's being told apart as well."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        assert array.tobytes() == other[name].tobytes(), name


def beside(folder: Path, method: str, count: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a method needs beside so many members; what belongs to each is in its order."""
    if method in WITH_BASE:
        return {"base": write(folder / "base", w=numbers(99, "F32", shape, wild=False))}
    if method == "weighted":
        return {"weights": tuple(1 + k / 7 for k in range(count))}
    if method == "fisher":
        each = [np.abs(numbers(50 + k, "F32", shape, wild=False)) for k in range(count)]
    elif method == "regmean":
        rows = [numbers(50 + k, "F32", (20, shape[1]), wild=False) for k in range(count)]
        each = [one.T @ one for one in rows]
    else:
        return {}
    files = [str(write(folder / f"s{k}", w=array)) for k, array in enumerate(each)]
    return {"statistics_files": tuple(files)}


def permuted(how: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    each = ("weights", "statistics_files")
    return {k: tuple(v[n] for n in order) if k in each else v for k, v in how.items()}


# -- the order of members


@settings(max_examples=60, deadline=None)
@given(data=st.data(), method=st.sampled_from(sorted(set(METHODS.names()) - {"slerp"})))
def test_the_order_of_members_does_not_matter(data: st.DataObject, method: str) -> None:
    codes = data.draw(st.lists(st.sampled_from(sorted(KIND)), min_size=2, max_size=6))
    # The same seed and kind again is a member of equal content.
    seeds = data.draw(st.lists(st.integers(0, 3), min_size=len(codes), max_size=len(codes)))
    wild = data.draw(st.booleans()) and method not in ("regmean", "stock")
    order = data.draw(st.permutations(range(len(codes))))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [
            write(folder / f"m{n}", w=numbers(seed, code, (3, 17), wild=wild))
            for n, (seed, code) in enumerate(zip(seeds, codes, strict=True))
        ]
        how = {"method": method, **beside(folder, method, len(codes), (3, 17)), "dtype": "fp64"}
        first = merged(paths, **how)
        same(first, merged([paths[n] for n in order], **permuted(how, order)))


@settings(max_examples=20, deadline=None)
@given(codes=st.tuples(*[st.sampled_from(sorted(KIND))] * 2), wild=st.booleans())
def test_slerp_half_way_is_the_same_from_both_ends(codes: tuple[str, str], wild: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = [
            write(Path(name) / f"m{n}", w=numbers(n, code, (300,), wild=wild))
            for n, code in enumerate(codes)
        ]
        how = {"method": "slerp", "dtype": "fp64"}
        same(merged(paths, **how), merged(paths[::-1], **how))


def test_the_order_matters_to_a_plain_sum_of_such_numbers(tmp_path: Path) -> None:
    """So that the tests above can fail."""
    held = [numbers(seed, "F64", (300,)) for seed in range(5)]
    assert not np.array_equal(sum(held), sum(held[::-1]))
    paths = [write(tmp_path / f"m{n}", w=one) for n, one in enumerate(held)]
    every = [merged([paths[n] for n in order]) for order in itertools.permutations(range(5))]
    for one in every:
        same(one, every[0])


def test_members_that_differ_in_the_middle_only(tmp_path: Path) -> None:
    """Their first and last bytes don't tell them apart; all of their content does."""
    held = [np.zeros(60_000, dtype=np.float32) for _ in range(3)]
    for one, value in zip(held, (1e8, -1e8, 1.0), strict=True):
        one[30_000] = value
    paths = [write(tmp_path / f"m{n}", w=one) for n, one in enumerate(held)]
    every = [
        merged([paths[n] for n in order], method="weighted", weights=weights)
        for order in itertools.permutations(range(3))
        for weights in [tuple((0.1, 0.3, 0.6)[n] for n in order)]
    ]
    for one in every:
        same(one, every[0])


# -- the number of threads and the length of a stretch


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the number of cores is fixed")
@pytest.mark.parametrize("method", METHODS.names())
def test_the_number_of_threads_does_not_matter(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRETCH", 50)
    count = 2 if method == "slerp" else 4
    shape = (20, 30)
    paths = [
        write(tmp_path / f"m{n}", w=numbers(n, "F32", shape, wild=False)) for n in range(count)
    ]
    how = {"method": method, **beside(tmp_path, method, count, shape)}
    saved = set()
    for cores in (1, 2, 3, 16):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        out = diwa.merge(paths, **how).save(tmp_path / "out.safetensors")
        saved.add(out.read_bytes())
    assert len(saved) == 1


@pytest.mark.parametrize(("method", "count"), [("regmean", 3), ("stock", 3), ("slerp", 2)])
def test_the_threads_of_a_linear_algebra_library_do_not_matter(
    tmp_path: Path, method: str, count: int
) -> None:
    shape = (96, 256)
    paths = [
        str(write(tmp_path / f"m{n}", w=numbers(n, "F32", shape, wild=False))) for n in range(count)
    ]
    how = {"method": method, "dtype": "fp64", **beside(tmp_path, method, count, shape)}
    how = {key: str(held) if key == "base" else held for key, held in how.items()}
    program = (
        "import diwa, sys\n"
        f"soup = diwa.merge({paths}, **{how})\n"
        "sys.stdout.buffer.write(dict(soup.arrays())['w'].tobytes())"
    )
    found = set()
    for threads in ("1", "2", "4"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(names, threads)}
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env=env
        )
        assert len(run.stdout) == 8 * math.prod(shape)
        found.add(run.stdout)
    assert len(found) == 1


@settings(max_examples=30, deadline=None)
@given(
    method=st.sampled_from(ELEMENTWISE),
    code=st.sampled_from(sorted(KIND)),
    length=st.integers(1, 70),
)
def test_the_length_of_a_stretch_does_not_matter(method: str, code: str, length: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        paths = [write(Path(name) / f"m{n}", w=numbers(n, code, (8, 8))) for n in range(3)]
        how = {"method": method, **beside(Path(name), method, 3, (8, 8)), "dtype": "fp64"}
        first = merged(paths, **how)
        patch.setattr(engine, "STRETCH", length)
        same(first, merged(paths, **how))


# -- how exact


def _within_one_step(found: NDArray, exact: Sequence[Fraction], slack: Sequence[Fraction]) -> None:
    """Each number is the exact one's neighbour, in its own kind, but for some slack."""
    kind = found.dtype
    towards = np.where(found > 0, -np.inf, np.inf).astype(kind)
    beside = np.nextafter(found, towards) if kind.itemsize > 1 else None
    for place, (number, truth, more) in enumerate(zip(found, exact, slack, strict=True)):
        if beside is not None:
            step = abs(Fraction(float(number)) - Fraction(float(beside[place])))
        else:
            step = Fraction(float(ml_dtypes.finfo(kind).eps)) * abs(Fraction(float(number)))
            step += Fraction(float(ml_dtypes.finfo(kind).smallest_subnormal))
        assert abs(Fraction(float(number)) - truth) <= step + more, (place, number, float(truth))


@settings(max_examples=60, deadline=None)
@given(
    codes=st.lists(st.sampled_from(sorted(KIND)), min_size=2, max_size=9),
    seed=st.integers(0, 2**32 - 1),
)
@example(codes=["BF16", "F8_E4M3", "F8_E4M3"], seed=29894846)  # ends near half-way
def test_the_mean_is_exact_to_the_last_digit(codes: list[str], seed: int) -> None:
    held = [numbers(seed + n, code, (12,)) for n, code in enumerate(codes)]
    columns = [[Fraction(float(number)) for number in column] for column in zip(*held, strict=True)]
    exact = [sum(column, Fraction()) / len(codes) for column in columns]
    # What float64 loses of numbers that cancel out; float32 would lose 2**29 times as much.
    slack = [Fraction(2) ** -52 * sum(map(abs, column)) for column in columns]
    with tempfile.TemporaryDirectory() as name:
        paths = [write(Path(name) / f"m{n}", w=one) for n, one in enumerate(held)]
        for dtype in ("", "fp64", "fp32"):
            largest = float(ml_dtypes.finfo(KIND[FLOATS[dtype] if dtype else codes[0]]).max)
            if all(abs(one) < largest for one in exact):
                _within_one_step(merged(paths, dtype=dtype)["w"], exact, slack)


@pytest.mark.parametrize(
    ("code", "large"), [("F16", 2048), ("BF16", 256), ("F32", 2.0**24), ("F8_E4M3", 16)]
)
def test_what_is_small_is_not_lost_beside_what_is_large(
    tmp_path: Path, code: str, large: float
) -> None:
    """Added up in their own kind, the ones would all vanish."""
    assert KIND[code].type(large) + KIND[code].type(1) == large
    values = [large, *[1.0] * 16, -large]
    paths = [
        write(tmp_path / f"m{n}", w=np.array([value], dtype=KIND[code]))
        for n, value in enumerate(values)
    ]
    found = merged(paths, dtype="fp64")["w"]
    assert found.tolist() == [math.fsum(values) / 18]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 8))
def test_a_weighted_mean_is_as_exact_as_float64(seed: int, count: int) -> None:
    chance = np.random.default_rng(seed)
    weights = tuple(chance.uniform(0.1, 3, size=count).tolist())
    held = [numbers(seed + n, "F32", (9,)) for n in range(count)]
    with tempfile.TemporaryDirectory() as name:
        paths = [write(Path(name) / f"m{n}", w=one) for n, one in enumerate(held)]
        found = merged(paths, method="weighted", weights=weights, dtype="fp64")["w"]
    total = math.fsum(weights)
    for place, number in enumerate(found):
        parts = [float(one[place]) * w for one, w in zip(held, weights, strict=True)]
        size = math.fsum(map(abs, parts)) / total
        assert abs(number - math.fsum(parts) / total) <= 8 * count * 2.0**-53 * size


# -- kinds


@pytest.mark.parametrize("name", [*FLOATS, ""])
def test_the_result_is_in_the_kind_that_is_asked_for(tmp_path: Path, name: str) -> None:
    for number, code in enumerate(KIND):
        one = write(
            tmp_path / "one", w=np.array([1, -3, 0.5], KIND[code]), n=np.array([3], np.int64)
        )
        two = write(
            tmp_path / "two", w=np.array([3, -3, 1.5], np.float32), n=np.array([3], np.int64)
        )
        soup = diwa.merge([one, two], dtype=name)
        wanted = FLOATS[name] if name else code
        assert soup.infos["w"] == TensorInfo(KINDS[wanted], (3,))
        found = dict(soup.arrays())
        assert found["w"].dtype == KIND[wanted]
        assert found["w"].astype(float).tolist() == [2, -3, 1]
        assert found["n"].dtype == np.int64
        path = soup.save(tmp_path / f"{number}.safetensors")
        again = open_source(path)
        assert again.tensors["w"] == soup.infos["w"]
        assert again.array("w").astype(float).tolist() == [2, -3, 1]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("own", FLOATS)
def test_a_tensor_that_is_only_taken_over_changes_its_kind_too(
    tmp_path: Path, name: str, own: str
) -> None:
    one = write(tmp_path / "one", w=np.array([1, -3, 0.5], KIND[FLOATS[own]]))
    found = merged(
        [one, write(tmp_path / "two", w=np.array([9, 9, 9], np.float32))], skip="w", dtype=name
    )
    assert found["w"].dtype == KIND[FLOATS[name]]
    assert found["w"].astype(float).tolist() == [1, -3, 0.5]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("fp16", 65520.0),
        ("bf16", 3.4e38),
        ("fp32", 1e39),
        ("fp8_e4m3", 465.0),
        ("fp8_e5m2", -65536.0),
    ],
)
@pytest.mark.parametrize("skip", [(), ("w",)], ids=["merged", "taken over"])
def test_a_result_that_is_too_large_for_its_kind_is_refused(
    tmp_path: Path, dtype: str, value: float, skip: tuple[str, ...]
) -> None:
    held = np.zeros(1000)
    held[-1] = value
    paths = [write(tmp_path / f"m{n}", w=held) for n in range(2)]
    with pytest.raises(WeightsError, match=f"'w': .*too large for {FLOATS[dtype]}; ") as caught:
        diwa.merge(paths, dtype=dtype, skip=skip).save(tmp_path / "out.safetensors")
    assert "--dtype" in str(caught.value)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("dtype", "value"), [("fp16", 65519.0), ("fp32", 3.4028235e38), ("fp8_e4m3", 448.0)]
)
def test_the_largest_number_of_a_kind_fits(tmp_path: Path, dtype: str, value: float) -> None:
    paths = [write(tmp_path / f"m{n}", w=np.array([value, -value])) for n in range(3)]
    found = merged(paths, dtype=dtype)["w"].astype(float)
    assert found.tolist() == pytest.approx([value, -value], rel=1e-3)


def test_a_result_too_large_for_the_firsts_own_kind(tmp_path: Path) -> None:
    one = write(tmp_path / "one", w=np.array([1], np.float16))
    two = write(tmp_path / "two", w=np.array([1e6], np.float32))
    with pytest.raises(WeightsError, match="'w': the result is too large for F16; choose a wider"):
        merged([one, two])
    assert merged([two, one])["w"].tolist() == [500000.5]


# -- integers and truth values


@pytest.mark.parametrize("code", [code for code in KINDS if not KINDS[code].floating])
def test_integers_are_the_firsts(tmp_path: Path, code: str) -> None:
    kind = KINDS[code].numpy()
    one = write(tmp_path / "one", n=np.array([[1, 0, 1]], kind), k=np.array(1, kind), w=[0.0])
    two = write(tmp_path / "two", n=np.array([[1, 1, 1]], kind), k=np.array(1, kind), w=[1.0])
    for pair in ([one, two], [two, one]):
        soup = diwa.merge(pair, dtype="bf16")
        found = dict(soup.arrays())
        assert found["n"].dtype == kind
        assert found["n"].tolist() == open_source(pair[0]).array("n").tolist()
        assert found["k"] == np.array(1, kind)
        assert soup.notes == ["integers that differ are the first member's: n"]
    assert diwa.merge([one, one]).notes == []


def test_many_integers_that_differ_are_counted(tmp_path: Path) -> None:
    held = [{f"n{k}": np.int64(turn) for k in range(7)} for turn in range(3)]
    paths = [write(tmp_path / f"m{n}", **one) for n, one in enumerate(held)]
    (note,) = diwa.merge(paths).notes
    assert note == "integers that differ are the first member's: n0, n1, n2 and 4 more"


def test_large_integers_do_not_pass_through_floats(tmp_path: Path) -> None:
    held = np.array([2**63 - 1, -(2**63), 2**53 + 1])
    paths = [write(tmp_path / f"m{n}", n=held) for n in range(2)]
    assert merged(paths, method="weighted", weights=(1, 2))["n"].tolist() == held.tolist()


def test_an_integer_and_a_float_are_not_merged(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a", w=np.array([1], np.float32)),
        write(tmp_path / "b", w=np.array([1], np.int32)),
    ]
    with pytest.raises(WeightsError, match=r"'w' is F32 \(1,\) in a, I32 \(1,\) in b"):
        diwa.merge(paths)


# -- NaN and infinity


def _all_methods() -> list[tuple[str, str]]:
    pairs = [(method, "member") for method in METHODS.names()]
    return pairs + [(method, "base") for method in WITH_BASE]


@pytest.mark.parametrize("place", [0, 63, 130])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("method", "who"), _all_methods())
def test_what_is_not_finite_is_refused_with_file_and_tensor(
    tmp_path: Path,
    method: str,
    who: str,
    value: float,
    place: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "STRETCH", 16)
    shape = (11, 12)
    count = 2 if method == "slerp" else 3
    how = {"method": method, **beside(tmp_path, method, count, shape)}
    held = [numbers(n, "F32", shape, wild=False) for n in range(count)]
    start = numbers(99, "F32", shape, wild=False)
    good = np.zeros(shape, dtype=np.float32)
    bad = held[1] if who == "member" else start
    bad.reshape(-1)[place] = value
    paths = [write(tmp_path / f"m{n}", good=good, w=one) for n, one in enumerate(held)]
    if "base" in how:
        how["base"] = write(tmp_path / "base", good=good + 1, w=start)
    if "statistics_files" in how:
        for path in how["statistics_files"]:
            own = open_source(path).array("w").copy()
            write(Path(path), good=np.eye(12) if method == "regmean" else good + 1, w=own)
    blamed = tmp_path / ("m1" if who == "member" else "base")
    with pytest.raises(WeightsError) as caught:
        diwa.merge(paths, **how).save(tmp_path / "out.safetensors")
    assert str(caught.value) == (
        f"{blamed}: 'w' holds NaN or infinity; leave that file out, or pass --skip 'w'"
    )
    assert not (tmp_path / "out.safetensors").exists()


def test_infinities_that_would_cancel_out_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one stretch the product is +inf, in another -inf."""
    monkeypatch.setattr(engine, "STRETCH", 2)
    base = write(tmp_path / "base", w=np.zeros(4, "f4"))
    one = write(tmp_path / "one", w=np.array([math.inf, 1, math.inf, 1], np.float32))
    two = write(tmp_path / "two", w=np.array([1, 1, -1, 1], np.float32))
    for how in ({"method": "slerp"}, {"method": "stock", "base": base}):
        with pytest.raises(WeightsError, match="one: 'w' holds NaN or infinity; "):
            merged([one, two], **how)


@pytest.mark.parametrize("code", ["F16", "BF16", "F8_E4M3", "F8_E5M2", "F64"])
def test_what_is_not_finite_is_refused_in_every_kind(tmp_path: Path, code: str) -> None:
    paths = [write(tmp_path / f"m{n}", w=np.array([1, value], KIND[code])) for n, value in
             enumerate([1, math.nan])]  # fmt: skip
    with pytest.raises(WeightsError, match=r"m1: 'w' holds NaN or infinity"):
        merged(paths)


@pytest.mark.parametrize("weights", [(1, 0), (0, 1)])
def test_a_weight_of_0_does_not_hide_it(tmp_path: Path, weights: tuple[float, float]) -> None:
    paths = [
        write(tmp_path / f"m{n}", w=np.array([v], np.float32)) for n, v in enumerate([1, math.inf])
    ]
    with pytest.raises(WeightsError, match=r"m1: 'w' holds NaN or infinity"):
        merged(paths, method="weighted", weights=weights)


def test_nan_in_a_tensor_that_is_not_merged_does_not_matter(tmp_path: Path) -> None:
    odd = np.array([math.nan, math.inf], np.float32)
    one = write(tmp_path / "one", w=np.array([1], np.float32), odd=odd)
    two = write(tmp_path / "two", w=np.array([3], np.float32), odd=-odd)
    for how in ({"skip": "odd"}, {"only": "w"}, {"take_from": [(one, "odd")]}):
        found = merged([one, two], **how)
        assert found["w"].tolist() == [2]
        assert found["odd"].tobytes() == odd.tobytes()


def test_what_is_taken_over_stays_infinite_where_its_kind_can(tmp_path: Path) -> None:
    path = write(tmp_path / "one", w=[1.0], mask=np.array([-math.inf, math.nan, 2], np.float32))
    for dtype in ("", "fp16", "bf16", "fp8_e5m2"):
        found = merged([path, path], skip="mask", dtype=dtype)["mask"].astype(float)
        assert (found[0], found[2]) == (-math.inf, 2)
        assert math.isnan(found[1])
    with pytest.raises(WeightsError, match="'mask': the result is too large for F8_E4M3; "):
        merged([path, path], skip="mask", dtype="fp8_e4m3")


def test_not_finite_and_taken_over_is_told(tmp_path: Path) -> None:
    odd = np.array([1, math.nan], np.float32)
    one = write(tmp_path / "one", w=np.ones(1), odd=odd, mask=-odd / 0.5)
    two = write(tmp_path / "two", w=np.ones(1), odd=np.ones(2), mask=np.ones(2))
    told = f"holds NaN or infinity, taken over as {one} has it: "
    assert diwa.merge([one, two], only="w").notes == [f"{told}mask, odd"]
    assert diwa.merge([two, two], skip="mask", take_from=[(one, "odd")]).notes == [f"{told}odd"]
    assert diwa.merge([two, one], only="w").notes == []


@pytest.mark.parametrize("dtype", ["", "bf16", "fp8_e4m3"])
def test_variances_below_0_are_refused(tmp_path: Path, dtype: str) -> None:
    """Past the members, as seen from the base, they may well be."""
    name = "bn.running_var"
    base = write(tmp_path / "base", **{name: np.array([4.0, 1.0]), "w": np.array([4.0])})
    paths = [
        write(tmp_path / f"m{n}", **{name: np.array([1.0, 1.0]), "w": np.array([1.0])})
        for n in range(2)
    ]
    how: dict[str, Any] = {"method": "arithmetic", "base": base, "dtype": dtype}
    assert merged(paths, scale=0.5, **how)[name].astype(float).tolist() == [1.0, 1.0]
    with pytest.raises(WeightsError) as caught:
        merged(paths, scale=1.0, **how)
    assert str(caught.value) == (
        f"{name!r}: the arithmetic merge makes variances negative, of which batch norm makes NaN; "
        "choose milder settings, or pass --skip '*running_*' and recalibrate"
    )
    found = merged(paths, scale=1.0, skip="*running_*", **how)
    assert found["w"].astype(float).tolist() == [-2.0], "other numbers may be negative"
    # Who has negative ones already knows what they mean.
    odd = write(tmp_path / "odd", **{name: np.array([-1.0, 1.0]), "w": np.array([1.0])})
    assert merged([odd, odd], scale=1.0, **how)[name].astype(float).tolist() == [-6.0, 1.0]


@pytest.mark.parametrize("method", ["fisher", "regmean"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_statistics_that_are_not_finite(tmp_path: Path, method: str, value: float) -> None:
    paths = [write(tmp_path / f"m{n}", w=np.eye(3) + n) for n in range(2)]
    files = [str(write(tmp_path / f"s{n}", w=np.eye(3) + value * n)) for n in range(2)]
    write(Path(files[0]), w=np.eye(3))
    with pytest.raises(DiwaError, match=r"s1: 'w'") as caught:
        merged(paths, method=method, statistics_files=files)
    assert "; " in str(caught.value)


def test_float64_members_whose_sum_is_too_large(tmp_path: Path) -> None:
    """The mean would fit, but not its sum: right or refused, and never infinite."""
    paths = [write(tmp_path / f"m{n}", w=np.array([1.7e308 - n * 1e300])) for n in range(3)]
    try:
        found = merged(paths)["w"]
    except WeightsError as error:
        assert "'w'" in str(error)  # noqa: PT017 - either is right
    else:
        assert found == pytest.approx(1.7e308)


# -- memory and work


def _anonymous(program: str, folder: Path) -> dict[str, int]:
    """Runs a program that ends in `work()`; its anonymous memory before, and the most during."""
    watched = f"""
import json, os, threading
import diwa, diwa.soup.merge, diwa.weights.source
from diwa.soup.methods import METHODS

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def watch():
    while not done.wait(0.002):
        seen.append(anonymous())

{program}
done, seen = threading.Event(), [anonymous()]
thread = threading.Thread(target=watch)
thread.start()
before = anonymous()
work()
done.set()
thread.join()
print(json.dumps({{"before": before, "most": max(seen), "looks": len(seen)}}))
"""
    run = subprocess.run(
        [sys.executable, "-c", watched], capture_output=True, check=True, cwd=folder
    )
    return json.loads(run.stdout)


def _large(folder: Path, count: int, size: int) -> list[str]:
    """Files with holes, which take no room on disk."""
    for n in range(count):
        info = {"w": TensorInfo(KINDS["F32"], (size,)), "b": TensorInfo(KINDS["F32"], (9,))}
        with FileWriter(folder / f"m{n}.safetensors", info, {}) as writer:
            writer.put("b", 0, np.full(9, n, dtype=np.float32))
    return [f"m{n}.safetensors" for n in range(count)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not told by this system")
@pytest.mark.parametrize(
    ("method", "megabytes"), [("uniform", 64), ("interpolate", 64), ("ties", 16), ("stock", 16)]
)
def test_memory_does_not_grow_with_the_members(tmp_path: Path, method: str, megabytes: int) -> None:
    names = _large(tmp_path, 8, megabytes << 18)
    how = {"method": method, **({"base": names[0]} if method in WITH_BASE else {})}
    program = f"def work():\n    diwa.merge({names}, **{how}).save('out.safetensors')\n"
    told = _anonymous(program, tmp_path)
    grown = (told["most"] - told["before"]) / 2**20
    # Eight members are 512 MB or 128 MB; what is in flight is a few stretches of each.
    assert grown < 56, f"{grown:.0f} MB"
    assert told["looks"] > 3
    assert (tmp_path / "out.safetensors").stat().st_size > megabytes << 20


def test_the_memory_test_can_fail(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("not told by this system")
    names = _large(tmp_path, 8, 16 << 18)
    program = (
        "def work():\n"
        "    from diwa.weights.source import open_source\n"
        f"    held = [open_source(name).array('w').copy() for name in {names}]\n"
        "    held = [one.fill(1) for one in held]\n"
    )
    told = _anonymous(program, tmp_path)
    assert (told["most"] - told["before"]) / 2**20 > 100


def test_says_how_much_is_done(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"m{n}", w=np.ones(1000), b=np.ones(3)) for n in range(4)]
    soup = diwa.merge(paths)
    ready, sink = engine.copied(soup._plans)
    assert sum(engine.blend(soup._plans, sink)) == 4 * 1003
    assert ready["w"].tolist() == [1] * 1000


def test_an_error_in_a_sink_stops_the_work(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"m{n}", w=np.ones(1000)) for n in range(2)]

    def sink(name: str, start: int, held: NDArray) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        list(engine.blend(diwa.merge(paths)._plans, sink))


def test_an_error_stops_the_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STRETCH", 1)
    paths = [write(tmp_path / f"m{n}", w=np.ones(10_000)) for n in range(2)]
    sunk: list[int] = []

    def sink(name: str, start: int, held: NDArray) -> None:
        sunk.append(start)
        if start == 3:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        list(engine.blend(diwa.merge(paths)._plans, sink))
    assert len(sunk) < 5000


def test_who_stops_listening_stops_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRETCH", 1)
    paths = [write(tmp_path / f"m{n}", w=np.ones(10_000)) for n in range(2)]
    sunk: list[int] = []
    working = engine.blend(diwa.merge(paths)._plans, lambda _, start, held: sunk.append(start))
    assert next(working) == 2
    working.close()
    count = len(sunk)
    assert count < 5000
    time.sleep(0.05)
    assert len(sunk) == count, "no thread goes on"


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_other_work_is_done_by_the_same_threads(
    tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the number of cores is fixed")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    paths = [write(tmp_path / f"m{n}", w=np.ones(10)) for n in range(2)]
    done: list[int | str] = []

    def task(number: int) -> Callable[[], int]:
        return lambda: done.append(number) or 100

    beside = [task(number) for number in range(4)]
    amounts = engine.blend(diwa.merge(paths)._plans, lambda *_: done.append("w"), beside)
    assert sorted(amounts) == [20, 100, 100, 100, 100]
    assert sorted(map(str, done)) == ["0", "1", "2", "3", "w"]
    if cores == 1:
        assert done == [0, 1, 2, "w", 3], "the last one while the disk takes in what was made"


def test_an_error_in_other_work_is_not_lost(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"m{n}", w=np.ones(10)) for n in range(2)]

    def task() -> int:
        raise WeightsError("no such file")

    with pytest.raises(WeightsError, match="no such file"):
        list(engine.blend(diwa.merge(paths)._plans, lambda *_: None, [task]))


def test_small_tensors_share_a_task_and_large_ones_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRETCH", 100)
    sizes = {"a": 250, **{f"b{n}": 30 for n in range(5)}, "c": 0, "d": 1}
    held = {name: np.ones(size) for name, size in sizes.items()}
    paths = [write(tmp_path / f"m{n}", **held) for n in range(2)]
    soup = diwa.merge(paths)
    ready, sink = engine.copied(soup._plans)
    amounts = [amount // 2 for amount in engine.blend(soup._plans, sink)]
    assert sum(amounts) == 250 + 5 * 30 + 1
    assert max(amounts) < 200
    assert len(amounts) <= 6
    same(ready, held)


def test_threads_share_nothing_that_crashes() -> None:
    """With `cached_property`, CPython 3.11 does, where two threads are an object's first."""
    for shared in (engine._Tensor, Located, engine.Plan):
        assert not any(isinstance(held, cached_property) for held in vars(shared).values())


@pytest.mark.parametrize("way", ["file", "shards"])
def test_mapped_members_are_added_up_where_they_lie(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No array is made of them, which would take longer than to add up what small ones hold."""
    if sums.COMPILED is None:
        pytest.skip("nothing is compiled here")
    members = []
    for n in range(3):
        folder = tmp_path / f"m{n}"
        folder.mkdir()
        for shard in "ab":
            write(folder / f"{shard}.safetensors", **{shard: np.full(9, n, np.float32)})
        index = {"weight_map": {shard: f"{shard}.safetensors" for shard in "ab"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        members.append(folder if way == "shards" else folder / "a.safetensors")
    seen: list[Located] = []
    plain = sums.Compiled.summed

    def summed(self: sums.Compiled, arrays: Located, *how: Any) -> NDArray:
        seen.append(arrays)
        return plain(self, arrays, *how)

    monkeypatch.setattr(sums.Compiled, "summed", summed)
    found = merged(members)
    assert all(array.tolist() == [1.0] * 9 for array in found.values())
    assert len(seen) == len(found) == (2 if way == "shards" else 1)
    assert all(located._made is None for located in seen)


def test_what_is_not_aligned_has_no_address_to_add_up_from(tmp_path: Path) -> None:
    paths = []
    for n in range(2):
        header = b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
        header += b" " * ((n + 1 - len(header)) % 4)
        numbers = np.array([n, 2, 4], np.float32).tobytes()
        paths.append(tmp_path / f"{n}.safetensors")
        paths[-1].write_bytes(len(header).to_bytes(8, "little") + header + numbers)
    soup = diwa.merge(paths)
    assert engine._Tensor(soup._plans[0])._open().where is None
    assert dict(soup.arrays())["w"].tolist() == [0.5, 2.0, 4.0]


def test_these_are_all_the_kinds_of_floats() -> None:
    assert {code for code, kind in KINDS.items() if kind.floating} == set(KIND)
