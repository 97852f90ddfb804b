"""SAM: the gradient is taken where the loss is worst nearby, so that minima are flat."""

# pyright: reportPrivateImportUsage=false
# torch keeps to itself the functions with which its optimisers change all weights at once.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch

from diwa.algorithms.base import Batch
from diwa.algorithms.hparams import Choice, Hyperparameter, Space
from diwa.algorithms.wrapper import Wrapper


class SAM(Wrapper):
    """Two passes per step: the first finds where to look, the second the gradient there.

    Both draw the same random numbers, so the same units drop out. What the algorithm keeps from
    step to step it keeps as of the first pass, at the weights themselves.
    """

    space: ClassVar[Space] = {
        "rho": Hyperparameter(0.05, Choice((0.001, 0.002, 0.005, 0.01, 0.02, 0.05))),
    }

    def update(
        self, batch: Batch, step: int, autocast: AbstractContextManager[object]
    ) -> torch.Tensor:
        """One step; gives the loss at the weights themselves."""
        groups = self.optimizer_at(step).param_groups
        weights = [weight for group in groups for weight in group["params"]]
        with _rewinding(batch.x.device):
            loss, state = self.backward(batch, step, autocast)
        with _climbed(weights, self.hparams["rho"]):
            self.backward(batch, step, autocast)
        self.finish(step, state)
        return loss


@contextmanager
def _rewinding(device: torch.device) -> Iterator[None]:
    """At the end, generators are what they were at the start."""
    apple = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    if apple is not None:
        torch.mps.set_rng_state(apple)


@contextmanager
def _climbed(weights: list[torch.Tensor], rho: float) -> Iterator[None]:
    """Within, the weights are `rho` up their gradient; after, the very same as before."""
    moving = [weight for weight in weights if weight.grad is not None]
    gradients = [weight.grad for weight in moving if weight.grad is not None]
    with torch.no_grad():
        kept = [weight.clone() for weight in moving]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, rho / norm.clamp_min(1e-12))
        torch._foreach_add_(moving, gradients)
    # The second pass makes its own, and may need the room.
    del gradients
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(moving, kept)
