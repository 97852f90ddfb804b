"""The description of a sweep: a Python argument, a set of flags and a file, all at once."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import tyro

from diwa.errors import SpecError
from diwa.runs.presets import PRESETS, Preset, PresetName
from diwa.spec import Spec
from diwa.sweep.choices import Choices, check

_PAPER_LIKE_STEPS = 1000


class SweepSpec(Spec, frozen=True, kw_only=True):
    """A sweep: runs from one shared initialisation, with hyperparameters drawn for each.

    Example:
        >>> SweepSpec(target=("sketch",), runs=6, steps=150, size=(128,)).shape
        (128, 128)
    """

    target: tuple[str, ...]
    """The domain to leave unseen; several, or "all", give each a sweep of its own."""
    protocol: PresetName = "fixed"
    """What the paper does with its code's defects repaired, what it says, or what its code did."""
    runs: int = 20
    """How many runs per target and trial."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Updates per run; the protocol's unless given: 5001, on DomainNet 15001."""
    trials: int = 1
    """How many random splits of the source domains, each with runs of its own."""
    init: Literal["lp", "random"] = "lp"
    """The shared head: learnt by linear probing, or freshly drawn."""
    share_init: Literal["auto", "trial", "target", "none"] = "auto"
    """Which runs start alike: a trial's, a target's in all trials, or none.
    Auto is trial, and target unless --protocol is fixed."""
    algorithm: tuple[str, ...] = ("ERM",)
    """What is minimised, and how; several share out the runs."""
    space: Literal["auto", "mild", "extreme", "short", "default"] = "auto"
    """Where hyperparameters are drawn from.
    Auto is mild, the paper's; under 1000 steps short (faster), unless --protocol says otherwise."""
    hparams: Choices = msgspec.field(default_factory=dict)
    """What to draw from instead, e.g. lr=1e-5..1e-3:log dropout=0,0.1 weight_decay=0."""
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
    leave_one_out: bool = False
    """Also do the runs that leave one more domain out, for leave-one-out selection; all of them
    track what they leave out."""
    averages: tuple[str, ...] = ()
    """Averages of its own iterates that each run keeps as well: ma, swad."""
    ma_start: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The step from which on ma averages; 100, or a quarter of the steps in short runs."""

    def __post_init__(self) -> None:
        for name in ("target", "size", "algorithm", "averages"):
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
        if len(self.algorithm) != len(set(self.algorithm)) or not self.algorithm:
            raise SpecError(
                f"algorithm {', '.join(self.algorithm) or 'none'}", remedy="name each once"
            )
        if self.runs < len(self.algorithm):
            raise SpecError(
                f"runs={self.runs}: too few for {len(self.algorithm)} algorithms",
                remedy="give as many or more",
            )
        check(self.hparams)
        if self.lp_lr is not None and not self.lp_lr > 0:
            raise SpecError(f"lp_lr={self.lp_lr}", remedy="give a number above 0")

    @property
    def preset(self) -> Preset:
        """What the protocol's preset does where others do something else."""
        return PRESETS[self.protocol]

    @property
    def shares_init(self) -> str:
        """Which runs start alike, with auto resolved: those of a "trial", a "target" or "none"."""
        return self.preset.shares_init if self.share_init == "auto" else self.share_init

    @property
    def probes_for_all_trials(self) -> bool:
        """Whether linear probing keeps to images that all trials train on."""
        return self.init == "lp" and self.shares_init == "target" and self.preset.probes_common

    @property
    def drawn_from(self) -> str:
        """The space, with auto resolved.

        At the paper's learning rates a network moves too little in a few hundred steps for runs to
        differ; averaging them then gains nothing.
        """
        if self.space != "auto":
            return self.space
        short = self.steps is not None and self.steps < _PAPER_LIKE_STEPS
        return "short" if short and self.preset.adapts_space else "mild"

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return (self.size[0], self.size[-1])
