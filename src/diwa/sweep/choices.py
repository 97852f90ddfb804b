"""Hyperparameters of the user's own: what they are drawn from, and how flags spell it."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import msgspec
import tyro

from diwa.algorithms.hparams import Between, Choice, Distribution, Hyperparameter, PowerOf
from diwa.errors import SpecError
from diwa.spec import Spec


class Range(Spec, frozen=True, kw_only=True):
    """Any value between two, uniformly, or with a uniform logarithm.

    Example:
        >>> Range(low=1e-5, high=1e-3, log=True)
        Range(low=1e-05, high=0.001, log=True)
        >>> Range(low=0, high=1, log=True)
        Traceback (most recent call last):
        ...
        diwa.errors.SpecError: low=0: has no logarithm; give more than 0, or leave log out
    """

    low: float
    """The least value."""
    high: float
    """The largest."""
    log: bool = False
    """Whether the logarithm is what is uniform."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            if not math.isfinite(getattr(self, name)):
                raise SpecError(f"{name}={getattr(self, name)}", remedy="give a finite number")
        if self.low > self.high:
            raise SpecError(f"low={self.low:g}: is above high={self.high:g}", remedy="swap the two")
        if self.log and self.low <= 0:
            raise SpecError(
                f"low={self.low:g}: has no logarithm", remedy="give more than 0, or leave log out"
            )


#: The values to choose from, or the range to draw from.
Own: TypeAlias = tuple[float, ...] | Range


def distribution(own: Own, held: Hyperparameter) -> Distribution:
    """What a hyperparameter is drawn from; one that counts something is cut to whole numbers.

    Example:
        >>> from diwa.algorithms.erm import ERM
        >>> distribution(Range(low=8, high=64), ERM.space["batch_size"])
        Between(low=8.0, high=64.0, whole=True)
    """
    if isinstance(own, tuple):
        return Choice(own)
    if own.log:
        return PowerOf(10, math.log10(own.low), math.log10(own.high), whole=held.whole)
    return Between(own.low, own.high, whole=held.whole)


def parsed(texts: list[str]) -> dict[str, Own]:
    """What flags like `lr=1e-5..1e-3:log dropout=0,0.1` say.

    Example:
        >>> parsed(["lr=1e-5..1e-3:log", "dropout=0,0.1"])
        {'lr': Range(low=1e-05, high=0.001, log=True), 'dropout': (0.0, 0.1)}
    """
    own: dict[str, Own] = {}
    for text in texts:
        name, _, values = text.partition("=")
        span, _, kind = values.partition(":")
        low, dots, high = span.partition("..")
        try:
            if kind not in ("", "log") or (kind and not dots):
                raise ValueError
            if dots:
                own[name] = Range(low=float(low), high=float(high), log=bool(kind))
            else:
                own[name] = tuple(float(value) for value in values.split(","))
        except SpecError as error:
            raise ValueError(f"{name}: {error}") from None
        except ValueError:
            raise ValueError(
                f"{text!r} is not NAME=VALUE, NAME=VALUE,VALUE or NAME=LOW..HIGH, "
                "which may end in :log"
            ) from None
    return own


def spelled(own: dict[str, Own]) -> list[str]:
    """The same, as flags.

    Example:
        >>> spelled({"lr": Range(low=1e-5, high=1e-3, log=True), "dropout": (0.0, 0.1)})
        ['lr=1e-05..0.001:log', 'dropout=0.0,0.1']
    """
    return [
        f"{name}={values.low}..{values.high}{':log' if values.log else ''}"
        if isinstance(values, Range)
        else f"{name}={','.join(map(str, values))}"
        for name, values in own.items()
    ]


def check(own: dict[str, Own]) -> None:
    """Makes sure that there is something to draw from.

    Raises:
        SpecError: naming the hyperparameter.
    """
    empty = [name for name, values in own.items() if values == ()]
    if empty:
        raise SpecError(f"hparams {empty[0]}: no values", remedy="give at least one")


def read(name: str, value: object) -> Own:
    """What a recipe says of one hyperparameter: a number, a list of numbers or a table.

    Raises:
        SpecError: if it is none of these.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple | dict | Range):
        raise SpecError(
            f"hparams.{name}: {value!r}", remedy="give a number, a list, or {low = …, high = …}"
        )
    try:
        return msgspec.convert(value, Range if isinstance(value, dict) else Own)
    except msgspec.ValidationError as error:
        # What `Range` itself refuses has its remedy already.
        remedy = "" if isinstance(error.__cause__, SpecError) else "write [1, 2] or {low=1, high=2}"
        raise SpecError(f"hparams.{name}: {error}", remedy=remedy) from error


Choices = Annotated[
    dict[str, Own],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE[,VALUE...]|LOW..HIGH[:log]",
        instance_from_str=parsed,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=spelled,
    ),
]
