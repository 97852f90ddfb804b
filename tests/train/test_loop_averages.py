"""Averages of iterates in real runs: what they are, what they cost, and that kills lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError, StoreError
from diwa.evaluate.predict import predict_network, source_of
from diwa.models.device import Compute
from diwa.models.network import Network, restore_network
from diwa.runs.spec import RunSpec, SwadSpec
from diwa.runs.store import Row, Run, Store
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec
from diwa.train import loop
from diwa.train.averages.valley import valley
from diwa.train.loop import train_run
from diwa.train.workplace import Workplace
from diwa.weights import files

Sweep = Callable[..., SweepSpec]


@pytest.fixture
def plain(shapes: Benchmark, tiny_sweep: Sweep) -> RunSpec:
    """Enough steps, and large enough ones, for the loss to rise and fall."""
    sweep = tiny_sweep(steps=9, hparams={"batch_size": (4.0,), "lr": (1e-2,), "dropout": (0.1,)})
    return plan(sweep, shapes, device="cpu")[1]


@pytest.fixture
def spec(plain: RunSpec) -> RunSpec:
    swad = SwadSpec(converge=2, overfit=2, tolerance=0.02)
    return msgspec.structs.replace(plain, averages=("ma", "swad"), ma_start=3, swad=swad)


@pytest.fixture
def place(shapes: Benchmark, tmp_path: Path) -> Workplace:
    return Workplace(benchmark=shapes, store=Store(tmp_path / "store"), device="cpu")


def outcome(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.paths.folder.iterdir() if path.is_file()}


class Recording:
    """Keeps every iterate, as nobody should who can help it."""

    def __init__(self) -> None:
        self.iterates: list[dict[str, torch.Tensor]] = []

    def after_step(self, step: int, network: Network) -> None:
        assert step == len(self.iterates)
        self.iterates.append({n: t.clone() for n, t in network.weights().items()})

    def after_validation(self, row: Row, network: Network) -> None:
        assert row.step == len(self.iterates) - 1

    def mean(self, first: int, last: int) -> dict[str, torch.Tensor]:
        chosen = self.iterates[first : last + 1]
        return {
            name: torch.stack([one[name].double() for one in chosen]).mean(0).to(tensor.dtype)
            for name, tensor in chosen[0].items()
        }


def _same(held: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert held.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(held[name], tensor, rtol=3e-7, atol=1e-8), name


def _accuracy(weights: dict[str, torch.Tensor], run: Run, shapes: Benchmark) -> dict[str, float]:
    """On what the source domains held out, with a network that is built for it."""
    network = restore_network(files.about(run.paths.weights), weights)
    compute, image = Compute.choose("cpu", "fp32"), run.spec.task.image
    return {
        name: predict_network(
            network, source_of(shapes[name], shapes.split(name, trial=0).outer), image, compute
        ).accuracy()
        for name in ("cartoon", "photo")
    }


def test_equal_naive_means_of_saved_iterates(
    spec: RunSpec, place: Workplace, shapes: Benchmark
) -> None:
    watching = Recording()
    run = train_run(spec, place, observers=[watching])
    rows, results = run.history, run.result.averages
    # MA, at each validation and at its best one.
    assert [row.step for row in rows if "ma" in row.averages] == [4, 6, 8]
    for row in rows[2:]:
        mean = watching.mean(3, row.step)
        assert row.averages["ma"].accuracy == _accuracy(mean, run, shapes)
    best = max(rows[2:], key=lambda row: row.averages["ma"].score)
    assert (results["ma"].first, results["ma"].last) == (3, best.step)
    assert results["ma"].scored == best.averages["ma"]
    _same(files.read(run.paths.kept("ma")), watching.mean(3, best.step))
    # SWAD, from what the history says alone.
    losses = [sum(loss or 0.0 for loss in row.losses.values()) / 2 for row in rows]
    found = valley(losses, converge=2, overfit=2, tolerance=0.02)
    assert found is not None, losses
    assert found.last > found.first > 0, "else this curve tests too little"
    first, last = rows[found.first - 1].step + 1, rows[found.last].step
    assert (results["swad"].first, results["swad"].last) == (first, last)
    mean = watching.mean(first, last)
    _same(files.read(run.paths.kept("swad")), mean)
    scored = results["swad"].scored
    assert scored is not None
    assert scored.accuracy == _accuracy(mean, run, shapes)


def test_losses_are_those_of_the_weights_as_they_are(
    spec: RunSpec, place: Workplace, shapes: Benchmark
) -> None:
    watching = Recording()
    run = train_run(spec, place, observers=[watching])
    row = run.history[-1]
    network = restore_network(files.about(run.paths.weights), watching.iterates[-1])
    for name in ("cartoon", "photo"):
        source = source_of(shapes[name], shapes.split(name, trial=0).outer)
        compute = Compute.choose("cpu", "fp32")
        says = predict_network(network, source, spec.task.image, compute)
        assert row.losses[name] == pytest.approx(says.cross_entropy(), rel=1e-6)


def test_watching_changes_nothing_of_the_run_itself(
    plain: RunSpec, spec: RunSpec, place: Workplace
) -> None:
    bare, watched = train_run(plain, place), train_run(spec, place)
    one, two = files.read(bare.paths.weights), files.read(watched.paths.weights)
    assert all(torch.equal(one[name], two[name]) for name in one)
    for ours, theirs in zip(bare.history, watched.history, strict=True):
        assert msgspec.structs.replace(theirs, averages={}) == ours


def test_they_cost_one_more_scoring_and_no_training(
    spec: RunSpec, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, scored = 0, 0
    step, predict = loop._Training._step, loop.predict_network

    def counted_step(*rest: Any) -> Any:
        nonlocal trained
        trained += 1
        return step(*rest)

    def counted_predict(*rest: Any, **more: Any) -> Any:
        nonlocal scored
        scored += 1
        return predict(*rest, **more)

    monkeypatch.setattr(loop._Training, "_step", counted_step)
    monkeypatch.setattr(loop, "predict_network", counted_predict)
    train_run(spec, place)
    assert trained == spec.steps
    # Two source domains; five validations, three of MA, one of SWAD.
    assert scored == 2 * (5 + 3 + 1)


def test_members_of_a_run(spec: RunSpec, place: Workplace) -> None:
    run = train_run(spec, place)
    best, ma, swad = (run.member(which) for which in ("best", "ma", "swad"))
    assert (best.name, ma.name, swad.name) == (run.name,) * 3
    assert best.init == ma.init == swad.init is not None
    assert best.split == ma.split == swad.split is not None
    scored = run.result.averages["ma"].scored
    assert scored is not None
    assert (best.score, ma.score) == (run.result.score, scored.score)
    assert ma.about["average"] == "ma"
    assert restore_network(ma.about, dict(ma.tensors())) is not None
    with pytest.raises(StoreError, match=r"did not keep 'last'; train it with --track-unseen"):
        run.member("last")


def test_what_a_run_did_not_keep_is_said(plain: RunSpec, place: Workplace) -> None:
    run = train_run(plain, place)
    with pytest.raises(StoreError, match="did not keep 'ma'; train it with --averages ma"):
        run.member("ma")


def test_nothing_converged(spec: RunSpec, place: Workplace) -> None:
    never = msgspec.structs.replace(spec, swad=SwadSpec(converge=9), averages=("swad",))
    run = train_run(never, place)
    held = run.result.averages["swad"]
    why = "it takes 9 validations to tell, and there are 5"
    assert held.missing == f"nothing converged: {why}"
    assert (held.first, held.last, held.scored) == (None, None, None)
    assert set(outcome(run)) == {
        *(".lock", "spec.json", "history.json", "weights.safetensors", "result.json")
    }
    with pytest.raises(StoreError, match=r"has no swad \(nothing converged: "):
        run.member("swad")


def test_tracking_keeps_the_ends(spec: RunSpec, place: Workplace, shapes: Benchmark) -> None:
    watching = Recording()
    tracked = msgspec.structs.replace(spec, track_unseen=True)
    run = train_run(tracked, place, observers=[watching])
    _same(files.read(run.paths.kept("last")), watching.iterates[-1])
    _same(files.read(run.paths.kept("ma-last")), watching.mean(3, 8))
    assert run.member("last").score == run.history[-1].score
    assert all(set(row.unseen) == {"sketch"} for row in run.history)
    averages = [*(row.averages["ma"] for row in run.history[2:])]
    averages += [one.scored for one in run.result.averages.values() if one.scored]
    assert all(set(one.unseen) == {"sketch"} for one in averages)


def test_an_unknown_average_is_refused(shapes: Benchmark, plain: RunSpec, place: Workplace) -> None:
    del shapes
    odd = msgspec.structs.replace(plain, averages=("swat",))
    with pytest.raises(SpecError, match="no average is called 'swat'; did you mean 'swad'"):
        train_run(odd, place)


class _Died(BaseException):
    """As sudden as a kill: nothing may catch it to clean up a run."""


def test_dying_at_any_write_loses_nothing(
    spec: RunSpec, place: Workplace, shapes: Benchmark, tmp_path: Path, monkeypatch: Any
) -> None:
    """Stops after each single rename in turn, then goes on; states are saved at odd times."""
    swad = SwadSpec(tolerance=0, overfit=5)
    short = msgspec.structs.replace(spec, steps=7, eval_every=1, swad=swad)
    short = msgspec.structs.replace(short, track_unseen=True)
    run = train_run(short, place)
    expected = outcome(run)
    assert len([name for name in expected if name.startswith("weights")]) == 5
    assert run.result.averages["swad"].first == 1, "looks back, and not to the start"
    rename = Path.replace
    for when in range(100):
        store = Store(tmp_path / f"store{when}")
        # After every step, or some time between two.
        pause = 0.0 if when % 2 else 0.05
        here = Workplace(benchmark=shapes, store=store, device="cpu", save_every=pause)
        calls = 0

        def dying(self: Path, target: Path, when: int = when) -> Path:
            nonlocal calls
            calls += 1
            result = rename(self, target)
            if calls == when + 1:
                raise _Died
            return result

        monkeypatch.setattr(Path, "replace", dying)
        try:
            train_run(short, here)
        except _Died:
            survived = False
        else:
            survived = True
        monkeypatch.setattr(Path, "replace", rename)
        assert outcome(train_run(short, here)) == expected, f"after dying at {when}"
        if survived:
            return
    pytest.fail("the run renames more files than this test stops at")


def test_files_of_weights_do_not_pile_up(spec: RunSpec, place: Workplace) -> None:
    """Between two saves of the state, too: they may be far apart."""
    longer = msgspec.structs.replace(spec, steps=16, eval_every=1, swad=SwadSpec())
    run, most = place.store.run(longer), 0

    class Watching:
        def after_step(self, step: int, network: Network) -> None:
            nonlocal most
            most = max(most, len(run.paths.passing()))

        def after_validation(self, row: Row, network: Network) -> None:
            pass

    train_run(longer, place, observers=[Watching()])
    # The best, MA's best, the valley, and the segments that look-back may still need.
    assert 0 < most <= 2 + 1 + 6
    assert run.paths.passing() == []


def test_what_a_kill_left_half_written_is_removed(spec: RunSpec, place: Workplace) -> None:
    left = place.store.start(spec).paths.folder / ".state.safetensors.1-abc.part"
    left.write_bytes(b"half")
    run = train_run(spec, place)
    assert not left.exists()
    left.write_bytes(b"half")
    assert train_run(spec, place).finished
    assert set(run.paths.folder.glob("*.part")) == set()
    assert not left.exists()
