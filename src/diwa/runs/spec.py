"""The scientific description of a run; no path, device or date is part of it."""

from __future__ import annotations

from typing import Literal

from diwa.data.transforms import ImageSpec
from diwa.errors import SpecError
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
    protocol: Literal["fixed"] = "fixed"
    """Which preset of the protocol this follows."""


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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "eval_every"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)}", remedy="give 1 or more")

    @property
    def task(self) -> TaskSpec:
        """What is learnt from which domains."""
        return self.init.task
