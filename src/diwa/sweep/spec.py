"""The description of a sweep: a Python argument, a set of flags and a file, all at once."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import tyro

from diwa.errors import SpecError
from diwa.spec import Spec


def _parsed(texts: list[str]) -> dict[str, tuple[float, ...]]:
    choices = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            choices[name] = tuple(float(value) for value in values.split(","))
        except ValueError:
            raise ValueError(f"{text!r} is not NAME=VALUE or NAME=VALUE,VALUE") from None
    return choices


def _spelled(choices: dict[str, tuple[float, ...]]) -> list[str]:
    return [f"{name}={','.join(map(str, values))}" for name, values in choices.items()]


_Choices = Annotated[
    dict[str, tuple[float, ...]],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE[,VALUE...]",
        instance_from_str=_parsed,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=_spelled,
    ),
]


_PAPER_LIKE_STEPS = 1000


class SweepSpec(Spec, frozen=True, kw_only=True):
    """A sweep: runs from one shared initialisation, with hyperparameters drawn for each.

    Example:
        >>> SweepSpec(target=("sketch",), runs=6, steps=150, size=(128,)).shape
        (128, 128)
    """

    target: tuple[str, ...]
    """The domain to leave unseen; several, or "all", give each a sweep of its own."""
    runs: int = 20
    """How many runs per target and trial."""
    steps: int = 5001
    """Updates per run."""
    trials: int = 1
    """How many random splits of the source domains, each with runs of its own."""
    init: Literal["lp", "random"] = "lp"
    """The shared head: learnt by linear probing, or freshly drawn."""
    algorithm: str = "ERM"
    """What is minimised, and how."""
    space: Literal["auto", "mild", "extreme", "short", "default"] = "auto"
    """Where hyperparameters are drawn from: auto is the paper's mild, or short (larger learning
    rates) if --steps is under 1000."""
    hparams: _Choices = msgspec.field(default_factory=dict)
    """Values to draw from instead, e.g. lr=1e-4,2e-4 dropout=0."""
    backbone: str = "resnet50.tv_in1k"
    """A timm model."""
    weights: str = "hub"
    """The backbone's weights: a FILE, "hub" to download timm's, "demo" for those of the demo
    extra, or "none"."""
    size: tuple[int, ...] = (224,)
    """Pixels of the images' sides: one number, or height and width."""
    channels: Literal[1, 2, 3] = 3
    """1 for grey images, 2 for grey with alpha, 3 for colour."""
    augment: Literal["domainbed", "none"] = "domainbed"
    """How training images are varied."""
    eval_every: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Steps between validations; the protocol's unless given: 100 for most data sets."""
    lp_steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Updates of linear probing; as many as --steps unless given."""
    lp_lr: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Learning rate of linear probing; 5e-5, or 1e-3 where hyperparameters are short."""
    lp_views: int = 4
    """Augmented views of each image that linear probing draws from."""
    seed: int = 0
    """Another number gives other draws, batches and heads; 0 draws as DomainBed does."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the arithmetic; auto is bf16 where the hardware has it."""
    track_unseen: bool = False
    """Score the unseen domain's 20 % at every validation too, for oracle selection."""

    def __post_init__(self) -> None:
        for name in ("target", "size"):
            if isinstance(value := getattr(self, name), str | int):
                msgspec.structs.force_setattr(self, name, (value,))
        super().__post_init__()
        for name in ("runs", "steps", "trials", "eval_every", "lp_steps", "lp_views"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name}={getattr(self, name)}", remedy="give 1 or more")
        if not 1 <= len(self.size) <= 2:
            raise SpecError(f"size {self.size}", remedy="give one number, or height and width")
        if not self.target:
            raise SpecError("no target", remedy='name the domain to leave unseen, or "all"')
        empty = [name for name, values in self.hparams.items() if not values]
        if empty:
            raise SpecError(f"hparams {empty[0]}: no values", remedy="give at least one")
        if self.lp_lr is not None and not self.lp_lr > 0:
            raise SpecError(f"lp_lr={self.lp_lr}", remedy="give a number above 0")

    @property
    def drawn_from(self) -> str:
        """The space, with auto resolved.

        At the paper's learning rates a network moves too little in a few hundred steps for runs to
        differ; averaging them then gains nothing.
        """
        if self.space != "auto":
            return self.space
        return "mild" if self.steps >= _PAPER_LIKE_STEPS else "short"

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return (self.size[0], self.size[-1])
