"""What tables call methods and data sets, and in which order they come."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from diwa.runs.domainbed import ALGORITHMS, ENVIRONMENTS
from diwa.runs.presets import plain_name


class Name(NamedTuple):
    """How a method is shown.

    Args:
        algorithm: the paper's name; empty for what is called as its runs' objective.
        selection: how the weights were chosen; `M` stands for the number of runs.
        short: as the heading of a column.
    """

    algorithm: str
    selection: str
    short: str


#: In the order of the paper's rows. A method that is not here comes after those that are, under
#: its own name.
_KNOWN: dict[str, Name] = {
    "mean": Name("", "mean of M runs", "mean"),
    "erm": Name("", "N/A", "No WA"),
    "swad": Name("SWAD", "overfit-aware", "SWAD"),
    "ma": Name("MA", "uniform", "MA"),
    "eoa": Name("EoA", "uniform: M", "EoA"),
    "dens": Name("DENS", "uniform: M", "DENS"),
    "ens": Name("ENS", "uniform: M", "ENS"),
    "ens-dagger": Name("ENS†", "uniform: M", "ENS†"),
    "diwa-restricted": Name("DiWA", "restricted: M ≤", "DiWA restricted"),
    "diwa-uniform": Name("DiWA", "uniform: M", "DiWA"),
    "diwa-dagger": Name("DiWA†", "uniform: M", "DiWA†"),
    "ens-diwa": Name("ENS of DiWAs", "uniform: M", "ENS of DiWAs"),
}
_PLAIN = "ERM"
_INITS = ("Random", "LP")
#: How an initialisation is called of which every run has one of its own.
OWN = "{}, own"


def is_pooled(method: str) -> bool:
    """Whether a method takes the runs of all trials together, and so has one result for them."""
    return "dagger" in method


def named(method: str, algorithm: str, runs: Iterable[int]) -> tuple[str, str]:
    """What the columns "Algorithm" and "Weight selection" say.

    Args:
        method: the key of a result.
        algorithm: what its runs minimised.
        runs: how many of them there were, in each trial.

    Example:
        >>> named("diwa-uniform", "ERM", [20, 20, 18]), named("erm", "Mixup", [20])
        (('DiWA', 'uniform: M = 18-20'), ('Mixup', 'N/A'))
    """
    known = _KNOWN.get(method, Name(method, "", method))
    shown = known.algorithm or algorithm
    if known.algorithm and algorithm != _PLAIN:
        shown = f"{shown} ({algorithm})"
    return shown, _counted(known.selection, sorted(set(runs)))


def _counted(selection: str, counts: list[int]) -> str:
    if not counts or "M" not in selection:
        return selection
    number = spread(counts)
    if selection.endswith("≤"):
        return f"{selection} {counts[-1]}"
    if selection.endswith("M"):
        return f"{selection} = {number}"
    return selection.replace("M", number)


def spread(counts: list[int]) -> str:
    """A number, or the least and the largest of several.

    Example:
        >>> spread([20]), spread([18, 20])
        ('20', '18-20')
    """
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}-{high}"


def short(method: str) -> str:
    """A method as the heading of a column."""
    return _KNOWN[method].short if method in _KNOWN else method


def method_rank(method: str) -> tuple[int, str]:
    """Where a method stands among the others."""
    order = list(_KNOWN)
    return (order.index(method), "") if method in _KNOWN else (len(order), method)


def algorithm_rank(algorithm: str) -> tuple[int, int, str]:
    """Where an objective stands: those of one algorithm as DomainBed has them, then mixtures."""
    parts = algorithm.split("/")
    place = ALGORITHMS.index(parts[0]) if parts[0] in ALGORITHMS else len(ALGORITHMS)
    return len(parts), place, algorithm


def init_rank(init: str) -> tuple[int, str]:
    """Where rows of one initialisation stand."""
    plain = next((name for name in _INITS if init in (name, OWN.format(name))), None)
    return (len(_INITS) if plain is None else _INITS.index(plain), init)


def data_rank(data: str) -> tuple[int, str]:
    """Where a data set stands: as DomainBed has it, however its folder spells it."""
    plain = [plain_name(name) for name in ENVIRONMENTS]
    own = plain_name(data)
    return (plain.index(own), data) if own in plain else (len(plain), data)


def steps_rank(steps: str) -> tuple[int, str]:
    """Where runs of some length, or a sweep called by a number, stand among others."""
    number = re.search(r"\d+", steps)
    return int(number[0]) if number else 0, steps


def objectives(algorithms: Iterable[str]) -> str:
    """Several objectives as one name, as DomainBed orders them.

    Example:
        >>> objectives(["CORAL", "ERM", "ERM"])
        'ERM/CORAL'
    """
    return "/".join(sorted(set(algorithms), key=algorithm_rank))
