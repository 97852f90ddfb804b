"""The moving average and SWAD, fed by hand, against naive means of all the iterates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.errors import SpecError
from diwa.runs.paths import RunPaths
from diwa.runs.spec import InitSpec, RunSpec, SwadSpec, TaskSpec
from diwa.runs.store import Averaged, Row, Scored
from diwa.train.averages import AVERAGES
from diwa.train.averages.base import Average, Watched
from diwa.train.averages.valley import valley
from diwa.weights import files

TASK = TaskSpec(data="d", digest="0", unseen=("target",))


def specified(**settings: Any) -> RunSpec:
    return RunSpec(init=InitSpec(task=TASK), hparams={}, **settings)


class Net:
    """All that averages ask of a network: weights by name, which change in place."""

    def __init__(self) -> None:
        self.w, self.n = torch.zeros(3), torch.tensor(0)

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": self.w, "n": self.n}


class Loop:
    """The training loop without the training: steps, validations, and what a kill leaves."""

    def __init__(self, name: str, spec: RunSpec, folder: Path, scores: list[float]) -> None:
        self.name, self.spec, self.paths = name, spec, RunPaths(folder)
        self.scores, self.net = scores, Net()
        self.iterates: list[torch.Tensor] = []
        self.saved: dict[str, torch.Tensor] = {}
        self.average = self._new()

    def _new(self) -> Average:
        def write(path: Path, weights: Any, step: int, score: float | None) -> None:
            files.write(path, weights, {"step": step, "score": score})

        def score(weights: Any, step: int) -> Scored:
            assert torch.is_floating_point(weights["w"])
            return Scored(accuracy={"a": self.scores[step]})

        cpu = torch.device("cpu")
        watched = Watched(self.spec, self.paths, cpu, score=score, write=write)
        return AVERAGES.get(self.name)(watched)

    def run(self, losses: list[float], kill_after: int = -1) -> Averaged:
        """One validation per loss; after that step the process dies, having saved just before."""
        chance = torch.Generator().manual_seed(0)
        validated = 0
        for step in range(self.spec.steps):
            self.net.w.copy_(torch.randn(3, generator=chance))
            self.net.n.add_(1)
            self.iterates.append(self.net.w.clone())
            self.average.after_step(step, self.net)  # pyright: ignore[reportArgumentType]
            if step % self.spec.eval_every == 0 or step == self.spec.steps - 1:
                self._validated(step, losses[validated])
                validated += 1
            if step == kill_after:
                self._die()
        return self.average.finish(self.net)  # pyright: ignore[reportArgumentType]

    def _validated(self, step: int, loss: float) -> None:
        scored = self.average.scored(step, self.net)  # pyright: ignore[reportArgumentType]
        row = Row(
            step=step,
            loss=0.0,
            accuracy={"a": 0.0},
            losses={"a": loss + 0.5, "b": loss - 0.5},
            averages={self.name: scored} if scored else {},
        )
        self.average.after_validation(row, self.net)  # pyright: ignore[reportArgumentType]

    def _die(self) -> None:
        """Saves, forgets what the state does not speak of, and starts from the state alone."""
        tensors, told = self.average.state()
        told = json.loads(json.dumps(told))
        for path in self.paths.passing():
            if path not in self.average.files():
                path.unlink()
        assert all(path.is_file() for path in self.average.files())
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self.average = self._new()
        self.average.restore(tensors, told)


def mean(iterates: list[torch.Tensor]) -> torch.Tensor:
    return torch.from_numpy(np.mean([one.double().numpy() for one in iterates], axis=0)).float()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_swad_is_the_mean_of_every_iterate_in_the_valley(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    count = data.draw(st.integers(1, 14))
    every = data.draw(st.integers(1, 3))
    losses = data.draw(
        st.lists(st.sampled_from([1.0, 1.1, 1.25, 1.5, 3.0]), min_size=count, max_size=count)
    )
    # Validations are at 0, every, 2 * every, ... and at the end, which may come early.
    last = (count - 1) * every
    steps = 1 + (data.draw(st.integers(last - every + 1, last)) if count > 1 else 0)
    held = SwadSpec(
        converge=data.draw(st.integers(1, 4)),
        overfit=data.draw(st.integers(1, 6)),
        tolerance=data.draw(st.sampled_from([0.0, 0.15])),
    )
    spec = specified(steps=steps, eval_every=every, averages=("swad",), swad=held)
    kill = data.draw(st.integers(-1, steps - 1))
    loop = Loop("swad", spec, tmp_path_factory.mktemp("run"), [0.5] * steps)
    result = loop.run(losses, kill_after=kill)
    found = valley(losses, converge=held.converge, overfit=held.overfit, tolerance=held.tolerance)
    kept = loop.paths.kept("swad")
    if found is None:
        assert result.missing.startswith("nothing converged")
        assert (result.first, result.last, result.scored) == (None, None, None)
        assert not kept.exists()
        return
    ends = [min(number * every, steps - 1) for number in range(count)]
    first = ends[found.first - 1] + 1 if found.first else 0
    assert (result.first, result.last) == (first, ends[found.last])
    assert result.scored == Scored(accuracy={"a": 0.5})
    held_weights = files.read(kept)
    # Means of segments are float32 in between: two roundings instead of one.
    expected = mean(loop.iterates[first : ends[found.last] + 1])
    assert torch.allclose(held_weights["w"], expected, rtol=3e-7, atol=1e-7)
    assert held_weights["n"] == steps


@pytest.mark.parametrize("kill", [-1, 0, 3, 4, 5, 8, 11])
def test_ma_is_the_mean_of_all_iterates_from_its_start_to_its_best(
    kill: int, tmp_path: Path
) -> None:
    spec = specified(steps=12, eval_every=2, averages=("ma",), ma_start=4)
    #: Scores of the averaged network by step; 0 to 3 are never asked for. Of 6 and 10, the first.
    scores = [9, 9, 9, 9, 0.4, 9, 0.8, 9, 0.7, 9, 0.8, 0.6]
    loop = Loop("ma", spec, tmp_path / "run", scores)
    result = loop.run([1.0] * 7, kill_after=kill)
    assert result == Averaged(first=4, last=6, scored=Scored(accuracy={"a": 0.8}))
    held = files.read(loop.paths.kept("ma"))
    assert torch.equal(held["w"], mean(loop.iterates[4:7]))
    assert files.about(loop.paths.kept("ma")) == {"step": 6, "score": 0.8}
    assert not loop.paths.kept("ma-last").exists()


def test_ma_moves(tmp_path: Path) -> None:
    """The reference code's never did: its loss went through a copy that nothing updated."""
    kept = []
    for steps in (5, 6, 7):
        spec = specified(steps=steps, eval_every=1, averages=("ma",), ma_start=0)
        loop = Loop("ma", spec, tmp_path / str(steps), [step / 10 for step in range(steps)])
        loop.run([1.0] * steps)
        kept.append(files.read(loop.paths.kept("ma"))["w"])
        assert torch.equal(kept[-1], mean(loop.iterates))
        assert not torch.equal(kept[-1], loop.iterates[-1])
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[1], kept[2])


def test_ma_keeps_its_end_for_the_oracle(tmp_path: Path) -> None:
    spec = specified(steps=6, eval_every=1, averages=("ma",), ma_start=1, track_unseen=True)
    loop = Loop("ma", spec, tmp_path / "run", [0, 0.9, 0.1, 0.1, 0.1, 0.1])
    loop.run([1.0] * 6)
    assert torch.equal(files.read(loop.paths.kept("ma"))["w"], loop.iterates[1])
    last = files.read(loop.paths.kept("ma-last"))["w"]
    assert torch.equal(last, mean(loop.iterates[1:]))


@pytest.mark.parametrize("name", ["ma", "swad"])
def test_one_copy_of_the_weights_is_in_memory(name: str, tmp_path: Path) -> None:
    spec = specified(steps=20, eval_every=2, averages=(name,), ma_start=0)
    loop = Loop(name, spec, tmp_path / "run", [0.5] * 20)
    loop.run([3.0, 2.0, 1.0, 1.1, 1.2, 1.1, 3.0, 1.2, 1.3, 1.1, 1.1])
    tensors, _ = loop.average.state()
    assert set(tensors) <= {"w"}
    assert len(loop.average.files()) <= 7


def test_the_specification_says_what_is_wrong() -> None:
    with pytest.raises(SpecError, match=r"ma_start=100: the run has the steps 0 to 59; give one"):
        specified(steps=60, averages=("ma",))
    assert specified(steps=60).ma_start == 100
    wrong: list[dict[str, Any]] = [{"converge": 0}, {"overfit": 0}, {"tolerance": -0.1}]
    for change in wrong:
        with pytest.raises(SpecError, match=rf"swad\.{next(iter(change))}="):
            SwadSpec(**change)
    with pytest.raises(SpecError, match="no average is called 'swat'; did you mean 'swad'"):
        AVERAGES.get("swat")


def test_keys_of_runs_without_averages_stay() -> None:
    plain = specified(steps=60)
    assert plain.key == specified(steps=60, averages=()).key
    assert plain.key != specified(steps=60, averages=("swad",)).key
    keys = {specified(averages=names).key for names in (("ma", "swad"), ("swad", "ma", "ma"))}
    assert len(keys) == 1
    # From before there were averages.
    assert specified(steps=60, seed=3).key == "d1792022ce0b0f80"
