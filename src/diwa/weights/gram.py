"""Products of matrices and what follows from them, the same bits however many threads there are.

A BLAS shares large products out among its threads, and the order of the sums then depends on how
many there are. It does not share out small ones, so large ones are put together from those here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Multiplications per piece. Below 2**18, OpenBLAS does not share a product out among threads.
_PIECE = 2**18
_LONGEST = 4096
#: The sides of the blocks that matrices are cut into, whose products are far smaller than that.
_BLOCK = 32
#: Powers of two to which numbers are brought near 1; itself and its inverse are finite.
_FAR = 1000


def gram(rows: Floats) -> Floats:
    """Every row times every row.

    Example:
        >>> gram(np.array([[1.0, 2.0], [0.0, 3.0]])).tolist()
        [[5.0, 6.0], [6.0, 9.0]]
    """
    count, length = rows.shape
    piece = min(max(_PIECE // max(count * count, 1), 4), _LONGEST)
    whole = length // piece * piece
    total = rows[:, whole:] @ rows[:, whole:].T
    if whole:
        # As pieces, rows, numbers: a view, so nothing is copied.
        pieces = rows[:, :whole].reshape(count, -1, piece).transpose(1, 0, 2)
        total += np.matmul(pieces, pieces.transpose(0, 2, 1)).sum(axis=0)
    return total


def cosines(pieces: Iterable[Floats]) -> Floats:
    """The cosine between every two of several long vectors, whatever their lengths.

    Args:
        pieces: parts of the vectors, as rows.

    Returns:
        NaN where a vector has no direction: it is zero, or not finite.

    Example:
        >>> cosines([np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])]).tolist()
        [[1.0, 0.0, nan], [0.0, 1.0, nan], [nan, nan, nan]]
    """
    total: Floats | int = 0
    powers: NDArray | int = -_FAR
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for rows in pieces:
            # Divided by a power of two, which costs no digit: no square is too large or too small.
            largest = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))
            own = np.where(largest > 0, np.clip(np.frexp(largest)[1], -_FAR, _FAR), -_FAR)
            found = gram(rows * np.ldexp(1.0, -own)[:, None])
            highest = np.maximum(powers, own)
            total = _multiplied(total, powers - highest) + _multiplied(found, own - highest)
            powers = highest
        lengths = np.sqrt(np.diagonal(total))
        return total / np.outer(lengths, lengths)


def _multiplied(products: Floats | int, powers: NDArray) -> Floats:
    """Inner products, of vectors multiplied by powers of two."""
    return np.ldexp(products, powers[:, None] + powers[None, :])


def product(one: NDArray, other: NDArray) -> Floats:
    """The product of two matrices, in float64 whatever they are in.

    Example:
        >>> product(np.array([[1, 2]]), np.array([[3.0], [4.0]])).tolist()
        [[11.0]]
    """
    rows, columns = len(one), other.shape[1]
    down, across = -(-rows // _BLOCK), -(-columns // _BLOCK)
    total = np.zeros((rows, columns))
    for start in range(0, len(other), _BLOCK):
        part = slice(start, start + _BLOCK)
        count = len(other[part])
        left = np.zeros((down * _BLOCK, count))
        left[:rows] = one[:, part]
        right = np.zeros((count, across * _BLOCK))
        right[:, :columns] = other[part]
        found = np.matmul(
            left.reshape(down, 1, _BLOCK, count),
            right.reshape(count, across, _BLOCK).transpose(1, 0, 2),
        )
        total += found.transpose(0, 2, 1, 3).reshape(len(left), right.shape[1])[:rows, :columns]
    return total


def eliminated(matrix: Floats) -> Floats:
    """A positive definite matrix as the product of a lower and an upper one, in its own place.

    Nothing is exchanged, which such a matrix does not need. The lower one has a diagonal of ones,
    which is not stored.

    Raises:
        LinAlgError: if it is not positive definite, to all digits that there are.

    Example:
        >>> eliminated(np.array([[4.0, 2.0], [2.0, 3.0]])).tolist()
        [[4.0, 2.0], [0.5, 2.0]]
    """
    size = len(matrix)
    least = matrix.diagonal() * (size * np.finfo(np.float64).eps)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        matrix[start:, start:stop] -= product(matrix[start:, :start], matrix[:start, start:stop])
        matrix[start:stop, stop:] -= product(matrix[start:stop, :start], matrix[:start, stop:])
        for k in range(start, stop):
            if not matrix[k, k] > least[k]:
                raise np.linalg.LinAlgError
            matrix[k + 1 :, k] /= matrix[k, k]
            matrix[k + 1 :, k + 1 : stop] -= matrix[k + 1 :, k, None] * matrix[k, k + 1 : stop]
            matrix[k + 1 : stop, stop:] -= matrix[k + 1 : stop, k, None] * matrix[k, stop:]
    return matrix


def divided(rows: Floats, factors: Floats) -> Floats:
    """Rows times the inverse of a matrix, in their own place.

    Args:
        rows: to be replaced.
        factors: what `eliminated` made of the matrix.

    Example:
        >>> divided(np.array([[8.0, 8.0]]), eliminated(np.array([[4.0, 2.0], [2.0, 3.0]]))).tolist()
        [[1.0, 2.0]]
    """
    size = len(factors)
    blocks = [(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)]
    for start, stop in blocks:
        for k in range(start, stop):
            rows[:, k] /= factors[k, k]
            rows[:, k + 1 : stop] -= rows[:, k, None] * factors[k, k + 1 : stop]
        rows[:, stop:] -= product(rows[:, start:stop], factors[start:stop, stop:])
    for start, stop in reversed(blocks):
        for k in reversed(range(start, stop)):
            rows[:, start:k] -= rows[:, k, None] * factors[k, start:k]
        rows[:, :start] -= product(rows[:, start:stop], factors[start:stop, :start])
    return rows
