"""SWAD: the mean of every iterate in the valley of the validation loss.

The iterates between two validations make a segment, whose sum is in memory. A finished segment's
mean goes to a file if nobody can know yet whether it is in the valley; from then on to the end of
the run, what is surely in the valley is one sum in another file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from diwa.models.network import Network
from diwa.runs.store import Averaged, Row
from diwa.train.averages.base import Average, Iterates, Tensors, Watched, mean_of
from diwa.train.averages.valley import Valley, valley
from diwa.weights import files


class Swad(Average):
    """The mean of all iterates of the segments that `valley` finds."""

    name = "swad"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._segment = Iterates(watched.device)
        self._steps: list[int] = []
        self._losses: list[float] = []
        #: How many iterates each segment has that waits in a file.
        self._waiting: dict[int, int] = {}
        #: The last segment that is surely in the valley, and how many iterates there are up to it.
        self._sure, self._iterates = -1, 0

    def after_step(self, step: int, network: Network) -> None:
        """Takes the iterate in, unless the valley is behind."""
        del step
        if not self._over():
            self._segment.add(network.weights())

    def after_validation(self, row: Row, network: Network) -> None:
        """Closes a segment, and sees which ones are in the valley by now."""
        if self._over():
            return
        self._steps.append(row.step)
        self._losses.append(row.validation_loss)
        number, count = len(self._losses) - 1, self._segment.count
        mean = self._segment.mean(network.weights())
        self._segment.clear()
        self._waiting[number] = count
        found = self._valley()
        if found is None:
            # Convergence can still show at the next validation, and reach back so far.
            back = max(self.watched.spec.swad.overfit, self.watched.spec.swad.converge) - 1
            self._waiting = {n: c for n, c in self._waiting.items() if n > number - back}
        else:
            self._pour(found, mean)
        if number in self._waiting:
            files.write(self._part("segment", number), mean, {"kind": "segment"})

    def _pour(self, found: Valley, newest: Tensors) -> None:
        """Adds segments that are surely in the valley to its sum, and forgets those before it."""
        sure = [n for n in self._waiting if max(found.first, self._sure + 1) <= n <= found.last]
        if sure:
            total = files.read(self._part("valley", self._sure)) if self._iterates else {}
            for number in sure:
                count, last = self._waiting[number], number == len(self._losses) - 1
                held = newest if last else files.read(self._part("segment", number))
                for name, tensor in held.items():
                    if tensor.is_floating_point():
                        wide = tensor.cpu().double() * count
                        total[name] = total[name] + wide if name in total else wide
                self._iterates += count
            self._sure = found.last
            files.write(self._part("valley", self._sure), total, {"kind": "valley"})
        self._waiting = {n: c for n, c in self._waiting.items() if n > found.last}
        if self._over():
            self._waiting = {}

    def state(self) -> tuple[dict[str, torch.Tensor], Any]:
        """The sum of the segment that is under way, and what is known of the others."""
        told = {
            "count": self._segment.count,
            "steps": self._steps,
            "losses": self._losses,
            "waiting": {str(number): count for number, count in self._waiting.items()},
            "sure": self._sure,
            "iterates": self._iterates,
        }
        return self._segment.tensors(), told

    def restore(self, tensors: Tensors, told: Any) -> None:
        """Takes over what `state` gave."""
        self._segment.restore(tensors, told["count"])
        self._steps, self._losses = list(told["steps"]), list(told["losses"])
        self._waiting = {int(number): count for number, count in told["waiting"].items()}
        self._sure, self._iterates = told["sure"], told["iterates"]

    def files(self) -> set[Path]:
        """The segments that wait, and the valley's sum."""
        waiting = {self._part("segment", number) for number in self._waiting}
        return waiting | ({self._part("valley", self._sure)} if self._iterates else set())

    def finish(self, network: Network) -> Averaged:
        """Writes the valley's mean, or says that there is no valley."""
        kept, found = self.watched.paths.kept(self.name), self._valley()
        if found is None:
            kept.unlink(missing_ok=True)
            window, count = self.watched.spec.swad.converge, len(self._losses)
            why = (
                f"it takes {window} validations to tell, and there are {count}"
                if count < window
                else f"in {count} validations, the loss fell within every {window} on end"
            )
            return Averaged(missing=f"nothing converged: {why}")
        assert found.last == self._sure
        total = files.read(self._part("valley", self._sure))
        mean = mean_of(total, self._iterates, network.weights())
        last = self._steps[found.last]
        scored = self.watched.score(mean, self.watched.spec.steps - 1)
        self.watched.write(kept, mean, last, scored.score)
        first = self._steps[found.first - 1] + 1 if found.first else 0
        return Averaged(first=first, last=last, scored=scored)

    def _valley(self) -> Valley | None:
        held = self.watched.spec.swad
        return valley(
            self._losses,
            converge=held.converge,
            overfit=held.overfit,
            tolerance=held.tolerance,
        )

    def _over(self) -> bool:
        """Whether nothing that comes can be in the valley any more."""
        behind = len(self._losses) - 1 - self._sure
        return self._sure >= 0 and behind >= self.watched.spec.swad.overfit

    def _part(self, what: str, number: int) -> Path:
        return self.watched.paths.part(self.name, what, number)
