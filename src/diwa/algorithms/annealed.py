"""The base of objectives whose penalty gets its full weight only after a number of steps."""

from __future__ import annotations

from typing import ClassVar

from diwa.algorithms.base import Algorithm, State


class Annealed(Algorithm):
    """Weighs its penalty with `before`, then with `lambda` from step `anneal` on.

    Adam's moments are forgotten at that step: they are of gradients of another size.
    """

    before: ClassVar[float] = 1.0

    def weight(self, step: int) -> float:
        """Of the penalty."""
        return self.hparams["lambda"] if step >= self.hparams["anneal"] else self.before

    def finish(self, step: int, state: State) -> None:
        """Steps along the gradients that are there, and keeps the state."""
        if step == self.hparams["anneal"]:
            self.optimizer.state.clear()
        super().finish(step, state)
