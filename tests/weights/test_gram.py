"""Inner products against a plain matrix product."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.weights.gram import cosines, divided, eliminated, gram, product


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 20_000), st.integers(0, 2**31))
def test_against_a_plain_product(count: int, length: int, seed: int) -> None:
    rows = np.random.RandomState(seed).standard_normal((count, length))
    np.testing.assert_allclose(gram(rows), rows @ rows.T, rtol=1e-12, atol=1e-10)


def test_a_part_of_a_larger_array() -> None:
    rows = np.random.RandomState(0).standard_normal((3, 10_000))
    np.testing.assert_allclose(gram(rows[:, :9000]), rows[:, :9000] @ rows[:, :9000].T, rtol=1e-12)


SIDES = st.integers(0, 75)


@settings(deadline=None)
@given(SIDES, SIDES, SIDES, st.sampled_from([np.float16, np.float32, np.float64]))
def test_a_product(rows: int, inner: int, columns: int, kind: type) -> None:
    chance = np.random.RandomState(rows)
    one = chance.standard_normal((rows, inner)).astype(kind)
    other = chance.standard_normal((inner, columns)).astype(kind)
    found = product(one, other)
    assert (found.dtype, found.shape) == (np.float64, (rows, columns))
    expected = one.astype(np.float64) @ other.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(SIDES, SIDES, st.floats(0, 3))
def test_a_quotient(rows: int, size: int, spread: float) -> None:
    """With inputs of differing sizes, which `np.linalg.solve` is no better at."""
    chance = np.random.RandomState(rows)
    inputs = chance.standard_normal((2 * size + 3, size)) * 10 ** chance.uniform(0, spread, size)
    matrix = inputs.T @ inputs
    expected = chance.standard_normal((rows, size))
    found = divided(expected @ matrix, eliminated(matrix.copy()))
    slack = 1e-15 * np.linalg.cond(matrix) if size else 0
    np.testing.assert_allclose(found, expected, atol=slack + 1e-12)


@pytest.mark.parametrize("rank", [0, 1, 39])
def test_a_matrix_that_cannot_be_divided_by(rank: int) -> None:
    inputs = np.random.RandomState(0).standard_normal((rank, 40))
    with pytest.raises(np.linalg.LinAlgError):
        eliminated(inputs.T @ inputs)
    with pytest.raises(np.linalg.LinAlgError):
        eliminated(np.full((3, 3), np.nan))


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_cosines_whatever_the_sizes(size: float) -> None:
    rows = np.random.RandomState(0).standard_normal((4, 1000))
    rows[:, 300:600] = 0
    rows[1] *= size
    rows[2, :300] *= 1e-9
    expected = rows / np.abs(rows).max(axis=1)[:, None]
    expected = expected @ expected.T
    expected /= np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    for cut in (1, 299, 300, 450, 999):
        found = cosines([rows[:, :cut], rows[:, cut:]])
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
        assert (found == found.T).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_cosines_where_there_is_no_direction(wrong: float) -> None:
    rows = np.random.RandomState(0).standard_normal((4, 100))
    rows[1] = 0
    rows[3, 70] = wrong
    found = cosines([rows[:, :50], rows[:, 50:]])
    known = np.isfinite(found)
    assert known.tolist() == np.outer([1, 0, 1, 0], [1, 0, 1, 0]).astype(bool).tolist()


@pytest.mark.parametrize("count", [3, 21, 128])
def test_the_library_s_threads_change_no_bit(count: int) -> None:
    code = (
        "import hashlib, numpy as np; from diwa.weights.gram import gram;"
        f"rows = np.random.RandomState(0).standard_normal(({count}, 30_000));"
        "print(hashlib.sha256(gram(rows).tobytes()).hexdigest())"
    )
    assert len(_said(code)) == 1


def test_nor_do_they_in_larger_products() -> None:
    code = (
        "import hashlib, numpy as np; from diwa.weights.gram import *;"
        "rows = np.random.RandomState(0).standard_normal((700, 400));"
        "found = divided(rows[:90].copy(), eliminated(product(rows.T, rows)));"
        "print(hashlib.sha256(found.tobytes()).hexdigest())"
    )
    assert len(_said(code)) == 1


def _said(code: str) -> set[bytes]:
    """What a program prints, by threads of the library."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **dict.fromkeys(names, threads)},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "5")
    }
