"""What is known of several sets of weights: plain numbers and names, as JSON can hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from diwa.spec import Spec
from diwa.weights.geometry import HotSpot

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemberFacts(Spec, frozen=True, kw_only=True):
    """One member."""

    name: str
    """What tables call it."""
    path: str
    """Where it is."""
    norm: float | None = None
    """The length of its matrices, as one vector."""
    from_mean: float | None = None
    """Its distance from the mean of all, over its norm."""
    from_base: float | None = None
    """Its distance from the base, over its norm."""
    score: float | None = None
    """The validation accuracy that its file tells."""
    split: str | None = None
    """The split it was validated on."""
    init: str | None = None
    """The initialisation that its file tells."""
    hparams: dict[str, float] = msgspec.field(default_factory=dict)
    """Its hyperparameters, where its file tells them."""
    broken: str = ""
    """The first of its tensors that holds NaN or infinity, if one does."""


class PairFacts(Spec, frozen=True, kw_only=True):
    """Two members; what could not be measured is null."""

    one: str
    """The first."""
    other: str
    """The second."""
    agree: bool = True
    """Whether they hold the same tensors, of one network as far as they tell."""
    same_init: bool | None = None
    """Whether their files tell of one initialisation; null if one of them does not tell."""
    distance: float | None = None
    """How far they are apart, over their norm: 1.41 for networks that share nothing."""
    angle: float | None = None
    """Degrees between them, seen from the origin."""
    base_angle: float | None = None
    """Degrees between the ways they went from the base."""
    correlation: float | None = None
    """The median correlation of their matrices."""
    sigma: float | None = None
    """How many standard deviations above that of networks initialised apart."""
    power: float | None = None
    """How many it could be at most, for matrices of these sizes."""
    apart: tuple[str, ...] = ()
    """Matrices that have nothing in common though most of the others have."""
    statistics: float | None = None
    """How far their statistics of batch norm are apart, over their norm; 0 if frozen."""
    barrier: float | None = None
    """How far the loss rises on the straight line between them."""


class Point(Spec, frozen=True, kw_only=True):
    """What one set of weights scores."""

    loss: float
    """The mean cross-entropy."""
    accuracy: float
    """The share of images that is right."""


class Way(Spec, frozen=True, kw_only=True):
    """The straight line from one set of weights to another."""

    one: str
    """Where it starts."""
    other: str
    """Where it ends; "mean" is the mean of all members."""
    at: list[float]
    """The parts of the way at which the loss was measured."""
    points: list[Point]
    """What the weights there score."""
    barrier: float
    """How far the loss rises above the straight line between both ends' losses; 0 if nowhere."""


class Landscape(Spec, frozen=True, kw_only=True):
    """The losses of members, between them, and at their mean."""

    images: int
    """How many images were looked at."""
    domains: list[str]
    """Of which domains."""
    classes: int
    """How many classes there are."""
    members: dict[str, Point]
    """What each member scores."""
    mean: Point
    """What the mean of all of them scores."""
    ways: list[Way]
    """From every member to every other one."""
    to_mean: list[Way]
    """From every member to the mean."""


class Evidence(Spec, frozen=True, kw_only=True):
    """All that was measured."""

    members: list[MemberFacts]
    """One by one."""
    pairs: list[PairFacts]
    """Each with each, in the order of the members: all of the first, then of the second."""
    base: str | None = None
    """The base's name."""
    base_sigma: float | None = None
    """What the nearest member has in common with it, in standard deviations of strangers."""
    disagreements: tuple[str, ...] = ()
    """Which tensors differ in being there, in shape or in kind, in words."""
    tensors: int = 0
    """How many tensors all of the compared members hold."""
    matrices: int = 0
    """How many of them tell of the initialisation."""
    ratio: float | None = None
    """The norm of the members' mean over the mean of their norms."""
    hot_spots: tuple[HotSpot, ...] = ()
    """Tensors that carry a large part of the distance, most changed first."""
    integers: tuple[str, ...] = ()
    """Tensors of integers that differ between members."""
    landscape: Landscape | None = None
    """What was measured with data."""

    def pair(self, one: str, other: str) -> PairFacts:
        """What is known of two members."""
        names = [member.name for member in self.members]
        first, second = sorted((names.index(one), names.index(other)))
        found = self.pairs[first * (2 * len(names) - first - 1) // 2 + second - first - 1]
        assert {found.one, found.other} == {one, other}
        return found

    def scores(self) -> dict[str, float]:
        """Accuracies that can be compared: measured ones, or those of one validation split."""
        if self.landscape:
            return {name: point.accuracy for name, point in self.landscape.members.items()}
        known = [member for member in self.members if member.score is not None]
        if len({member.split for member in known}) > 1:
            return {}
        return {member.name: member.score for member in known if member.score is not None}

    def spread(self) -> dict[str, list[float]]:
        """The values that each hyperparameter has among members, where it varies."""
        return varied([member.hparams for member in self.members])


def varied(many: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """The values by name, where there is more than one.

    Example:
        >>> varied([{"lr": 1e-4, "dropout": 0.5}, {"lr": 3e-4, "dropout": 0.5}])
        {'lr': [0.0001, 0.0003]}
    """
    names = dict.fromkeys(name for one in many for name in one)
    values = {name: sorted({one[name] for one in many if name in one}) for name in names}
    return {name: held for name, held in values.items() if len(held) > 1}
