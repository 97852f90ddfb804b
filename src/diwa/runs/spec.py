"""The scientific description of a run; no path, device or date is part of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from diwa.data.transforms import ImageSpec
from diwa.errors import SpecError
from diwa.runs.presets import PRESETS, Preset, PresetName
from diwa.spec import Spec


class TaskSpec(Spec, frozen=True, kw_only=True):
    """What is learnt from which domains, and which ones stay unseen."""

    data: str
    """The benchmark's name."""
    digest: str
    """Names the benchmark's content."""
    unseen: tuple[str, ...]
    """The domains that training and selection never look at."""
    trial: int = 0
    """Which of the random splits."""
    holdout: float = 0.2
    """The part of every source domain that validates."""
    image: ImageSpec = ImageSpec()
    """How images reach the network."""
    protocol: PresetName = "fixed"
    """Which preset of the protocol this follows."""

    @property
    def preset(self) -> Preset:
        """What that preset does where others do something else."""
        return PRESETS[self.protocol]


class InitSpec(Spec, frozen=True, kw_only=True):
    """The initialisation that several runs share."""

    task: TaskSpec
    """What it is for."""
    backbone: str = "resnet50.tv_in1k"
    """A timm model or a registered encoder."""
    weights: str = "hub"
    """Where the encoder's weights are from: "hub", "none" or the SHA-256 of a file."""
    head: Literal["random", "lp"] = "random"
    """A freshly drawn head, or one that linear probing learnt."""
    seed: int = 0
    """Of the head, and of linear probing's draws."""
    steps: int = 0
    """Of linear probing."""
    eval_every: int = 100
    """Steps between linear probing's validations."""
    lr: float = 5e-5
    """Of linear probing."""
    batch_size: int = 32
    """Of linear probing, per source domain."""
    views: int = 4
    """How many augmented views of each image linear probing draws from."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the encoder's features in linear probing."""
    trials: int = 1
    """How many trials probing is for, counted from the first: it then sees only images that all of
    them train on."""


class SwadSpec(Spec, frozen=True, kw_only=True):
    """Where SWAD's average begins and ends; both are read off the validation losses."""

    converge: int = 3
    """The loss has converged when it is no lower at any of so many validations than at the first
    of them (N_s)."""
    overfit: int = 6
    """The average ends when the loss is above the limit at so many validations on end, and begins
    at most so many before convergence is noticed (N_e)."""
    tolerance: float = 0.3
    """The limit is so much above the mean loss at convergence (r)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("converge", "overfit"):
            if getattr(self, name) < 1:
                raise SpecError(f"swad.{name}={getattr(self, name)}", remedy="give 1 or more")
        if not 0 <= self.tolerance < float("inf"):
            raise SpecError(f"swad.tolerance={self.tolerance}", remedy="give 0 or more")


class RunSpec(Spec, frozen=True, kw_only=True):
    """One training run."""

    init: InitSpec
    """Where it starts, and on which task."""
    algorithm: str = "ERM"
    """What is minimised, and how."""
    hparams: dict[str, float]
    """The algorithm's hyperparameters."""
    hparams_seed: int | None = None
    """The number of the draw that gave them, if they were drawn."""
    seed: int = 0
    """Of batches, augmentation and dropout."""
    steps: int = 5001
    """Updates."""
    eval_every: int = 100
    """Steps between validations."""
    track_unseen: bool = False
    """Whether each validation also scores the unseen domains' 20 %, for oracle selection."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the network's arithmetic; weights are float32 either way."""
    trial: int | None = None
    """Which of the random splits, where several trials start from one initialisation."""
    averages: tuple[str, ...] = ()
    """Which averages of its own iterates the run keeps as well: "ma", "swad"."""
    ma_start: int = 100
    """The step from which on the moving average takes in every iterate."""
    swad: SwadSpec = SwadSpec()
    """Where SWAD's average begins and ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "eval_every"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)}", remedy="give 1 or more")
        # In one order, so that the order in which they were asked for makes no other run.
        msgspec.structs.force_setattr(self, "averages", tuple(sorted(set(self.averages))))
        if "ma" in self.averages and not 0 <= self.ma_start < self.steps:
            raise SpecError(
                f"ma_start={self.ma_start}: the run has the steps 0 to {self.steps - 1}",
                remedy="give one of these",
            )

    @property
    def task(self) -> TaskSpec:
        """What is learnt from which domains."""
        if self.trial is None:
            return self.init.task
        return msgspec.structs.replace(self.init.task, trial=self.trial)
