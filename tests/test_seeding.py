"""Seeds: the protocol's golden values, and streams that nothing else disturbs."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diwa.seeding import random_state, run_seed, seed_hash

parts = st.one_of(st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3))


@pytest.mark.parametrize(
    ("args", "golden"),
    [((0, 0), 894182419), ((0, 1), 1514274641), ((1, 0), 785910682)],
)
def test_seed_hash_has_the_protocols_values(args: tuple[int, int], golden: int) -> None:
    assert seed_hash(*args) == golden


@pytest.mark.parametrize(("unseen", "golden"), [(0, 1453615812), ([0], 851163946)])
def test_run_seed_has_the_protocols_values(unseen: int | list[int], golden: int) -> None:
    assert run_seed("OfficeHome", "ERM", unseen, 0, 0) == golden


@given(st.lists(parts, max_size=5))
def test_seed_hash_is_md5_of_the_tuples_text(args: list[object]) -> None:
    # One argument is a tuple of one, comma and all.
    digest = hashlib.md5(str(tuple(args)).encode()).digest()
    assert seed_hash(*args) == int.from_bytes(digest, "big") % 2**31


def test_every_argument_of_a_runs_seed_counts() -> None:
    base = ("PACS", "ERM", [0], 0, 0)
    other = ("VLCS", "SAM", [1], 1, 1)
    seeds = {
        run_seed(*base[:at], other[at], *base[at + 1 :])  # type: ignore[arg-type]
        for at in range(5)
    }
    assert len({*seeds, run_seed(*base)}) == 6


def test_random_state_is_numpys_frozen_generator() -> None:
    # `RandomState` gives the same numbers in every release; a `Generator` would not.
    assert random_state(0, 0).randint(1000, size=5).tolist() == [396, 631, 22, 415, 88]


@given(st.integers(), st.text(max_size=8), st.integers(0, 9))
def test_random_state_is_seeded_with_the_hash(seed: int, purpose: str, step: int) -> None:
    expected = np.random.RandomState(seed_hash(seed, purpose, step)).uniform(size=3)
    assert random_state(seed, purpose, step).uniform(size=3).tolist() == expected.tolist()


def test_streams_are_counted_by_purpose_and_step() -> None:
    drawn = {
        tuple(random_state(7, purpose, domain, step).randint(2**30, size=2).tolist())
        for purpose in ("batch", "augment")
        for domain in range(3)
        for step in range(50)
    }
    assert len(drawn) == 2 * 3 * 50


def test_numpys_global_generator_is_left_alone() -> None:
    np.random.seed(5)
    expected = np.random.uniform()
    np.random.seed(5)
    random_state(1, "x").uniform(size=100)
    assert np.random.uniform() == expected
