"""Hyperparameters are drawn as DomainBed draws them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from diwa.algorithms.erm import ERM, SHARED
from diwa.algorithms.hparams import (
    SPACES,
    Choice,
    Distribution,
    Hyperparameter,
    PowerOf,
    checked,
    draw,
)
from diwa.errors import SpecError
from diwa.seeding import seed_hash

Draw = Callable[[np.random.RandomState], float]

#: The released code's draws for natural images, mild and DomainBed's own.
DOMAINBED: dict[str, dict[str, Draw]] = {
    "mild": {
        "lr": lambda r: r.choice([1e-5, 3e-5, 5e-5]),
        "batch_size": lambda r: 32,
        "resnet_dropout": lambda r: r.choice([0.0, 0.1, 0.5]),
        "weight_decay": lambda r: r.choice([1e-4, 1e-6]),
    },
    "extreme": {
        "lr": lambda r: 10 ** r.uniform(-5, -3.5),
        "batch_size": lambda r: int(2 ** r.uniform(3, 5.5)),
        "resnet_dropout": lambda r: r.choice([0.0, 0.1, 0.5]),
        "weight_decay": lambda r: 10 ** r.uniform(-6, -2),
    },
}


def domainbed(which: str, hparams_seed: int, trial: int) -> dict[str, float]:
    """DomainBed's `_hparam` for each, seeded with the hash of the run's two numbers."""
    random_seed = seed_hash(hparams_seed, trial)
    drawn = {}
    for name, random_value in DOMAINBED[which].items():
        state = np.random.RandomState(seed_hash(random_seed, name))
        drawn[name.replace("resnet_", "")] = random_value(state)
    return drawn


@pytest.mark.parametrize("which", ["mild", "extreme"])
def test_draws_are_domainbeds(which: str) -> None:
    for hparams_seed in range(60):
        for trial in range(3):
            got = draw(SHARED, which, hparams_seed=hparams_seed, trial=trial)
            assert got == domainbed(which, hparams_seed, trial)


@pytest.mark.parametrize(
    ("hparams_seed", "golden"),
    [(1, (3e-5, 1e-4, 0.5)), (2, (1e-5, 1e-6, 0.5)), (3, (3e-5, 1e-6, 0.0))],
)
def test_the_protocols_golden_values(hparams_seed: int, golden: tuple[float, float, float]) -> None:
    drawn = draw(ERM.space, "mild", hparams_seed=hparams_seed, trial=0)
    assert (drawn["lr"], drawn["weight_decay"], drawn["dropout"]) == golden
    assert drawn["batch_size"] == 32


def test_the_defaults_are_the_protocols() -> None:
    for seed in range(3):
        assert draw(SHARED, "default", hparams_seed=seed, trial=seed) == {
            "lr": 5e-5,
            "weight_decay": 0.0,
            "dropout": 0.0,
            "batch_size": 32,
        }


def test_short_runs_learn_faster_and_are_mild_otherwise() -> None:
    rates = set()
    for seed in range(30):
        short = draw(SHARED, "short", hparams_seed=seed, trial=0)
        mild = draw(SHARED, "mild", hparams_seed=seed, trial=0)
        rates.add(short.pop("lr"))
        mild.pop("lr")
        assert short == mild
    assert rates == {2e-4, 4e-4, 6e-4}


@pytest.mark.parametrize("which", SPACES)
def test_values_are_plain_numbers(which: str) -> None:
    # NumPy's would break JSON and `torch.load(weights_only=True)`.
    for seed in range(20):
        drawn = draw(SHARED, which, hparams_seed=seed, trial=0)
        assert {type(value) for value in drawn.values()} <= {int, float}
        assert type(drawn["batch_size"]) is int
        assert json.loads(json.dumps(drawn)) == drawn
        assert checked(SHARED, drawn, algorithm="ERM") == drawn


def test_extreme_values_stay_in_their_ranges_and_fill_them() -> None:
    drawn = [draw(SHARED, "extreme", hparams_seed=seed, trial=0) for seed in range(300)]
    for name, low, high in (("lr", -5, -3.5), ("weight_decay", -6, -2)):
        powers = np.log10([values[name] for values in drawn])
        assert low <= powers.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < powers.max() <= high
    sizes = [values["batch_size"] for values in drawn]
    assert (min(sizes), max(sizes)) == (8, 45)  # 2**5.5 is 45.25


def test_one_hyperparameter_does_not_disturb_another() -> None:
    # Each has a generator of its own: neither order nor company counts.
    full = draw(SHARED, "extreme", hparams_seed=5, trial=1)
    for name, held in SHARED.items():
        assert draw({name: held}, "extreme", hparams_seed=5, trial=1) == {name: full[name]}
    turned = dict(reversed(SHARED.items()))
    assert draw(turned, "extreme", hparams_seed=5, trial=1) == full


def test_the_seed_is_that_of_domainbeds_name() -> None:
    choice = Choice(tuple(range(1000)))
    named = Hyperparameter(0, choice, seed_name="resnet_dropout")
    plain = Hyperparameter(0, choice)
    drawn = draw({"dropout": named, "resnet_dropout": plain}, "mild", hparams_seed=3, trial=0)
    assert drawn["dropout"] == drawn["resnet_dropout"]
    assert draw({"dropout": plain}, "mild", hparams_seed=3, trial=0) != {
        "dropout": drawn["dropout"]
    }


def test_trials_and_draws_differ() -> None:
    drawn = {
        draw(SHARED, "extreme", hparams_seed=seed, trial=trial)["lr"]
        for seed in range(5)
        for trial in range(5)
    }
    assert len(drawn) == 25


def test_a_space_without_a_special_distribution_is_mild() -> None:
    space = {"rho": Hyperparameter(0.05, Choice((0.01, 0.02, 0.05)))}
    mild = draw(space, "mild", hparams_seed=1, trial=0)
    assert draw(space, "extreme", hparams_seed=1, trial=0) == mild
    assert draw(space, "short", hparams_seed=1, trial=0) == mild


def test_an_unknown_space_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        draw(SHARED, "wild", hparams_seed=0, trial=0)
    assert str(caught.value) == "space 'wild'; choose one of mild, extreme, short, default"


@pytest.mark.parametrize(
    ("source", "naive"),
    [
        (Choice((3.0, 1.0, 2.0)), lambda r: r.choice([3.0, 1.0, 2.0])),
        (PowerOf(10, -1, 1), lambda r: 10 ** r.uniform(-1, 1)),
        (PowerOf(10, 0, 4, whole=True), lambda r: int(10 ** r.uniform(0, 4))),
        (PowerOf(2, 3, 5.5), lambda r: 2 ** r.uniform(3, 5.5)),
    ],
)
def test_a_distribution_draws_what_numpy_draws(source: Distribution, naive: Draw) -> None:
    for seed in range(50):
        got = source.draw(np.random.RandomState(seed))
        assert got == naive(np.random.RandomState(seed))
        assert type(got) in (int, float)


class TestChecked:
    def test_what_is_missing_gets_its_default_in_the_spaces_order(self) -> None:
        got = checked(SHARED, {"dropout": 0.1, "lr": 1e-3}, algorithm="ERM")
        assert got == {"lr": 1e-3, "weight_decay": 0.0, "dropout": 0.1, "batch_size": 32}
        assert list(got) == list(SHARED)

    def test_a_name_that_the_algorithm_does_not_have(self) -> None:
        with pytest.raises(SpecError) as caught:
            checked(SHARED, {"lr": 1e-3, "momentum": 0.9}, algorithm="ERM")
        assert str(caught.value) == (
            "ERM has no hyperparameter 'momentum'; it has lr, weight_decay, dropout, batch_size"
        )

    @pytest.mark.parametrize(
        "value", ["1e-3", None, True, [1e-3], float("nan"), float("inf"), np.float64(1e-3)]
    )
    def test_a_value_that_is_no_number_is_named(self, value: object) -> None:
        with pytest.raises(SpecError) as caught:
            checked(SHARED, {"lr": value}, algorithm="ERM")
        assert str(caught.value) == f"ERM: lr={value!r}; give a finite number"
