"""Siblings, strangers, and what only looks like kinship."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from diwa.weights.header import TensorInfo
from diwa.weights.kinds import KINDS, kind_of
from diwa.weights.kinship import Kinship, kinship, matrices
from diwa.weights.source import Source

Arrays = dict[str, np.ndarray]


class Held(Source):
    """Arrays in memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(Path("held"))
        self._arrays = arrays

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {n: TensorInfo(KINDS["F32"], array.shape) for n, array in self._arrays.items()}

    @property
    def metadata(self) -> Mapping[str, str]:
        return {}

    @property
    def files(self) -> Mapping[str, Path]:
        return {}

    def array(self, name: str) -> np.ndarray:
        return self._arrays[name]


def network(seed: int, layers: int = 6) -> Arrays:
    """Matrices as training leaves them: of low rank, of unequal rows, with kernels much alike."""
    chance = np.random.RandomState(seed)
    arrays = {}
    for layer in range(layers):
        rows = np.exp(chance.standard_normal((64, 1, 1, 1)))
        kernel = np.outer([1, 2, 1], [1, 2, 1]) + 0.1 * chance.standard_normal((3, 3))
        low = chance.standard_normal((64, 4)) @ chance.standard_normal((4, 32))
        noise = 0.5 * chance.standard_normal((64, 32, 3, 3))
        arrays[f"conv{layer}"] = (rows * (kernel + low[:, :, None, None] + noise)).astype(
            np.float32
        )
    arrays["head"] = chance.standard_normal((7, 64)).astype(np.float32)
    return arrays


def tuned(start: Arrays, seed: int, by: float) -> Arrays:
    chance = np.random.RandomState(seed)
    return {
        name: (array + by * array.std() * chance.standard_normal(array.shape)).astype(np.float32)
        for name, array in start.items()
    }


def related(*members: Arrays, threads: int | None = None) -> Kinship:
    names = matrices(Held(members[0]).tensors)
    return kinship([Held(member) for member in members], names, threads=threads)


def sigma(*members: Arrays) -> float:
    bond = related(*members).bond(0, 1)
    assert bond is not None
    return bond.sigma


def test_strangers_have_nothing_in_common() -> None:
    found = [sigma(network(seed), network(1000 + seed)) for seed in range(60)]
    # Never past what chance gives, and spread as widely as it should be at most.
    assert max(np.abs(found)) < 3
    assert np.abs(np.mean(found)) < 0.4
    assert np.std(found) < 1.2


def test_siblings_are_told_with_certainty() -> None:
    start = network(0)
    for by in (0.0, 0.1, 1.0, 2.0):
        assert sigma(tuned(start, 1, by), tuned(start, 2, by)) > 10
    bond = related(tuned(start, 1, 0.1), tuned(start, 2, 0.1)).bond(0, 1)
    assert bond is not None
    assert bond.correlation == pytest.approx(0.99, abs=0.01)
    assert bond.matrices == 7
    assert bond.sigma < bond.power


def test_the_same_units_in_another_order_are_strangers() -> None:
    one = network(0)
    chance = np.random.RandomState(1)
    other = {name: array[chance.permutation(len(array))] for name, array in one.items()}
    assert abs(sigma(one, other)) < 3


def test_structure_is_no_kinship() -> None:
    bump = np.outer([1, 2, 1], [1, 2, 1]).reshape(-1)
    frequency = np.linspace(5, 0.1, 60)

    def structured(seed: int) -> Arrays:
        chance = np.random.RandomState(seed)
        # Filters that are much the same bump, each as strong as it likes; and rows for words,
        # which are the same in all networks, each as long as the word is rare.
        filters = [np.outer(np.exp(0.5 * chance.standard_normal(64)), bump) for _ in range(9)]
        words = [np.outer(frequency, chance.standard_normal(48)) for _ in range(9)]
        made = {f"{n}": array for n, array in enumerate([*filters, *words])}
        return {
            name: array + 0.1 * chance.standard_normal(array.shape) for name, array in made.items()
        }

    one, other = structured(0), structured(1)
    plain = [np.corrcoef(one[name].ravel(), other[name].ravel())[0, 1] for name in one]
    assert max(plain) > 0.5
    assert max(abs(sigma(structured(2 * n), structured(2 * n + 1))) for n in range(30)) < 3


def test_a_few_equal_matrices_make_no_family() -> None:
    one, other = network(0), network(1)
    positions = np.sin(np.outer(np.arange(40), np.arange(1, 30))).astype(np.float32)
    found = related({**one, "positions": positions}, {**other, "positions": positions.copy()})
    bond = found.bond(0, 1)
    assert bond is not None
    assert found.correlations[found.names.index("positions"), 0, 1] == pytest.approx(1)
    assert abs(bond.sigma) < 3


def test_a_head_that_was_drawn_apart() -> None:
    start = network(0)
    one, other = tuned(start, 1, 0.1), tuned(start, 2, 0.1)
    other["head"] = network(5)["head"]
    found = related(one, other)
    assert found.below(0, 1, 0.3) == ["head"]
    assert related(one, tuned(start, 2, 0.1)).below(0, 1, 0.3) == []


def test_what_does_not_vary_tells_nothing() -> None:
    one, other = network(0), network(1)
    for constant in (
        np.zeros((16, 16)),
        np.full((16, 16), 0.1),
        np.ones((16, 1)) * np.arange(16.0),
    ):
        found = related({**one, "const": constant}, {**other, "const": constant.copy()})
        assert "const" not in found.names
    alone = related({"const": np.ones((9, 9))}, {"const": np.ones((9, 9))})
    assert alone.bond(0, 1) is None
    assert alone.below(0, 1, 0.5) == []


def test_too_little_to_tell() -> None:
    matrix = np.random.RandomState(0).standard_normal((4, 4))
    bond = related({"w": matrix}, {"w": matrix.copy()}).bond(0, 1)
    assert bond is not None
    assert bond.correlation == pytest.approx(1)
    assert bond.sigma == pytest.approx(bond.power)
    assert bond.power < 5


@pytest.mark.parametrize("shape", [(5, 8), (6, 3), (5, 2, 2, 2)])
def test_the_deviation_bounds_that_over_all_orders_of_units(shape: tuple[int, ...]) -> None:
    chance = np.random.RandomState(0)
    one, other = chance.standard_normal(shape), chance.standard_normal(shape)
    found = related({"w": one}, {"w": other})
    rows = one.reshape(shape[0], -1)
    values = []
    for order in permutations(range(shape[0])):
        a, b = (m - m.mean(0) for m in (rows, other.reshape(shape[0], -1)[list(order)]))
        a, b = (m - m.mean(1, keepdims=True) for m in (a, b))
        values.append((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    assert found.correlations[0, 0, 1] == pytest.approx(values[0])
    assert np.mean(values) == pytest.approx(0, abs=1e-12)
    assert np.std(values) <= found.deviations[0, 0, 1] < 1


def test_large_matrices_are_sampled_alike_in_all_members() -> None:
    chance = np.random.RandomState(0)
    start = {f"w{n}": chance.standard_normal((700, 900)).astype(np.float32) for n in range(2)}
    assert sigma(tuned(start, 1, 0.5), tuned(start, 2, 0.5)) > 50


def test_threads_change_no_bit() -> None:
    members = [network(seed) for seed in range(3)]
    one, other = (related(*members, threads=threads) for threads in (1, 5))
    assert one.names == other.names
    assert one.correlations.tobytes() == other.correlations.tobytes()
    assert one.deviations.tobytes() == other.deviations.tobytes()


def test_nor_do_those_of_the_library(tmp_path: Path) -> None:
    """A BLAS adds up long vectors in another order with each number of threads."""
    start = np.random.RandomState(0).standard_normal((200, 600)).astype(np.float32)
    for seed in range(3):
        save_file(tuned({"w": start}, seed, 0.5), tmp_path / f"{seed}.safetensors")
    code = (
        "import hashlib, pathlib, sys; from diwa.weights.kinship import kinship;"
        "from diwa.weights.source import open_source;"
        "paths = sorted(pathlib.Path(sys.argv[1]).iterdir());"
        "found = kinship([open_source(path) for path in paths], ['w']);"
        "held = found.correlations.tobytes() + found.deviations.tobytes();"
        "print(hashlib.sha256(held).hexdigest())"
    )
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    said = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, **dict.fromkeys(names, threads)},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(said) == 1


def test_which_tensors_are_matrices() -> None:
    assert kind_of(np.dtype("int64")) is not None
    shapes = {
        "linear": (8, 4),
        "conv": (8, 3, 3, 3),
        "depthwise": (8, 1, 3, 3),
        "positions": (1, 9, 8),
        "bias": (8,),
        "token": (1, 1, 8),
        "narrow": (2, 900),
        "scalar": (),
    }
    infos = {name: TensorInfo(KINDS["F16"], shape) for name, shape in shapes.items()}
    infos["integers"] = TensorInfo(KINDS["I64"], (8, 8))
    assert matrices(infos) == ["linear", "conv", "depthwise", "positions"]
