"""Distances and angles against vectors of float64 that are written out in full."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.weights import geometry
from diwa.weights.geometry import Geometry, measure
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import kind_of
from diwa.weights.source import Source

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


class Held(Source):
    """Arrays in memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(Path("held"))
        self._arrays = arrays

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        found = {name: kind_of(array.dtype) for name, array in self._arrays.items()}
        return {n: TensorInfo(k, self._arrays[n].shape) for n, k in found.items() if k is not None}

    @property
    def metadata(self) -> Mapping[str, str]:
        return {}

    @property
    def files(self) -> Mapping[str, Path]:
        return {}

    def array(self, name: str) -> np.ndarray:
        return self._arrays[name]


def drawn(seed: int, members: int, dtypes: Sequence[Any], shared: float = 1.0) -> list[Held]:
    """Members that have something in common, each in a number format of its own."""
    chance = np.random.RandomState(seed)
    shapes = {
        "scalar": (),
        "vector": (5,),
        "matrix": (7, 11),
        "kernel": (4, 3, 3, 3),
        "none": (0, 3),
    }
    common = {name: chance.standard_normal(shape) for name, shape in shapes.items()}
    return [
        Held(
            {
                name: np.asarray(
                    shared * common[name] + 0.3 * chance.standard_normal(shape)
                ).astype(dtypes[place % len(dtypes)])
                for name, shape in shapes.items()
            }
        )
        for place in range(members)
    ]


def vectors(members: Sequence[Held], names: Sequence[str]) -> np.ndarray:
    """Every member as one vector."""
    return np.stack(
        [np.concatenate([m.array(n).astype(np.float64).ravel() for n in names]) for m in members]
    )


def degrees(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1)
    return np.degrees(np.arccos(np.clip(rows @ rows.T / np.outer(lengths, lengths), -1, 1)))


def check_against_vectors(
    near: Geometry, members: Sequence[Held], names: Sequence[str], base: Held | None
) -> None:
    rows = vectors(members, names)
    lengths = np.linalg.norm(rows, axis=1)
    between = np.linalg.norm(rows[:, None] - rows[None, :], axis=2)
    np.testing.assert_allclose(near.norms, lengths, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(near.distances, between, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        near.relative, between / np.sqrt(np.outer(lengths, lengths)), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(near.angles, degrees(rows), atol=1e-4)
    mean = rows.mean(axis=0)
    assert near.ratio == pytest.approx(np.linalg.norm(mean) / lengths.mean(), rel=1e-9)
    np.testing.assert_allclose(
        near.from_mean, np.linalg.norm(rows - mean, axis=1), rtol=1e-6, atol=1e-6
    )
    if base is None:
        assert near.from_base is None
        assert near.base_angles is None
    else:
        gone = rows - vectors([base], names)
        assert near.from_base is not None
        assert near.base_angles is not None
        np.testing.assert_allclose(
            near.from_base, np.linalg.norm(gone, axis=1), rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(near.base_angles, degrees(gone), atol=1e-4)


@contextmanager
def tiny_blocks(length: int):
    """So that even small tensors are cut into several."""
    kept = geometry._BUFFER, geometry._SHORTEST
    geometry._BUFFER, geometry._SHORTEST = 0, length
    try:
        yield
    finally:
        geometry._BUFFER, geometry._SHORTEST = kept


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(2, 6),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    with_base=st.booleans(),
    length=st.sampled_from([1, 4, 16, 1024]),
)
def test_against_vectors(
    seed: int, count: int, dtypes: list[Any], with_base: bool, length: int
) -> None:
    *members, base = drawn(seed, count + 1, dtypes)
    names = list(members[0].tensors)
    with tiny_blocks(length):
        near = measure(members, names, base=base if with_base else None)
    check_against_vectors(near, members, names, base if with_base else None)
    some = near.of(lambda name: name in ("matrix", "kernel"))
    check_against_vectors(some, members, ["matrix", "kernel"], base if with_base else None)


def test_siblings_that_differ_in_the_last_digits() -> None:
    chance = np.random.RandomState(0)
    start = 100 + chance.standard_normal(50_000).astype(np.float32)
    members = [
        Held({"w": start}),
        Held({"w": np.nextafter(start, np.float32(1e9))}),
        Held({"w": start}),
    ]
    near = measure(members, ["w"])
    expected = np.linalg.norm(members[1].array("w").astype(np.float64) - start.astype(np.float64))
    assert near.distances[0, 1] == pytest.approx(expected, rel=1e-6)
    assert near.relative[0, 2] < 1e-10


def test_neither_threads_nor_the_order_of_work_change_a_bit() -> None:
    members = drawn(3, 4, DTYPES)
    names = list(members[0].tensors)
    with tiny_blocks(4):
        once, twice = (measure(members, names, threads=threads) for threads in (1, 7))
    for one, other in zip(once.tensors, twice.tensors, strict=True):
        assert one.products.tobytes() == other.products.tobytes()


def test_strangers_shrink_when_averaged() -> None:
    near = measure(drawn(0, 4, [np.float32], shared=0.0), ["matrix", "kernel"])
    assert near.ratio == pytest.approx(1 / math.sqrt(4), abs=0.1)
    assert near.relative[0, 1] == pytest.approx(math.sqrt(2), abs=0.2)
    same = measure(drawn(0, 1, [np.float32]) * 3, ["matrix"])
    assert same.ratio == pytest.approx(1.0)


def test_hot_spots() -> None:
    zeros = {"cold": np.ones(100), "warm": np.full(100, 10.0), "hot": np.ones(100)}
    moved = {**zeros, "warm": zeros["warm"] + 2.0, "hot": zeros["hot"] + 1.0}
    first, second = measure([Held(zeros), Held(moved)], list(zeros)).hot_spots()
    assert (first.tensor, second.tensor) == ("hot", "warm")
    assert first.share == pytest.approx(0.2)
    # Over the root of the mean squared norm of both: 1 and 2, 10 and 12.
    assert first.change == pytest.approx(1 / math.sqrt(2.5))
    assert second.share == pytest.approx(0.8)
    assert second.change == pytest.approx(2 / math.sqrt(122))


def test_a_base_that_lacks_tensors_is_the_centre_of_the_others() -> None:
    *members, base = drawn(5, 3, [np.float32])
    partial = Held({"matrix": base.array("matrix"), "kernel": np.zeros((9, 9), np.float32)})
    near = measure(members, ["matrix", "kernel", "vector"], base=partial)
    assert [one.based for one in near.tensors] == [True, False, False]
    gone = vectors(members, ["matrix"]) - vectors([base], ["matrix"])
    assert near.from_base is not None
    np.testing.assert_allclose(near.from_base, np.linalg.norm(gone, axis=1), rtol=1e-9)
    check_against_vectors(
        near.of(lambda name: name != "matrix"), members, ["kernel", "vector"], None
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_and_spoils_nothing_else(bad: float) -> None:
    members = drawn(6, 4, [np.float32])
    spoilt = members[2].array("matrix")
    spoilt[3, 4] = bad
    members[3].array("vector")[0] = bad
    names = ["matrix", "kernel", "vector"]
    near = measure(members[:3], names, base=members[3])
    assert near.broken == ((2, "matrix"), (3, "vector"))
    assert np.isfinite(near.distances).all()
    whole = measure(members[:2], names)
    assert near.distances[0, 1] == pytest.approx(whole.distances[0, 1])


def test_memory_does_not_grow_with_the_members_or_their_size(tmp_path: Path) -> None:
    size = 20_000_000
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(4 * size)
    members = [Held({"w": np.memmap(path, np.float32, "r")}) for _ in range(8)]
    tracemalloc.start()
    try:
        near = measure(members, ["w"], threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert near.norms.tolist() == [0.0] * 8
    assert near.angles.max() == 0.0
    assert near.ratio == 1.0
    assert peak < 40_000_000


def test_nothing_to_measure() -> None:
    near = measure(drawn(0, 2, [np.float32]), ["none"])
    assert near.tensors == ()
    assert near.hot_spots() == []
