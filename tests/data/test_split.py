"""Splits: DomainBed's, to the index, and a digest that names one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diwa.data.split import Split, split
from diwa.seeding import seed_hash


def domainbed(count: int, trial: int, domain: int, holdout: float) -> tuple[list[int], list[int]]:
    """DomainBed's `split_dataset`, written naively: what is trained on, what validates."""
    keys = list(range(count))
    np.random.RandomState(seed_hash(trial, domain)).shuffle(keys)
    n = int(count * holdout)
    return keys[n:], keys[:n]


counts = st.integers(0, 300)
small = st.integers(0, 5)


@given(counts, small, small, st.sampled_from([0.2, 0.1, 0.5, 0.25]))
def test_a_split_is_domainbeds(count: int, trial: int, domain: int, holdout: float) -> None:
    made = split(count, trial=trial, domain=domain, holdout=holdout)
    expected = domainbed(count, trial, domain, holdout)
    assert (made.inner.tolist(), made.outer.tolist()) == expected


@given(counts, small, small)
def test_every_image_is_in_just_one_part(count: int, trial: int, domain: int) -> None:
    made = split(count, trial=trial, domain=domain)
    assert sorted([*made.inner, *made.outer]) == list(range(count))
    assert len(made.outer) == count // 5


def test_golden_values() -> None:
    # Of `seed_hash(0, 0)` = 894182419, as DomainBed draws them.
    made = split(10, trial=0, domain=0)
    assert made.outer.tolist() == [2, 3]
    assert made.inner.tolist() == [8, 1, 4, 5, 0, 9, 6, 7]
    assert split(2048, trial=0, domain=0).outer[:5].tolist() == [548, 677, 1997, 977, 1553]
    assert split(2048, trial=1, domain=2).outer[:5].tolist() == [1770, 56, 1172, 1363, 1742]


def test_trials_and_domains_are_split_apart() -> None:
    digests = {split(50, trial=t, domain=d).digest for t in range(4) for d in range(4)}
    assert len(digests) == 16


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_few_images_all_train(count: int) -> None:
    made = split(count, trial=0, domain=0)
    assert len(made.outer) == 0
    assert len(made.inner) == count


def test_the_digest_names_just_this_split() -> None:
    def digest(inner: list[int], outer: list[int], dtype: str = "int64") -> str:
        return Split(np.array(inner, dtype), np.array(outer, dtype)).digest

    base = digest([1, 2, 3], [4])
    assert base == digest([1, 2, 3], [4], "int32")
    others = [([1, 2], [3, 4]), ([2, 1, 3], [4]), ([4], [1, 2, 3]), ([1, 2, 3], [5]), ([], [])]
    assert len({base, *(digest(*other) for other in others)}) == len(others) + 1


def test_the_digest_stays_what_it_is() -> None:
    # Members are matched by it across machines and versions.
    assert split(10, trial=0, domain=0).digest == "b5cbfc9e341c90db"


def test_a_split_is_frozen() -> None:
    made = split(10, trial=0, domain=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.inner = made.outer  # type: ignore[misc]
