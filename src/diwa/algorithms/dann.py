"""DANN: a second network shall not be able to tell the domain from the features."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from diwa.algorithms.base import Algorithm, Batch, adam
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Choice, Hyperparameter, PowerOf, Space, Values
from diwa.algorithms.parts import exact, headed, look, membership

_RATE, _DECAY = PowerOf(10, -5, -3.5), PowerOf(10, -6, -2)


class DANN(Algorithm):
    """Cross-entropy - lambda times the discriminator's loss, which it minimises at other steps.

    After each step of the network, the discriminator takes `d_steps`.
    """

    space: ClassVar[Space] = {
        **SHARED,
        # The released code's mild ranges left DANN out: it drew these two as DomainBed does.
        "lr": Hyperparameter(
            5e-5,
            SHARED["lr"].mild,
            extreme=_RATE,
            short=SHARED["lr"].short,
            released=_RATE,
            seed_name="lr_g",
        ),
        "weight_decay": Hyperparameter(
            0.0,
            SHARED["weight_decay"].mild,
            extreme=_DECAY,
            released=_DECAY,
            seed_name="weight_decay_g",
        ),
        "lambda": Hyperparameter(1.0, PowerOf(10, -2, 2)),
        # In short runs as quick as the network it plays against.
        "lr_d": Hyperparameter(5e-5, _RATE, short=SHARED["lr"].short),
        "weight_decay_d": Hyperparameter(0.0, _DECAY),
        "d_steps": Hyperparameter(
            1, PowerOf(2, 0, 3, whole=True), seed_name="d_steps_per_g_step", whole=True
        ),
        # DomainBed sums the probabilities of all images' domains for each image. With domains of
        # one size that is a constant, and its gradient 0 whatever was drawn.
        "grad_penalty": Hyperparameter(0.0, PowerOf(10, -2, 1), released=Choice((0.0,))),
        "beta1": Hyperparameter(0.5, Choice((0.0, 0.5)), high=0.999),
        "mlp_width": Hyperparameter(256, PowerOf(2, 6, 10, whole=True), low=1, whole=True),
        "mlp_depth": Hyperparameter(3, Choice((3, 4, 5)), low=2, whole=True),
        "mlp_dropout": Hyperparameter(0.0, Choice((0.0, 0.1, 0.5)), high=1.0),
    }

    def __init__(self, network: nn.Module, hparams: Values, domains: int) -> None:
        super().__init__(network, hparams, domains)
        width, depth = int(hparams["mlp_width"]), int(hparams["mlp_depth"])
        layers: list[nn.Module] = []
        for before, after in pairwise([headed(network).head.in_features, *[width] * (depth - 1)]):
            layers += [nn.Linear(before, after), nn.Dropout(hparams["mlp_dropout"]), nn.ReLU()]
        self.discriminator = nn.Sequential(*layers, nn.Linear(width, domains))

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adam of the network."""
        return self._adam(self.network, self.hparams["lr"], self.hparams["weight_decay"])

    @cached_property
    def discriminator_optimizer(self) -> torch.optim.Optimizer:
        """Adam of the discriminator."""
        return self._adam(self.discriminator, self.hparams["lr_d"], self.hparams["weight_decay_d"])

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The network's and the discriminator's."""
        return {"optimizer": self.optimizer, "discriminator": self.discriminator_optimizer}

    def optimizer_at(self, step: int) -> torch.optim.Optimizer:
        """Whose turn it is."""
        return self.discriminator_optimizer if self.discriminates(step) else self.optimizer

    def discriminates(self, step: int) -> bool:
        """Whether the step is the discriminator's."""
        steps = self.hparams["d_steps"]
        return (step + 1) % (1 + steps) < steps

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """That of whose turn it is; the other's weights get no gradient."""
        weights: dict[str, torch.Tensor] = dict(self.discriminator.named_parameters())
        if self.discriminates(step):
            with torch.no_grad():
                features = look(self.network, batch.x).features
            features.requires_grad_(bool(self.hparams["grad_penalty"]))
            return self._telling(features, batch.sizes, weights)
        seen = look(self.network, batch.x)
        weights = {name: held.detach() for name, held in weights.items()}
        telling = self._telling(seen.features, batch.sizes, weights)
        return F.cross_entropy(seen.logits, batch.y) - self.hparams["lambda"] * telling

    def _telling(
        self, features: torch.Tensor, sizes: list[int], weights: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The discriminator's loss."""
        owner = membership(sizes, like=features).argmax(0)
        with exact(features):
            logits = functional_call(self.discriminator, weights, (features,))
            loss = F.cross_entropy(logits, owner)
            if self.hparams["grad_penalty"]:
                own = logits.softmax(1).gather(1, owner[:, None]).sum()
                (slopes,) = torch.autograd.grad(own, features, create_graph=True)
                loss = loss + self.hparams["grad_penalty"] * slopes.square().sum(1).mean()
        return loss

    def _adam(self, of: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        betas = (self.hparams["beta1"], 0.9)
        return adam(of.parameters(), lr=lr, weight_decay=weight_decay, betas=betas)
