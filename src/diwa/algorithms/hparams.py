"""Hyperparameters: what they are, how they are distributed, how one run's are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from diwa.errors import SpecError
from diwa.seeding import random_state, seed_hash

#: Values by name, as a run's specification holds them.
Values = Mapping[str, float]


class Distribution(Protocol):
    """Where a hyperparameter's values come from."""

    def draw(self, chance: np.random.RandomState) -> float:
        """One value."""
        ...


@dataclass(frozen=True)
class Choice:
    """One of several values, all equally likely.

    Example:
        >>> Choice((1e-5, 3e-5, 5e-5)).draw(np.random.RandomState(0))
        1e-05
    """

    values: Sequence[float]

    def draw(self, chance: np.random.RandomState) -> float:
        """One value."""
        # The draw of DomainBed's code, so that the same seeds give the same values.
        return self.values[int(chance.choice(len(self.values)))]


@dataclass(frozen=True)
class PowerOf:
    """`base` to a power that is uniform between `low` and `high`, cut to a whole number or not."""

    base: float
    low: float
    high: float
    whole: bool = False

    def draw(self, chance: np.random.RandomState) -> float:
        """One value."""
        value = self.base ** float(chance.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Between:
    """Uniform between `low` and `high`, cut to a whole number or not."""

    low: float
    high: float
    whole: bool = False

    def draw(self, chance: np.random.RandomState) -> float:
        """One value."""
        value = float(chance.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter of an algorithm.

    Args:
        default: its value when nothing is drawn.
        mild: its distribution in the paper's mild search, from which members average well.
        extreme: its distribution in DomainBed's own search; that of `mild` if there is no other.
        short: its distribution for runs of a few hundred steps; that of `mild` if there is none.
        released: its distribution in the released code, where that differs from `mild`.
        seed_name: what DomainBed calls it; the draw is seeded with that.
        low: the least value it may have.
        high: the largest.
        whole: whether it counts something.
    """

    default: float
    mild: Distribution
    extreme: Distribution | None = None
    short: Distribution | None = None
    released: Distribution | None = None
    seed_name: str | None = None
    low: float = 0.0
    high: float = float("inf")
    whole: bool = False

    def check(self, name: str, value: float) -> float:
        """The value, if it may have it.

        Raises:
            SpecError: if it is out of range, or no whole number where one is needed.
        """
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            kind = "a whole number" if self.whole else "a number"
            limit = f" to {self.high:g}" if math.isfinite(self.high) else " up"
            raise SpecError(
                f"hyperparameter {name}={value:g}", remedy=f"give {kind} from {self.low:g}{limit}"
            )
        return int(value) if self.whole else value


Space = Mapping[str, Hyperparameter]
SPACES = ("mild", "extreme", "short", "default")
PRESETS = ("fixed", "paper", "released")


def draw(
    space: Space, which: str, *, hparams_seed: int, trial: int, preset: str = "fixed"
) -> dict[str, float]:
    """The hyperparameters of one run, each from a generator of its own, as the protocol says.

    Args:
        space: the algorithm's hyperparameters.
        which: "mild", "extreme", "short" or "default".
        hparams_seed: the number of the draw.
        trial: the number of the trial.
        preset: "fixed", "paper" or "released". In the last one, draw 0 is the defaults, and
            `released` distributions stand in for `mild` ones.

    Raises:
        SpecError: for an unknown space or preset.

    Example:
        >>> from diwa.algorithms.erm import ERM
        >>> draw(ERM.space, "mild", hparams_seed=1, trial=0)
        {'lr': 3e-05, 'weight_decay': 0.0001, 'dropout': 0.5, 'batch_size': 32}
    """
    if which not in SPACES:
        raise SpecError(f"space {which!r}", remedy=f"choose one of {', '.join(SPACES)}")
    if preset not in PRESETS:
        raise SpecError(f"preset {preset!r}", remedy=f"choose one of {', '.join(PRESETS)}")
    released = preset == "released"
    if which == "default" or (released and hparams_seed == 0):
        return {name: held.default for name, held in space.items()}
    seed = seed_hash(hparams_seed, trial)
    drawn = {}
    for name, held in space.items():
        special = {"extreme": held.extreme, "short": held.short}.get(which)
        source = special or (released and held.released) or held.mild
        drawn[name] = source.draw(random_state(seed, held.seed_name or name))
    return drawn


def checked(space: Space, values: Mapping[str, Any], *, algorithm: str) -> dict[str, float]:
    """The values, completed with the defaults.

    Raises:
        SpecError: for a name the algorithm does not have, or a value it can't have.
    """
    unknown = [name for name in values if name not in space]
    if unknown:
        raise SpecError(
            f"{algorithm} has no hyperparameter {unknown[0]!r}", remedy=f"it has {', '.join(space)}"
        )
    return {
        name: held.check(name, _number(algorithm, name, values.get(name, held.default)))
        for name, held in space.items()
    }


def _number(algorithm: str, name: str, value: Any) -> float:
    # `True` is an int, and a NumPy scalar a float, which neither JSON nor torch.load takes.
    if type(value) not in (int, float) or not math.isfinite(value):
        raise SpecError(f"{algorithm}: {name}={value!r}", remedy="give a finite number")
    return value
