"""Number formats: one rounding, to the nearest."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diwa.weights.kinds import KINDS, narrowed

NARROW = ("BF16", "F8_E4M3", "F8_E5M2", "F16")


def every(code: str) -> list[float]:
    """All finite numbers of a kind, in order, 0 once."""
    kind = KINDS[code]
    bits = np.arange(2 ** (8 * kind.bytes), dtype=f"uint{8 * kind.bytes}")
    found = bits.view(kind.numpy()).astype(np.float32)
    return sorted({float(number) for number in found if math.isfinite(number)})


NUMBERS = {code: every(code) for code in NARROW}


@settings(deadline=None, max_examples=300)
@given(
    code=st.sampled_from(NARROW),
    place=st.integers(0, 2**16),
    way=st.floats(0, 1) | st.sampled_from([0.5, 0.5 + 2**-30, 0.5 - 2**-30, 0.5 + 2**-45]),
)
@example("BF16", NUMBERS["BF16"].index(16.0), 0.5 + 2**-35)
def test_to_the_nearest(code: str, place: int, way: float) -> None:
    known = NUMBERS[code]
    low = known[place % (len(known) - 1)]
    high = known[place % (len(known) - 1) + 1]
    number = low + (high - low) * way
    found = float(narrowed(np.array([number]), KINDS[code])[0])
    apart = [abs(Fraction(number) - Fraction(one)) for one in (low, high)]
    if apart[0] != apart[1]:
        assert found == (low if apart[0] < apart[1] else high)
    else:
        assert found in (low, high)
        bits = np.array([found]).astype(KINDS[code].numpy()).view(f"u{KINDS[code].bytes}")
        assert bits[0] % 2 == 0, "half-way, to the even one"


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("code", NARROW)
def test_what_is_not_finite_or_too_large(code: str) -> None:
    held = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, -1e-300, 0.0, -0.0])
    found = narrowed(held, KINDS[code])
    with np.errstate(over="ignore", invalid="ignore"):
        plain = held.astype(np.float32).astype(KINDS[code].numpy())
    assert found.tobytes() == plain.tobytes()


def test_what_is_exact_stays() -> None:
    for code in NARROW:
        numbers = np.array(NUMBERS[code])
        assert narrowed(numbers, KINDS[code]).astype(float).tolist() == numbers.tolist()
        assert narrowed(numbers.astype(np.float32), KINDS[code]).astype(float).tolist() == [
            *numbers
        ]
