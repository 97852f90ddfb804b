"""The plain results that tables are made of."""

from __future__ import annotations

from typing import Literal

from diwa.spec import Spec

Chosen = Literal["training-domain", "leave-one-out", "oracle"]
Scored = Literal["in", "full", "out"]

#: How a run and its checkpoint were chosen, in the order of the tables.
CHOSEN: dict[Chosen, str] = {
    "training-domain": "training-domain validation",
    "leave-one-out": "leave-one-domain-out cross-validation",
    "oracle": "test-domain validation (oracle)",
}
#: Which images of the unseen domain an accuracy is of.
SCORED: dict[Scored, str] = {
    "in": "80 % of the unseen domain",
    "full": "100 % of the unseen domain",
    "out": "the unseen domain's 20 %",
}


class Record(Spec, frozen=True, kw_only=True):
    """What one method scores on one unseen domain in one trial.

    Example:
        >>> Record(data="PACS", domain="S", trial=0, method="diwa-uniform", value=0.8, runs=20).init
        ''
    """

    data: str
    """The benchmark."""
    domain: str
    """The unseen domain."""
    trial: int | None
    """Which random split; None for a method that takes the runs of all of them together."""
    method: str
    """How a model came of the runs: "erm" is the one that was chosen, "diwa-uniform" their average,
    and so on."""
    algorithm: str = "ERM"
    """What the runs minimised; several are joined by a stroke."""
    init: str = ""
    """What they started from: "Random" or "LP", where that is known, and "Random, own" where each
    has a start of its own."""
    sweep: str = ""
    """What their store calls the sweep that they are of, if it has a name."""
    chosen: Chosen = "training-domain"
    """How runs and checkpoints were chosen."""
    scored: Scored = "in"
    """Which images of the unseen domain were classified."""
    value: float
    """The accuracy, between 0 and 1."""
    runs: int
    """How many training runs are behind it."""
    network: str = ""
    """The network and how it was trained, where that is known."""
    steps: str = ""
    """How long the runs were, where that is known."""
