"""Every merge method against its paper's formula, on whole tensors in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import diwa
from diwa.errors import DiwaError, SpecError, WeightsError
from diwa.soup import engine
from diwa.soup.methods import METHODS
from diwa.soup.methods.base import Method, Stretch
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import kind_of
from diwa.weights.writer import FileWriter

Write = Callable[..., Path]
Tensors = Mapping[str, NDArray]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of arrays."""

    def written(name: str, **tensors: Any) -> Path:
        arrays = {tensor: np.asarray(held) for tensor, held in tensors.items()}
        infos = {}
        for tensor, array in arrays.items():
            kind = kind_of(array.dtype)
            assert kind is not None
            infos[tensor] = TensorInfo(kind, array.shape)
        path = tmp_path / f"{name}.safetensors"
        with FileWriter(path, infos, {}) as writer:
            for tensor, array in arrays.items():
                writer.put(tensor, 0, array)
        return path

    return written


@pytest.fixture(params=[7, engine.STRETCH], ids=["many stretches", "one stretch"])
def stretch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Cuts tensors into many pieces, or into one."""
    monkeypatch.setattr(engine, "STRETCH", request.param)
    return request.param


def merged(members: Sequence[Path], **how: Any) -> dict[str, NDArray]:
    """The result; in float64, so that only the arithmetic is compared."""
    return dict(diwa.merge(members, **{"dtype": "fp64", **how}).arrays())


def drawn(seed: int, count: int, shape: tuple[int, ...] = (5, 11)) -> list[NDArray]:
    """Members as fine-tuning makes them: near each other, of differing sizes."""
    chance = np.random.default_rng(seed)
    start = chance.normal(size=shape)
    return [(start + chance.normal(size=shape) / 3).astype(np.float32) for _ in range(count)]


def wide(arrays: Sequence[NDArray]) -> NDArray:
    return np.stack([array.astype(np.float64) for array in arrays])


def close(found: NDArray, expected: NDArray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


# -- the formulas, on whole tensors


def ties_oracle(members: NDArray, base: NDArray, density: float, scale: float) -> NDArray:
    """Trim, elect sign, disjoint merge (Yadav et al. 2023), by sorting."""
    away = (members - base).reshape(len(members), -1)
    for row in away:
        # Sizes are compared as float32; equal ones are kept or dropped together.
        sizes = np.abs(row).astype(np.float32)
        kept = max(1, round(density * row.size))
        row[sizes < np.sort(sizes)[::-1][kept - 1]] = 0
    elected = np.sign(away.sum(axis=0))
    agree = (np.sign(away) == elected) & (away != 0)
    mean = np.where(agree, away, 0).sum(axis=0) / np.maximum(agree.sum(axis=0), 1)
    return base + scale * mean.reshape(base.shape)


def slerp_oracle(one: NDArray, two: NDArray, at: float) -> NDArray:
    """The arc between two vectors that are neither alike nor opposite."""
    angle = np.arccos(one.ravel() @ two.ravel() / np.linalg.norm(one) / np.linalg.norm(two))
    return (np.sin((1 - at) * angle) * one + np.sin(at * angle) * two) / np.sin(angle)


def stock_oracle(members: NDArray, base: NDArray) -> NDArray:
    """Model Stock (Jang et al. 2024): t = N cos / (1 + (N - 1) cos)."""
    away = (members - base).reshape(len(members), -1)
    cosines = [
        a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in itertools.combinations(away, 2)
    ]
    cosine, count = max(0.0, float(np.mean(cosines))), len(members)
    t = count * cosine / (1 + (count - 1) * cosine)
    return t * members.mean(axis=0) + (1 - t) * base


def regmean_oracle(members: NDArray, grams: NDArray, shrink: float) -> NDArray:
    """RegMean (Jin et al. 2023): (sum of W_i G_i) times the inverse of (sum of G_i)."""
    diagonal = np.eye(grams.shape[-1])
    shrunk = grams * (diagonal + shrink * (1 - diagonal))
    return np.einsum("mij,mjk->ik", members, shrunk) @ np.linalg.inv(shrunk.sum(axis=0))


# -- uniform, weighted


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_uniform(write: Write, count: int) -> None:
    held = drawn(0, count)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    close(merged(paths)["w"], wide(held).mean(axis=0))


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("weights", [(1, 2, 3), (0.1, 0.0, 0.3), (3.0, -1.0, 1.0), (5, 0, 0)])
def test_weighted(write: Write, weights: tuple[float, ...]) -> None:
    held = drawn(1, 3)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    expected = np.average(wide(held), axis=0, weights=weights)
    close(merged(paths, method="weighted", weights=weights)["w"], expected)


def test_weights_belong_to_the_members_and_not_to_their_order(write: Write) -> None:
    for turn in range(20):  # whichever of the two is added up first
        low, high = write("low", w=[0.0, turn]), write("high", w=[1.0, -turn])
        found = merged([low, high], method="weighted", weights=(1, 3))["w"]
        assert found[0] == 0.75


# -- differences to a base


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0, 1.5, -0.5])
def test_interpolate(write: Write, alpha: float) -> None:
    base, *held = drawn(2, 4)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    found = merged(paths, method="interpolate", base=write("base", w=base), alpha=alpha)["w"]
    close(found, (1 - alpha) * base.astype(np.float64) + alpha * wide(held).mean(axis=0))


@pytest.mark.parametrize(("alpha", "which"), [(0.0, "base"), (1.0, "m")])
def test_the_ends_of_an_interpolation_are_exact(write: Write, alpha: float, which: str) -> None:
    held = dict(zip(["base", "m"], drawn(3, 2), strict=True))
    paths = {name: write(name, w=array) for name, array in held.items()}
    found = merged([paths["m"]], method="interpolate", base=paths["base"], alpha=alpha)["w"]
    assert found.tolist() == held[which].tolist()


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("scale", [0.3, 1.0, -1.0, 0.0])
def test_task_arithmetic(write: Write, scale: float) -> None:
    base, *held = drawn(4, 4)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    found = merged(paths, method="arithmetic", base=write("base", w=base), scale=scale)["w"]
    start = base.astype(np.float64)
    close(found, start + scale * (wide(held) - start).sum(axis=0))


def test_a_difference_is_taken_in_float64(write: Write) -> None:
    # In float32, 1 + 2**-40 is 1.
    base = write("base", w=np.array([1 + 2.0**-40]))
    found = merged(
        [write("m", w=np.array([1], np.float32))], method="arithmetic", base=base, scale=1
    )
    assert found["w"].tolist() == [1.0]
    found = merged(
        [write("m", w=np.array([1], np.float32))], method="arithmetic", base=base, scale=2
    )
    assert found["w"].tolist() == [1 - 2.0**-40]


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("density", [0.001, 0.05, 0.2, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_ties(write: Write, density: float, scale: float) -> None:
    base, *held = drawn(5, 5)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    how = {"method": "ties", "base": write("base", w=base), "density": density, "scale": scale}
    expected = ties_oracle(wide(held), base.astype(np.float64), density, scale)
    close(merged(paths, **how)["w"], expected)
    assert (expected != base).any()


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("seed", range(8))
def test_ties_where_many_differences_are_equally_large(write: Write, seed: int) -> None:
    chance = np.random.default_rng(seed)
    base = chance.integers(-8, 8, size=61) / 4
    held = [(base + chance.integers(-3, 4, size=61) / 4).astype(np.float32) for _ in range(4)]
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    density = float(chance.choice([0.05, 0.3, 0.6, 1]))
    found = merged(
        paths, method="ties", base=write("base", w=base.astype(np.float32)), density=density
    )
    close(found["w"], ties_oracle(wide(held), base, density, 1.0))


def test_ties_by_hand(write: Write) -> None:
    base = write("base", w=np.zeros(5, dtype=np.float32))
    one = write("one", w=np.array([4, 1, -3, 2, 0], np.float32))
    two = write("two", w=np.array([2, -5, -1, -2, 0], np.float32))
    # The largest 60 %: one keeps 4, -3 and 2; two keeps 2, -5 and -2. 2 against -2 elects none.
    found = merged([one, two], method="ties", base=base, density=0.6)["w"]
    assert found.tolist() == [3, -5, -3, 0, 0]


def test_ties_trims_every_tensor_by_itself(write: Write) -> None:
    base = write("base", large=np.zeros(4, dtype="f4"), small=np.zeros(4, dtype="f4"))
    one = write(
        "one", large=np.array([9, 8, 7, 6], np.float32), small=np.array([4, 3, 2, 1], np.float32)
    )
    found = merged([one], method="ties", base=base, density=0.5)
    assert found["large"].tolist() == [9, 8, 0, 0]
    assert found["small"].tolist() == [4, 3, 0, 0]


@pytest.mark.usefixtures("stretch")
def test_ties_of_members_that_are_the_base(write: Write) -> None:
    (start,) = drawn(6, 1)
    paths = [write(name, w=start) for name in ("base", "a", "b")]
    found = merged(paths[1:], method="ties", base=paths[0])["w"]
    assert found.tolist() == start.tolist()


# -- DARE

_MANY = 40_000


def dare_masks(write: Write, *, drop: float, seed: int = 0, name: str = "w") -> NDArray:
    """Which differences of four members were kept: told apart by sizes that are powers of two."""
    # In the order in which they are blended, which need not be that of the arguments.
    sizes = 2.0 ** np.arange(4)
    base = write("base", **{name: np.zeros(_MANY, dtype=np.float32)})
    paths = [write(f"m{size}", **{name: np.full(_MANY, size, "f4")}) for size in sizes]
    found = merged(paths, method="dare", base=base, drop=drop, seed=seed)[name]
    code = np.rint(found * (1 - drop) * 4)
    # What is not dropped is divided by what is left.
    close(found, code / (1 - drop) / 4)
    assert code.max() <= 15
    return np.stack([code.astype(int) >> bit & 1 for bit in range(4)])


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9])
def test_dare_drops_as_much_as_it_is_told(
    write: Write, drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.STRETCH < 1000:
        monkeypatch.setattr(engine, "STRETCH", 999)
    masks = dare_masks(write, drop=drop)
    spread = math.sqrt(drop * (1 - drop) / _MANY)
    assert np.abs(masks.mean(axis=1) - (1 - drop)).max() < 5 * spread
    # Neither the members' draws nor those of neighbours tell of each other.
    assert np.abs(np.corrcoef(masks) - np.eye(4)).max() < 5 / math.sqrt(_MANY)
    for mask in masks:
        for distance in (1, 999):
            beside = np.corrcoef(mask[:-distance], mask[distance:])[0, 1]
            assert abs(beside) < 5 / math.sqrt(_MANY - distance)


def test_dare_draws_by_seed_tensor_and_stretch(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dare_masks(write, drop=0.5)
    assert (dare_masks(write, drop=0.5) == first).all()
    for other in (dare_masks(write, drop=0.5, seed=1), dare_masks(write, drop=0.5, name="v")):
        assert abs((other == first).mean() - 0.5) < 0.02
    monkeypatch.setattr(engine, "STRETCH", _MANY // 2)
    halves = dare_masks(write, drop=0.5)
    assert abs((halves[:, : _MANY // 2] == halves[:, _MANY // 2 :]).mean() - 0.5) < 0.02


def test_dare_is_right_on_average(write: Write) -> None:
    base, *held = drawn(7, 4, shape=(_MANY,))
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    how = {"method": "dare", "base": write("base", w=base), "scale": 0.5}
    expected = 0.5 * (wide(held) - base).mean(axis=0)
    every = np.stack([merged(paths, **how, seed=seed)["w"] - base for seed in range(20)])
    assert np.abs((every.mean(axis=0) - expected).mean()) < 0.002
    assert (every[0] != every[1]).mean() > 0.8
    # Dropping nothing is plain.
    close(merged(paths, **how, drop=0.0)["w"] - base, expected)


def test_dare_with_the_same_seed_makes_the_same_bytes(write: Write, tmp_path: Path) -> None:
    base, *held = drawn(8, 4, shape=(999,))
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]

    def saved(seed: int, order: Sequence[Path]) -> bytes:
        soup = diwa.merge(order, method="dare", base=write("base", w=base), seed=seed)
        return soup.save(tmp_path / "out" / "soup.safetensors").read_bytes()

    assert saved(5, paths) == saved(5, paths) == saved(5, paths[::-1])
    assert saved(6, paths) != saved(5, paths)


# -- statistics


@pytest.mark.usefixtures("stretch")
def test_fisher(write: Write) -> None:
    chance = np.random.default_rng(9)
    held = drawn(9, 3)
    know = [(chance.random((5, 11)) ** 4).astype(np.float32) for _ in held]
    know[0][0] = 0  # less than the floor
    know[1][0, :5] = 0
    know[2][0, :3] = 0
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    files = [str(write(f"f{n}", w=array)) for n, array in enumerate(know)]
    weight = np.maximum(wide(know), 1e-6)
    expected = (weight * wide(held)).sum(axis=0) / weight.sum(axis=0)
    found = merged(paths, method="fisher", statistics_files=files)["w"]
    close(found, expected)
    # Where nobody knows anything, everybody counts the same.
    close(found[0, :3], wide(held)[:, 0, :3].mean(axis=0))
    backwards = merged(paths[::-1], method="fisher", statistics_files=files[::-1])["w"]
    assert backwards.tolist() == found.tolist()


def test_fisher_averages_running_statistics_plainly(write: Write) -> None:
    """There are no gradients of them; of anything else there must be."""
    names = ("bn.running_mean", "bn.running_var")
    paths = [write(f"m{n}", w=[float(n)], **{name: [4.0 * n] for name in names}) for n in (1, 2)]
    files = [str(write(f"s{n}", w=[[1.0, 3.0][n]])) for n in range(2)]
    soup = diwa.merge(paths, method="fisher", statistics_files=files)
    found = {name: array.tolist() for name, array in soup.arrays()}
    assert found == {"w": [1.75], names[0]: [6.0], names[1]: [6.0]}
    assert soup.notes == [f"not in the statistics, so averaged plainly: {', '.join(names)}"]
    more = [write(f"n{n}", w=[1.0], v=[1.0]) for n in range(2)]
    with pytest.raises(WeightsError, match="has no statistics of 'v'"):
        merged(more, method="fisher", statistics_files=files)


def test_fisher_with_another_floor(write: Write) -> None:
    paths = [write("a", w=np.array([0], np.float32)), write("b", w=np.array([1], np.float32))]
    files = [
        str(write("fa", w=np.array([0], np.float32))),
        str(write("fb", w=np.array([3], np.float32))),
    ]
    found = merged(paths, method="fisher", statistics_files=files, floor=1.0)["w"]
    assert found.tolist() == [0.75]


@pytest.mark.parametrize("wrong", [-1.0, math.nan, -math.inf])
def test_fisher_information_that_is_none(write: Write, wrong: float) -> None:
    paths = [write(name, w=np.array([1, 2], np.float32)) for name in ("a", "b")]
    files = [
        str(write(f"f{n}", w=np.array([1, held], np.float32))) for n, held in enumerate([1, wrong])
    ]
    with pytest.raises(WeightsError, match=r"f1.*: 'w': its Fisher information is negative or NaN"):
        merged(paths, method="fisher", statistics_files=files)


@pytest.mark.parametrize("shape", [(1,), (3,), (7,), (3, 2), (2, 2)])
def test_fisher_information_of_another_shape(write: Write, shape: tuple[int, ...]) -> None:
    paths = [write(name, w=np.ones((2, 3), "f4")) for name in ("a", "b")]
    files = [str(write("fa", w=np.ones((2, 3), "f4"))), str(write("fb", w=np.ones(shape, "f4")))]
    with pytest.raises(WeightsError, match=r"fb\.safetensors.*'w'") as caught:
        merged(paths, method="fisher", statistics_files=files)
    assert "\n" not in str(caught.value)


def test_fisher_information_that_is_missing(write: Write) -> None:
    paths = [
        write(name, w=np.array([1], np.float32), v=np.array([1], np.float32)) for name in ("a", "b")
    ]
    files = [str(write("fa", w=np.array([1], np.float32), v=np.array([1], np.float32)))]
    files += [str(write("fb", w=np.array([1], np.float32)))]
    with pytest.raises(WeightsError, match=r"fb\.safetensors: has no statistics of 'v'; .*--skip"):
        merged(paths, method="fisher", statistics_files=files)
    found = merged(paths, method="fisher", statistics_files=files, skip="v")
    assert found["v"].tolist() == [1]


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("shrink", [0.0, 0.5, 0.9, 1.0])
def test_regmean(write: Write, shrink: float) -> None:
    chance = np.random.default_rng(10)
    held = drawn(10, 3, shape=(4, 6))
    inputs = [chance.normal(size=(50, 6)) * (1 + n) for n in range(3)]
    grams = [(one.T @ one).astype(np.float32) for one in inputs]
    biases = drawn(11, 3, shape=(4,))
    paths = [
        write(f"m{n}", **{"l.weight": w, "l.bias": b})
        for n, (w, b) in enumerate(zip(held, biases, strict=True))
    ]
    files = [str(write(f"g{n}", **{"l.weight": gram})) for n, gram in enumerate(grams)]
    found = merged(paths, method="regmean", statistics_files=files, shrink=shrink)
    expected = regmean_oracle(wide(held), wide(grams), shrink)
    np.testing.assert_allclose(found["l.weight"], expected, rtol=1e-9, atol=1e-12)
    # Without a Gram matrix, the plain mean.
    close(found["l.bias"], wide(biases).mean(axis=0))
    notes = diwa.merge(paths, method="regmean", statistics_files=files).notes
    assert notes == ["not in the statistics, so averaged plainly: l.bias"]
    if shrink == 1.0:
        # What the formula is for: the least squares over everybody's inputs and outputs.
        outputs = [x @ w.T.astype(np.float64) for x, w in zip(inputs, held, strict=True)]
        fit = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs), rcond=None)[0].T
        np.testing.assert_allclose(found["l.weight"], fit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_regmean_by_many_rows_and_in_every_kind(write: Write, kind: type) -> None:
    chance = np.random.default_rng(20)
    held = [chance.normal(size=(300, 70)).astype(kind) for _ in range(2)]
    inputs = [chance.normal(size=(90, 70)) for _ in held]
    grams = [(one.T @ one).astype(kind) for one in inputs]
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    files = [str(write(f"g{n}", w=gram)) for n, gram in enumerate(grams)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "STRETCH", 70 * 7)
        patch.setattr(engine, "_ROWS", 7)
        found = merged(paths, method="regmean", statistics_files=files)["w"]
    expected = regmean_oracle(wide(held), wide(grams), 0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_regmean_where_one_member_saw_one_input_only(write: Write) -> None:
    one, two = (
        write("a", w=np.array([[1, 10]], np.float32)),
        write("b", w=np.array([[3, 30]], np.float32)),
    )
    seen = [np.array([[1, 0], [0, 0]], np.float32), np.array([[0, 0], [0, 1]], np.float32)]
    files = [str(write(f"g{n}", w=gram)) for n, gram in enumerate(seen)]
    found = merged([one, two], method="regmean", statistics_files=files)["w"]
    assert found.tolist() == [[1, 30]]


def test_gram_matrices_that_cannot_be_inverted(write: Write) -> None:
    paths = [write(name, w=np.array([[1, 10]], np.float32)) for name in ("a", "b")]
    files = [str(write(f"g{n}", w=np.array([[1, 0], [0, 0]], np.float32))) for n in range(2)]
    with pytest.raises(WeightsError, match="'w': its Gram matrices can't be inverted together; "):
        merged(paths, method="regmean", statistics_files=files)


@pytest.mark.parametrize(
    ("weight", "gram"),
    [
        (np.ones((2, 3), "f4"), np.eye(2, dtype="f4")),
        (np.ones((2, 3), "f4"), np.ones(3, "f4")),
        (np.ones(3, "f4"), np.eye(3, dtype="f4")),
        (np.ones((2, 3, 1, 1), "f4"), np.eye(3, dtype="f4")),
        (np.float32(1), np.float32(1)),
    ],
    ids=["too small", "no matrix", "of a bias", "of a convolution", "of a scalar"],
)
def test_a_gram_matrix_that_does_not_fit(write: Write, weight: NDArray, gram: NDArray) -> None:
    paths = [write(name, w=weight) for name in ("a", "b")]
    files = [str(write(f"g{n}", w=gram)) for n in range(2)]
    with pytest.raises(WeightsError, match="'w'") as caught:
        merged(paths, method="regmean", statistics_files=files)
    assert "; " in str(caught.value)


# -- SLERP


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("at", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_slerp(write: Write, at: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    one, two = (chance.normal(size=(5, 11)).astype(np.float32) for _ in range(2))
    paths = [write("one", w=one), write("two", w=two)]
    found = merged(paths, method="slerp", at=at)["w"]
    close(found, slerp_oracle(one.astype(np.float64), two.astype(np.float64), at))
    close(merged(paths[::-1], method="slerp", at=1 - at)["w"], found)


def test_slerp_keeps_the_length_of_vectors_of_one_length(write: Write) -> None:
    angle = 1.2
    one = write("one", w=np.array([3.0, 0.0]))
    two = write("two", w=np.array([3 * math.cos(angle), 3 * math.sin(angle)]))
    for at in (0.1, 0.5, 0.7):
        found = merged([one, two], method="slerp", at=at)["w"]
        close(found, np.array([3 * math.cos(at * angle), 3 * math.sin(at * angle)]))


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("factor", [1.0, 2.5, -1.0, 0.0, -3.0])
def test_slerp_on_a_line_is_a_straight_line(write: Write, factor: float) -> None:
    (one,) = drawn(12, 1)
    two = (one * np.float32(factor)).astype(np.float32)
    for pair in ([one, two], [two, one]):
        paths = [write(f"m{n}", w=array) for n, array in enumerate(pair)]
        found = merged(paths, method="slerp", at=0.25)["w"]
        close(found, 0.75 * pair[0].astype(np.float64) + 0.25 * pair[1].astype(np.float64))


def test_slerp_of_nothing_but_zeros(write: Write) -> None:
    paths = [write(name, w=np.zeros(30, "f4")) for name in ("a", "b")]
    assert merged(paths, method="slerp")["w"].tolist() == [0] * 30


def test_slerp_does_not_jump_where_the_arc_becomes_a_line(write: Write) -> None:
    found = []
    for cosine in (0.99949, 0.99951):
        one = np.array([1.0, 0.0])
        two = np.array([cosine, math.sqrt(1 - cosine**2)])
        found.append(merged([write("a", w=one), write("b", w=two)], method="slerp", at=0.3)["w"])
    assert np.abs(found[0] - found[1]).max() < 2e-4


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e-30, 1e30, 1e100, 1e200])
def test_slerp_whatever_the_size_of_the_numbers(write: Write, size: float) -> None:
    chance = np.random.default_rng(3)
    one, two = chance.normal(size=(2, 40))
    paths = [write("a", w=one * size), write("b", w=two * size)]
    close(merged(paths, method="slerp", at=0.3)["w"] / size, slerp_oracle(one, two, 0.3))


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("method", ["slerp", "stock"])
def test_numbers_whose_squares_are_too_large_are_right_or_refused(
    write: Write, method: str
) -> None:
    chance = np.random.default_rng(3)
    held = chance.normal(size=(2, 40))
    paths = [write(f"m{n}", w=array * 1e200) for n, array in enumerate(held)]
    base = {"base": write("base", w=np.zeros(40))} if method == "stock" else {}
    expected = stock_oracle(held, np.zeros(40)) if base else slerp_oracle(held[0], held[1], 0.5)
    try:
        found = merged(paths, method=method, **base)["w"]
    except WeightsError as error:
        assert "'w'" in str(error)  # noqa: PT017 - either is right
    else:
        close(found / 1e200, expected)


# -- Model Stock


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("count", [2, 3, 6])
def test_stock(write: Write, count: int) -> None:
    base, *held = drawn(13, count + 1)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    found = merged(paths, method="stock", base=write("base", w=base))["w"]
    expected = stock_oracle(wide(held), base.astype(np.float64))
    close(found, expected)
    assert np.abs(expected - wide(held).mean(axis=0)).max() > 1e-3


def test_stock_goes_its_own_way_in_every_tensor(write: Write) -> None:
    base = write("base", u=np.zeros(2), v=np.zeros(2))
    one = write("one", u=np.array([1.0, 0.0]), v=np.array([1.0, 0.0]))
    two = write("two", u=np.array([2.0, 0.0]), v=np.array([0.0, 1.0]))
    found = merged([one, two], method="stock", base=base)
    close(found["u"], np.array([1.5, 0.0]))  # they agree: all the way to the mean
    close(found["v"], np.array([0.0, 0.0]))  # nothing in common: stay at the base


@pytest.mark.usefixtures("stretch")
def test_stock_of_members_that_are_all_the_same(write: Write) -> None:
    base, one = drawn(14, 2)
    paths = [write(f"m{n}", w=one) for n in range(3)]
    close(merged(paths, method="stock", base=write("base", w=base))["w"], one.astype(np.float64))


@pytest.mark.usefixtures("stretch")
def test_stock_of_members_that_are_the_base(write: Write) -> None:
    base, one, two = drawn(15, 3)
    start = write("base", w=base)
    still = [write(f"s{n}", w=base) for n in range(2)]
    assert merged(still, method="stock", base=start)["w"].tolist() == base.tolist()
    # Who has not moved has no direction: the others' angle counts, of three members.
    moved = [write("one", w=one), write("two", w=two)]
    found = merged([*moved, still[0]], method="stock", base=start)["w"]
    away = (wide([one, two]) - base).reshape(2, -1)
    cosine = away[0] @ away[1] / np.linalg.norm(away[0]) / np.linalg.norm(away[1])
    t = 3 * cosine / (1 + 2 * cosine)
    close(found, t * wide([one, two, base]).mean(axis=0) + (1 - t) * base.astype(np.float64))


def test_stock_of_members_that_point_apart_stays_at_the_base(write: Write) -> None:
    base = write("base", w=np.array([1.0, 1.0]))
    one, two = write("one", w=np.array([2.0, 1.0])), write("two", w=np.array([0.0, 1.1]))
    assert merged([one, two], method="stock", base=base)["w"].tolist() == [1, 1]


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e-30, 1e30, 1e100, 1e200])
def test_stock_whatever_the_size_of_the_differences(write: Write, size: float) -> None:
    chance = np.random.default_rng(16)
    held = chance.normal(size=(3, 40)) + 1
    paths = [write(f"m{n}", w=one * size) for n, one in enumerate(held)]
    found = merged(paths, method="stock", base=write("base", w=np.zeros(40)))["w"]
    close(found / size, stock_oracle(held, np.zeros(40)))


# -- all of them


def settings(name: str, write: Write, arrays: Sequence[Tensors]) -> dict[str, Any]:
    """What each method needs beside members of such tensors."""
    if name in ("interpolate", "arithmetic", "ties", "dare", "stock"):
        return {"base": write("base", **{n: a * 0 + 1 for n, a in arrays[0].items()})}
    if name == "weighted":
        return {"weights": tuple(range(1, len(arrays) + 1))}
    if name == "fisher":
        every = [{n: a * 0 + k + 1 for n, a in one.items()} for k, one in enumerate(arrays)]
        return {"statistics_files": [str(write(f"f{k}", **s)) for k, s in enumerate(every)]}
    if name == "regmean":
        every = [
            {n: np.eye(a.shape[1], dtype="f4") for n, a in one.items() if a.ndim == 2}
            for one in arrays
        ]
        return {"statistics_files": [str(write(f"g{k}", **s)) for k, s in enumerate(every)]}
    return {}


def test_every_method_is_tested_here() -> None:
    told = Path(__file__).read_text()
    for name in METHODS.names():
        assert f"def test_{name}" in told or name == "arithmetic"


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("name", METHODS.names())
def test_odd_shapes(write: Write, name: str) -> None:
    shapes = {
        "scalar": (),
        "one": (1,),
        "none": (0,),
        "no rows": (0, 3),
        "no columns": (3, 0),
        "long": (1, 1, 29, 1),
        "matrix": (3, 5),
    }
    chance = np.random.default_rng(17)
    arrays = [
        {n: chance.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
        for _ in range(2)
    ]
    for one in arrays:
        one["nothing moved"] = np.ones(4, dtype=np.float32)
    how = settings(name, write, arrays)
    soup = diwa.merge([write(f"m{n}", **one) for n, one in enumerate(arrays)], method=name, **how)
    found = dict(soup.arrays())
    assert {n: a.shape for n, a in found.items()} == {n: a.shape for n, a in arrays[0].items()}
    assert all(isinstance(array, np.ndarray) for array in found.values())
    np.testing.assert_allclose(found["nothing moved"], np.ones(4), rtol=1e-7)
    assert np.isfinite(found["matrix"]).all()
    assert found["scalar"] != 0


@pytest.mark.parametrize("name", METHODS.names())
def test_members_that_are_all_alike_are_the_result(write: Write, name: str) -> None:
    """Also the base's: nobody goes anywhere."""
    (held,) = drawn(18, 1)
    arrays = [{"w": held, "b": held[0]}] * 2
    paths = [write(f"m{n}", **one) for n, one in enumerate(arrays)]
    how = settings(name, write, arrays)
    if "base" in how:
        how["base"] = paths[0]
    found = merged(paths, method=name, **how)
    np.testing.assert_allclose(found["w"], held, rtol=1e-12)
    np.testing.assert_allclose(found["b"], held[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"method": "weighted"}, "weighted needs weights; pass weights=…"),
        ({"method": "weighted", "weights": (1,)}, "weights: 1 for 2 members; give one per member"),
        ({"method": "weighted", "weights": (1, -1)}, "their sum is 0; give weights that"),
        ({"method": "weighted", "weights": (0, 0)}, "their sum is 0; "),
        ({"method": "weighted", "weights": (1, math.nan)}, "; give finite numbers"),
        ({"method": "weighted", "weights": (1, math.inf)}, "; give finite numbers"),
        ({"method": "weighted", "weights": (1e308, 1e308)}, "weights (1e+308, 1e+308)"),
        ({"method": "weighted", "weights": ("a", 1)}, "weights: Expected `float`"),
        ({"method": "uniform", "weights": (1, 1)}, "uniform has no setting 'weights'; it has none"),
        ({"method": "ties", "dense": 1, "base": "b"}, "no setting 'dense'; it has density, scale"),
        ({"method": "unifrom"}, "no merge method is called 'unifrom'; did you mean 'uniform'?"),
        ({"method": "uniform", "base": "b"}, "uniform works without differences to a base; leave"),
        ({"method": "interpolate"}, "interpolate works on differences to a base; pass --base FILE"),
        ({"method": "stock"}, "stock works on differences to a base; pass --base FILE"),
        ({"method": "interpolate", "alpha": math.nan, "base": "b"}, "alpha=nan; give a number"),
        ({"method": "arithmetic", "scale": math.inf, "base": "b"}, "scale=inf; give a finite"),
        ({"method": "ties", "scale": math.nan, "base": "b"}, "scale=nan; give a finite number"),
        ({"method": "ties", "density": 0, "base": "b"}, "density=0.0; give a number above 0"),
        ({"method": "ties", "density": 1.1, "base": "b"}, "density=1.1; "),
        ({"method": "ties", "density": math.nan, "base": "b"}, "density=nan; "),
        ({"method": "dare", "drop": 1, "base": "b"}, "drop=1.0; give a number from 0 to below 1"),
        ({"method": "dare", "drop": -0.1, "base": "b"}, "drop=-0.1; "),
        ({"method": "dare", "drop": math.nan, "base": "b"}, "drop=nan; "),
        ({"method": "dare", "seed": 0.5, "base": "b"}, "seed: Expected `int`"),
        ({"method": "dare", "scale": math.nan, "base": "b"}, "scale=nan; give a finite number"),
        ({"method": "fisher"}, "fisher needs statistics_files; "),
        ({"method": "fisher", "statistics_files": ("b",)}, "statistics_files: 1 for 2 members; "),
        ({"method": "fisher", "statistics_files": ("b",) * 2, "floor": 0}, "floor=0.0; give"),
        ({"method": "regmean", "statistics_files": ()}, "statistics_files: 0 for 2 members; "),
        ({"method": "regmean", "statistics_files": ("b",) * 2, "shrink": 1.1}, "shrink=1.1; "),
        ({"method": "slerp", "at": math.nan}, "at=nan; give a number"),
    ],
)
def test_settings_that_do_not_suit(write: Write, how: dict[str, Any], says: str) -> None:
    paths = [write(name, w=np.array([1], np.float32)) for name in ("a", "b")]
    if how.get("base"):
        how = {**how, "base": write("b", w=np.array([1], np.float32))}
    with pytest.raises(DiwaError) as caught:
        diwa.merge(paths, **how)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_methods_that_need_another_number_of_members(write: Write) -> None:
    paths = [write(name, w=np.array([1], np.float32)) for name in ("a", "b", "c")]
    with pytest.raises(SpecError, match="slerp of 3 members; give two"):
        diwa.merge(paths, method="slerp")
    for method in ("uniform", "slerp"):
        with pytest.raises(WeightsError, match=r"a\.safetensors: a single member, nothing"):
            diwa.merge(paths[:1], method=method)
    with pytest.raises(SpecError, match="stock of 1 member; give two or more"):
        diwa.merge(paths[:1], method="stock", base=paths[1])
    with pytest.raises(WeightsError, match="no members to merge; give at least one"):
        diwa.merge([])


def test_one_member_beside_another_file(write: Write) -> None:
    one, other = (write(name, w=np.array([float(n)])) for n, name in enumerate("ab"))
    mixed = diwa.merge([one], method="interpolate", base=other, alpha=0.25)
    assert dict(mixed.arrays())["w"].tolist() == [0.75]
    taken = diwa.merge([one], take_from=[(other, "w")])
    assert dict(taken.arrays())["w"].tolist() == [1.0]


class Median(Method, frozen=True, kw_only=True):
    """Each number's median."""

    name: ClassVar[str] = "median"
    shift: float = 0.0

    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        del known
        return np.median(np.stack(list(stretch)).astype(np.float64), axis=0) + self.shift


@pytest.mark.usefixtures("stretch")
def test_a_method_of_ones_own(write: Write, tmp_path: Path) -> None:
    held = drawn(19, 3)
    paths = [write(f"m{n}", w=array) for n, array in enumerate(held)]
    found = merged(paths, method=Median(shift=1))["w"]
    close(found, np.median(wide(held), axis=0) + 1)
    path = diwa.merge(paths, method=Median(shift=1)).save(tmp_path / "out.safetensors")
    said = diwa.Member.from_file(path).about["soup"]
    assert (said["blending"], said["settings"]) == ("median", {"shift": 1.0})
    with pytest.raises(SpecError, match="settings shift; give them to the method itself"):
        diwa.merge(paths, method=Median(), shift=2.0)
