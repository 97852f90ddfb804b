"""Sums: the compiled loop against NumPy to the last bit, and what happens where it is not there."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import diwa
from diwa.weights import sums
from diwa.weights.sums import Compiled, Located, summed

ROOT = Path(__file__).parents[2]
KINDS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """What the installation runs."""
    pytest.importorskip("hatchling", reason="the package that builds ours is not installed")
    place = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    if place is None or place.loader is None or not (ROOT / "hatch_build.py").is_file():
        pytest.skip("not run from the project's folder")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loop(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The loop as it is compiled here and now, whatever the installation has."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("library") / "sums.compiled"
    assert build.compiled(Path(sums.__file__).with_name("sums.c"), library) == ""
    return Compiled(library)


def any_bits(seed: int, kind: Any, size: int) -> NDArray:
    """Numbers of all sizes, some of them NaN, infinite or too small to be normal."""
    return np.frombuffer(np.random.default_rng(seed).bytes(size * np.dtype(kind).itemsize), kind)


def same(one: NDArray, other: NDArray) -> None:
    """To the last bit; which NaN it is does not matter."""
    assert one.dtype == other.dtype == np.float64
    assert one.shape == other.shape
    assert np.array_equal(np.isnan(one), np.isnan(other))
    known = ~np.isnan(one)
    assert np.array_equal(one[known].view(np.uint64), other[known].view(np.uint64))


def by_loop(loop: Compiled, arrays: list[NDArray], *how: Any) -> NDArray:
    located = sums._located(arrays)
    assert located is not None
    return loop.summed(located, *how)


@settings(deadline=None, max_examples=200)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.integers(0, 600) | st.integers(5000, 5003),
    count=st.integers(1, 9),
    weights=st.none() | st.lists(st.floats(allow_nan=False), min_size=9, max_size=9),
    divisor=st.just(1) | st.integers(2, 9) | st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_loop_gives_the_bits_that_numpy_gives(
    loop: Compiled,
    kind: str,
    size: int,
    count: int,
    weights: list[float] | None,
    divisor: float,
    seed: int,
) -> None:
    arrays = [any_bits(seed + n, KINDS[kind], size) for n in range(count)]
    factors = None if weights is None else weights[:count]
    with np.errstate(all="ignore"):
        expected = sums._by_numpy(arrays, factors, divisor)
    same(by_loop(loop, arrays, factors, divisor), expected)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_against_a_naive_sum(loop: Compiled, kind: str) -> None:
    chance = np.random.default_rng(0)
    arrays = [chance.normal(size=700).astype(KINDS[kind]) for _ in range(5)]
    weights = [0.1, -2.0, 3.5, 1e-3, 7.0]
    naive = []
    for column in zip(*arrays, strict=True):
        total = 0.0
        for weight, number in zip(weights, column, strict=True):
            total += weight * float(number)
        naive.append(total / 3)
    assert by_loop(loop, arrays, weights, 3).tolist() == naive


def test_products_are_rounded_before_they_are_added(loop: Compiled) -> None:
    """A machine that multiplies and adds at once would give what is left of the product."""
    weight, number = 1 + 2.0**-30, np.float32(1 + 2.0**-23)
    exact = Fraction(weight) * Fraction(float(number))
    rounded = weight * float(number)
    assert exact != Fraction(rounded)
    arrays = [np.full(300, -1, np.float32), np.full(300, number)]
    assert by_loop(loop, arrays, [rounded, weight], 1).tolist() == [0.0] * 300


@pytest.mark.parametrize("weights", [None, [1.0, 1.0]])
def test_the_sign_of_zero(loop: Compiled, weights: list[float] | None) -> None:
    arrays = [np.full(300, -0.0, np.float32)] * 2
    expected = sums._by_numpy(arrays, weights, 1)
    assert math.copysign(1, expected[0]) == (-1 if weights is None else 1)
    same(by_loop(loop, arrays, weights, 1), expected)


def _odd() -> dict[str, list[NDArray]]:
    plain = np.arange(20, dtype=np.float32).reshape(4, 5)
    shifted = np.frombuffer(b"\0" + plain.tobytes(), np.float32, count=20, offset=1).reshape(4, 5)
    return {
        "as they are": [plain, plain + 1],
        "one not aligned": [plain, shifted],
        "one with gaps": [plain, np.repeat(plain, 2, axis=1)[:, ::2]],
        "one in another order": [plain, np.asfortranarray(plain)],
        "one of another kind": [plain, plain.astype(np.float16)],
        "the first of another kind": [plain.astype(np.float64), plain],
        "other kinds": [plain.astype(np.float16), plain.astype(ml_dtypes.float8_e4m3fn)],
        "of the other byte order": [plain.astype(">f4"), plain.astype(">f4")],
        "without numbers": [plain[:0], plain[:0]],
        "a single number": [plain[0, 0:1].reshape(()), plain[1, 1:2].reshape(())],
    }


@pytest.mark.parametrize("case", sorted(_odd()))
def test_arrays_that_lie_in_memory_in_other_ways(
    loop: Compiled, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "COMPILED", loop)
    arrays = _odd()[case]
    same(summed(arrays), sum((one.astype(np.float64) for one in arrays[1:]), _wide(arrays[0])))
    same(summed(arrays, [0.5, 2.0]), _wide(arrays[0]) * 0.5 + _wide(arrays[1]) * 2)


def _wide(array: NDArray) -> NDArray:
    return np.ascontiguousarray(array).reshape(array.shape).astype(np.float64)


def test_located_arrays_are_made_only_if_somebody_looks(
    loop: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    held = [np.arange(300, dtype=np.float32), np.ones(300, dtype=np.float32)]
    where = np.array([array.ctypes.data for array in held], dtype=np.uintp)

    def make() -> list[NDArray]:
        made.append("now")
        return held

    located = Located(np.dtype(np.float32), where, (300,), make)
    monkeypatch.setattr(sums, "COMPILED", loop)
    assert summed(located).tolist() == list(range(1, 301))
    assert len(located) == 2
    assert made == []
    assert [one.tolist() for one in located] == [one.tolist() for one in held]
    assert located[1] is held[1]
    assert located[:1] == held[:1]
    assert made == ["now"], "once"
    monkeypatch.setattr(sums, "COMPILED", None)
    assert summed(located).tolist() == list(range(1, 301))


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("how", [{}, {"method": "weighted", "weights": (3, 1, 0.1)}])
def test_a_merge_is_the_same_file_with_and_without_the_loop(
    loop: Compiled, tmp_path: Path, kind: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    paths = []
    for number in range(3):
        chance = torch.Generator().manual_seed(number)
        shapes = {"wide": (300, 1000), "odd": (7,), "one": (), "none": (0, 3)}
        held = {
            name: torch.randn(shape, generator=chance).to(getattr(torch, kind))
            for name, shape in shapes.items()
        }
        paths.append(tmp_path / f"{number}.safetensors")
        save_file(held, paths[-1])
    saved = []
    for compiled in (loop, None):
        monkeypatch.setattr(sums, "COMPILED", compiled)
        out = diwa.merge(paths, **how).save(tmp_path / "out.safetensors")
        saved.append(out.read_bytes())
    assert saved[0] == saved[1]


# -- the library


def test_this_installation_has_the_loop(build: ModuleType, tmp_path: Path) -> None:
    trouble = build.compiled(Path(sums.__file__).with_name("sums.c"), tmp_path / "sums.compiled")
    if trouble:
        pytest.skip(f"it can't be compiled here: {trouble}")
    assert sums.COMPILED is not None, "install again: pip install -e ."


def test_no_library_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"sums\.compiled"):
        Compiled(tmp_path / "sums.compiled")
    monkeypatch.setattr(sums, "LIBRARY", tmp_path / "sums.compiled")
    assert sums._compiled() is None


def test_a_python_that_cannot_call_libraries() -> None:
    program = (
        "import sys; sys.modules['_ctypes'] = None\n"
        "import numpy as np, diwa.weights.sums as sums\n"
        "print(sums.COMPILED, sums.summed([np.float32([1]), np.float32([2])]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout.split() == [b"None", b"[3.]"]


def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "LIBRARY", tmp_path / "sums.compiled")
    sums.LIBRARY.write_bytes(b"\x7fELF, or so it says")
    assert sums._compiled() is None


def test_a_library_of_another_version(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source = tmp_path / "sums.c"
    source.write_text("void diwa_sum_f32_0(void) {}\n")
    monkeypatch.setattr(sums, "LIBRARY", tmp_path / "sums.compiled")
    assert build.compiled(source, sums.LIBRARY) == ""
    with pytest.raises(AttributeError):
        Compiled(sums.LIBRARY)
    assert sums._compiled() is None


@pytest.mark.parametrize("trouble", ["no compiler", "no C", "a compiler that is none", "no room"])
def test_a_build_that_fails_says_why_and_leaves_no_old_library(
    build: ModuleType, tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, library = tmp_path / "sums.c", tmp_path / "sums.compiled"
    source.write_text("int nothing;\n")
    library.write_bytes(b"old")
    if trouble == "no compiler":
        monkeypatch.setattr(build, "_compilers", lambda: iter(()))
    elif trouble == "no C":
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        source.write_text("this is no C\n")
    elif trouble == "a compiler that is none":
        monkeypatch.setattr(build, "_compilers", lambda: iter([[str(tmp_path)]]))
    else:
        monkeypatch.setattr(build, "_compilers", lambda: iter([["false"]]))
    said = build.compiled(source, library)
    assert said
    assert "\n" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sums.c"]


def test_the_compiler_that_is_asked_for_comes_first(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -x")
    assert next(build._compilers()) == [sys.executable, "-x"]
    monkeypatch.setenv("CC", "no-such-compiler")
    assert all(words[0] != "no-such-compiler" for words in build._compilers())


def test_no_addresses_where_there_is_no_file_in_memory() -> None:
    """A source that can't tell where its tensors are says so, and is merged all the same."""
    from diwa.weights.pickled import open_pickled

    torch = pytest.importorskip("torch")
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"{n}.pt" for n in range(2)]
        for n, path in enumerate(paths):
            torch.save({"w": torch.full((5,), float(n))}, path)
        assert open_pickled(paths[0]).address("w") == 0
        assert dict(diwa.merge(paths).arrays())["w"].tolist() == [0.5] * 5
