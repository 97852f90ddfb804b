"""Hyperparameters are drawn as DomainBed draws them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import (
    PRESETS,
    SPACES,
    Between,
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


#: What algorithms add: our name, DomainBed's, its default and its draw for natural images.
OWN: dict[str, list[tuple[str, str, float, Draw]]] = {
    "Mixup": [("alpha", "mixup_alpha", 0.2, lambda r: 10 ** r.uniform(-1, 1))],
    "CORAL": [("gamma", "mmd_gamma", 1.0, lambda r: 10 ** r.uniform(-1, 1))],
    "MMD": [("gamma", "mmd_gamma", 1.0, lambda r: 10 ** r.uniform(-1, 1))],
    "IRM": [
        ("lambda", "irm_lambda", 1e2, lambda r: 10 ** r.uniform(-1, 5)),
        ("anneal", "irm_penalty_anneal_iters", 500, lambda r: int(10 ** r.uniform(0, 4))),
    ],
    "VREx": [
        ("lambda", "vrex_lambda", 1e1, lambda r: 10 ** r.uniform(-1, 5)),
        ("anneal", "vrex_penalty_anneal_iters", 500, lambda r: int(10 ** r.uniform(0, 4))),
    ],
    "GroupDRO": [("eta", "groupdro_eta", 1e-2, lambda r: 10 ** r.uniform(-3, -1))],
    "Fishr": [
        ("lambda", "lambda", 1000.0, lambda r: 10 ** r.uniform(1.0, 4.0)),
        ("anneal", "penalty_anneal_iters", 1500, lambda r: int(r.uniform(0.0, 5000.0))),
        ("ema", "ema", 0.95, lambda r: r.uniform(0.90, 0.99)),
    ],
    "DANN": [
        ("lambda", "lambda", 1.0, lambda r: 10 ** r.uniform(-2, 2)),
        ("lr_d", "lr_d", 5e-5, lambda r: 10 ** r.uniform(-5, -3.5)),
        ("weight_decay_d", "weight_decay_d", 0.0, lambda r: 10 ** r.uniform(-6, -2)),
        ("d_steps", "d_steps_per_g_step", 1, lambda r: int(2 ** r.uniform(0, 3))),
        ("grad_penalty", "grad_penalty", 0.0, lambda r: 10 ** r.uniform(-2, 1)),
        ("beta1", "beta1", 0.5, lambda r: r.choice([0.0, 0.5])),
        ("mlp_width", "mlp_width", 256, lambda r: int(2 ** r.uniform(6, 10))),
        ("mlp_depth", "mlp_depth", 3, lambda r: int(r.choice([3, 4, 5]))),
        ("mlp_dropout", "mlp_dropout", 0.0, lambda r: r.choice([0.0, 0.1, 0.5])),
    ],
    # Of the protocol's page, which names no default; the one of SAM's paper.
    "SAM": [("rho", "rho", 0.05, lambda r: r.choice([0.001, 0.002, 0.005, 0.01, 0.02, 0.05]))],
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


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS.names() if name != "DANN"])
@pytest.mark.parametrize(
    ("hparams_seed", "golden"),
    [(1, (3e-5, 1e-4, 0.5)), (2, (1e-5, 1e-6, 0.5)), (3, (3e-5, 1e-6, 0.0))],
)
def test_the_protocols_golden_values(
    name: str, preset: str, hparams_seed: int, golden: tuple[float, float, float]
) -> None:
    """Whatever the algorithm; but DANN, to which DomainBed gives rates of other names."""
    space = ALGORITHMS.get(name).space
    drawn = draw(space, "mild", hparams_seed=hparams_seed, trial=0, preset=preset)
    assert (drawn["lr"], drawn["weight_decay"], drawn["dropout"]) == golden
    assert drawn["batch_size"] == 32


@pytest.mark.parametrize("name", OWN)
def test_what_an_algorithm_adds_is_drawn_as_domainbed_does(name: str) -> None:
    space = ALGORITHMS.get(name).space
    assert set(space) == {*SHARED, *(ours for ours, *_ in OWN[name])}
    for ours, _, default, _ in OWN[name]:
        assert space[ours].default == default
        assert type(space[ours].default) is type(default)
    for seed in range(40):
        for which in ("mild", "extreme"):
            drawn = draw(space, which, hparams_seed=seed, trial=2)
            for ours, theirs, _, random_value in OWN[name]:
                chance = np.random.RandomState(seed_hash(seed_hash(seed, 2), theirs))
                assert drawn[ours] == random_value(chance)


def test_dann_draws_its_networks_rates_from_domainbeds_seeds() -> None:
    space = ALGORITHMS.get("DANN").space
    for seed in range(40):
        extreme = draw(space, "extreme", hparams_seed=seed, trial=1)
        released = draw(space, "mild", hparams_seed=seed, trial=1, preset="released")
        for ours, theirs, low, high in (
            ("lr", "lr_g", -5, -3.5),
            ("weight_decay", "weight_decay_g", -6, -2),
        ):
            chance = np.random.RandomState(seed_hash(seed_hash(seed, 1), theirs))
            assert extreme[ours] == 10 ** chance.uniform(low, high)
            assert released[ours] == (extreme[ours] if seed else space[ours].default)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("which", SPACES)
def test_draw_0_of_the_released_code_is_the_defaults(name: str, which: str) -> None:
    space = ALGORITHMS.get(name).space
    defaults = {hparam: held.default for hparam, held in space.items()}
    for trial in range(3):
        released = draw(space, which, hparams_seed=0, trial=trial, preset="released")
        assert released == defaults
    if which != "default":
        for preset in ("fixed", "paper"):
            assert draw(space, which, hparams_seed=0, trial=0, preset=preset) != defaults


@pytest.mark.parametrize("name", OWN)
def test_presets_differ_only_where_the_released_code_does(name: str) -> None:
    space = ALGORITHMS.get(name).space
    odd = {"Mixup": {"alpha"}, "DANN": {"lr", "weight_decay", "grad_penalty"}}.get(name, set())
    for seed in range(1, 30):
        fixed = draw(space, "mild", hparams_seed=seed, trial=0)
        assert draw(space, "mild", hparams_seed=seed, trial=0, preset="paper") == fixed
        released = draw(space, "mild", hparams_seed=seed, trial=0, preset="released")
        assert {hparam for hparam in space if released[hparam] != fixed[hparam]} == odd


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        draw(SHARED, "mild", hparams_seed=0, trial=0, preset="mended")
    assert str(caught.value) == "preset 'mended'; choose one of fixed, paper, released"


@pytest.mark.parametrize("name", ALGORITHMS.names())
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("which", SPACES)
def test_every_draw_is_allowed(name: str, which: str, preset: str) -> None:
    space = ALGORITHMS.get(name).space
    for seed in range(30):
        drawn = draw(space, which, hparams_seed=seed, trial=0, preset=preset)
        assert checked(space, drawn, algorithm=name) == drawn
        assert {type(value) for value in drawn.values()} <= {int, float}
        assert all(type(drawn[hparam]) is int for hparam, held in space.items() if held.whole)


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
        (Between(0.9, 0.99), lambda r: r.uniform(0.9, 0.99)),
        (Between(0, 5000, whole=True), lambda r: int(r.uniform(0, 5000))),
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
