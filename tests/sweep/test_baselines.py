"""Every baseline that comes of the same pool of runs, against doing it by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from diwa.atomic import write_bytes
from diwa.cli.main import main
from diwa.data.benchmark import Benchmark
from diwa.errors import DiwaError, StoreError
from diwa.evaluate.predict import Weights, predict
from diwa.evaluate.predictions import Predictions
from diwa.report.stores import read_stores
from diwa.runs.store import Averaged, Run, Store
from diwa.soup.uniform import uniform
from diwa.sweep.harvest import Harvest, harvest
from diwa.sweep.judge import Judge
from diwa.sweep.run import by_sweep, run_sweep
from diwa.sweep.spec import SweepSpec

Sweep = Callable[..., SweepSpec]
Swept = Callable[..., list[Run]]


@pytest.fixture
def swept(shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path) -> Swept:
    """Really trained runs, in one store."""

    def made(name: str = "", **changes: object) -> list[Run]:
        spec = tiny_sweep(**{"init": "random", **changes})
        return run_sweep(spec, shapes, tmp_path / "store", name=name, device="cpu")

    return made


@pytest.fixture
def logits(shapes: Benchmark) -> Callable[[Weights], torch.Tensor]:
    def made(weights: Weights) -> torch.Tensor:
        return predict(weights, shapes, "sketch", device="cpu", precision="fp32").logits.double()

    return made


def accuracy(shapes: Benchmark, logits: torch.Tensor, trial: int | None = None) -> float:
    right = (logits.argmax(1).numpy() == shapes["sketch"].labels).astype(float)
    return float(right.mean() if trial is None else right[split(shapes, trial)].mean())


def split(shapes: Benchmark, trial: int) -> np.ndarray:
    return shapes.split("sketch", trial=trial).inner


def together(found: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(found).mean(0).float()


def _of(results: list[Harvest], method: str) -> Harvest:
    (found,) = [result for result in results if method in result.methods]
    return found


def test_averages_of_iterates(swept: Swept, shapes: Benchmark, logits: Callable) -> None:
    runs = swept(runs=3, steps=9, averages=("ma", "swad"), ma_start=2)
    (result,) = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    moving = [logits(run.member("ma")) for run in runs]
    scores = [held.score for run in runs if (held := run.result.averages["ma"].scored)]
    ranked = sorted(runs, key=lambda run: (-run.result.score, run.name))
    best = max(ranked, key=lambda run: scores[runs.index(run)])
    assert result.methods["ma"] == accuracy(shapes, moving[runs.index(best)])
    assert result.methods["eoa"] == accuracy(shapes, together(moving))
    assert result.methods_80["eoa"] == accuracy(shapes, together(moving), trial=0)
    converged = [run for run in ranked if not run.result.averages["swad"].missing]
    if converged:
        best = max(converged, key=lambda run: run.result.averages["swad"].scored.score)  # pyright: ignore
        assert result.methods["swad"] == accuracy(shapes, logits(best.member("swad")))
    else:
        assert "nothing converged" in result.missing["swad"]


def test_a_run_without_a_valley_is_no_swad(swept: Swept, shapes: Benchmark) -> None:
    runs = swept(runs=2, averages=("swad",))
    for run in runs:
        gone = {"swad": Averaged(missing="nothing converged: on purpose")}
        told = msgspec.structs.replace(run.result, averages=gone)
        write_bytes(run.paths.result, told.to_json())
    (result,) = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    assert "swad" not in result.methods
    assert result.missing["swad"] == "none of 2 runs has it; nothing converged: on purpose"


def test_different_starts_are_ensembled_and_averaged_for_comparison(
    swept: Swept, shapes: Benchmark, logits: Callable
) -> None:
    runs = swept(runs=3, share_init="none")
    (result,) = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    says = [logits(run.member()) for run in runs]
    assert list(result.methods) == ["mean", "erm", "dens", "diwa-uniform"]
    assert result.methods["dens"] == accuracy(shapes, together(says))
    assert result.methods["mean"] == pytest.approx(np.mean([accuracy(shapes, one) for one in says]))
    assert (result.soup, result.restricted_soup, result.init) == ("", "", "")
    whole = logits(uniform([run.member() for run in runs]))
    assert result.methods["diwa-uniform"] == accuracy(shapes, whole)
    assert list(result.missing) == ["diwa-restricted"]
    assert "start of its own" in result.missing["diwa-restricted"]


def test_all_trials_in_one_average(swept: Swept, shapes: Benchmark, logits: Callable) -> None:
    runs = swept(runs=2, trials=3, share_init="target")
    results = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    assert [result.trial for result in results] == [0, 1, 2, None]
    dagger = _of(results, "diwa-dagger")
    whole = logits(uniform([run.member() for run in runs]))
    says = together([logits(run.member()) for run in runs])
    assert dagger.methods == {
        "ens-dagger": accuracy(shapes, says),
        "diwa-dagger": accuracy(shapes, whole),
    }
    inner = [accuracy(shapes, whole, trial) for trial in range(3)]
    assert dagger.methods_80["diwa-dagger"] == pytest.approx(np.mean(inner))
    assert len(dagger.members) == 6
    assert {member.trial for member in dagger.members} == {0, 1, 2}
    assert "validation images" in dagger.missing["diwa-restricted"]
    assert Path(dagger.soup).is_file()
    for trial, result in enumerate(results[:3]):
        assert {member.trial for member in result.members} == {trial}


def test_all_trials_of_starts_of_their_own(
    swept: Swept, shapes: Benchmark, logits: Callable
) -> None:
    runs = swept(runs=2, trials=2, share_init="none")
    results = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    assert [(result.trial, len(result.members)) for result in results] == [
        (0, 2),
        (1, 2),
        (None, 4),
    ]
    assert results[2].methods == {
        "ens-dagger": accuracy(shapes, together([logits(run.member()) for run in runs])),
        "diwa-dagger": accuracy(shapes, logits(uniform([run.member() for run in runs]))),
    }
    assert (results[2].soup, results[2].init) == ("", "")


def test_no_model_looks_at_the_unseen_domain_twice(
    swept: Swept, shapes: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    unseen = Judge._unseen

    def counted(judge: Judge, weights: Weights, title: str) -> Predictions:
        looked.append(title)
        return unseen(judge, weights, title)

    monkeypatch.setattr(Judge, "_unseen", counted)
    runs = swept(runs=2, trials=2, share_init="target")
    place = runs[0].paths.folder.parents[1]
    (*_, first) = harvest(place, shapes, device="cpu")
    members = sorted(run.name for run in runs)
    soups = ["diwa-dagger", *("diwa-restricted", "diwa-uniform") * 2]
    assert sorted(looked) == sorted([*members, *soups])
    # Where each trial's are known from before, those of all have to look again.
    looked.clear()
    Path(first.soup).with_name("results.json").unlink()
    assert harvest(place, shapes, device="cpu")[-1] == first
    assert sorted(looked) == sorted([*members, "diwa-dagger"])


def test_each_trial_validates_on_its_own_split(swept: Swept, shapes: Benchmark) -> None:
    runs = swept(runs=2, trials=2, share_init="target", steps=7)
    results = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu", score_target=False)
    for result in results[:2]:
        right = images = 0
        for name in ("cartoon", "photo"):
            outer = shapes.split(name, trial=result.trial or 0).outer
            best = next(run for run in runs if run.name == result.members[0].run)
            says = predict(best.member(), shapes, name, device="cpu", precision="fp32")
            right += says.at(outer).correct()
            images += len(outer)
        assert result.validation["erm"] == right / images


def test_an_ensemble_of_several_averages(swept: Swept, shapes: Benchmark, logits: Callable) -> None:
    first, second = swept(runs=2), swept(runs=2, seed=1)
    results = harvest(first[0].paths.folder.parents[1], shapes, device="cpu")
    says = [logits(uniform([run.member() for run in runs])) for runs in (first, second)]
    found = _of(results, "ens-diwa")
    assert found.methods == {"ens-diwa": accuracy(shapes, together(says))}
    assert sorted(
        result.methods["diwa-uniform"] for result in results if "diwa-uniform" in result.methods
    ) == sorted(accuracy(shapes, one) for one in says)


def test_several_objectives_in_one_pool(swept: Swept, shapes: Benchmark) -> None:
    runs = swept(runs=3, algorithm=("ERM", "CORAL"))
    (result,) = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    assert sorted(member.algorithm for member in result.members) == ["CORAL", "ERM", "ERM"]
    assert "diwa-uniform" in result.methods


def test_the_oracle_chooses_among_last_checkpoints(
    swept: Swept, shapes: Benchmark, logits: Callable
) -> None:
    runs = swept(runs=3, steps=7, track_unseen=True, averages=("ma",), ma_start=1)
    place = runs[0].paths.folder.parents[1]
    (result,) = harvest(place, shapes, selection="oracle", device="cpu")
    (plain,) = harvest(place, shapes, device="cpu")
    assert result.soup != plain.soup
    outer = shapes.split("sketch", trial=0).outer
    last = {run.name: logits(run.member("last")) for run in runs}
    labels = shapes["sketch"].labels
    scores = {
        name: float((one.argmax(1).numpy() == labels)[outer].mean()) for name, one in last.items()
    }
    best = min(last, key=lambda name: (-scores[name], name))
    assert result.methods["erm"] == accuracy(shapes, last[best])
    assert result.validation["erm"] == pytest.approx(scores[best])
    assert result.selection == "oracle"


def test_the_oracle_needs_runs_that_looked(swept: Swept, shapes: Benchmark) -> None:
    runs = swept(runs=2)
    place = runs[0].paths.folder.parents[1]
    with pytest.raises(StoreError, match="did not track the unseen domain; train it with"):
        harvest(place, shapes, selection="oracle", device="cpu")
    with pytest.raises(DiwaError, match="leave --no-score out"):
        harvest(place, shapes, selection="oracle", score_target=False, device="cpu")


def test_leave_one_out_needs_no_other_flag(swept: Swept, shapes: Benchmark) -> None:
    runs = swept(runs=2, leave_one_out=True)
    (found,) = [
        record
        for record in read_stores([runs[0].paths.folder.parents[1]]).records
        if (record.chosen, record.domain) == ("leave-one-out", "sketch")
    ]
    assert found.runs == 2
    choices: list[tuple[tuple[float, int, int], float]] = []
    for draw in range(2):
        # A run for each domain that is left out besides the target.
        held = {run.spec.task.unseen: run for run in runs if run.spec.hparams_seed == draw}
        pairs = {"cartoon": held["cartoon", "sketch"], "photo": held["photo", "sketch"]}
        for place, row in enumerate(held["sketch",].history):
            others = [run.history[place].unseen[name] for name, run in pairs.items()]
            # Of equal steps the first counts, of equal draws the last.
            choices.append(((float(np.mean(others)), draw, -place), row.unseen["sketch"]))
    assert found.value == max(choices)[1]


def test_runs_that_only_choose_others_are_no_members(swept: Swept, shapes: Benchmark) -> None:
    runs = swept(runs=2, leave_one_out=True)
    assert any(len(run.spec.task.unseen) == 2 for run in runs)
    (result,) = harvest(runs[0].paths.folder.parents[1], shapes, device="cpu")
    assert result.target == "sketch"


def test_what_is_done_is_not_done_again(
    swept: Swept, shapes: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = swept(runs=2)
    place = runs[0].paths.folder.parents[1]
    (first,) = harvest(place, shapes, score_target=False, device="cpu")
    (scored,) = harvest(place, shapes, device="cpu")
    assert scored.methods
    assert not first.methods
    copied = place.parent / "copied"
    shutil.copytree(place, copied)
    with monkeypatch.context() as patched:
        patched.setattr("diwa.sweep.harvest.Judge", None)
        assert harvest(place, shapes, device="cpu") == [scored]
        (moved,) = harvest(copied, shapes, device="cpu")
        assert moved.methods == scored.methods
        assert Path(moved.soup).is_relative_to(copied), "not the store that it was copied from"
        Path(scored.soup).unlink()
        with pytest.raises(TypeError):
            harvest(place, shapes, device="cpu")
    more = swept(runs=3)
    (again,) = harvest(place, shapes, device="cpu")
    assert len(again.members) == len(more)


def test_a_recipes_sweeps_are_averaged_one_by_one(
    swept: Swept, shapes: Benchmark, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    few, many = swept("few", runs=2), swept("many", runs=3)
    other = swept(runs=2, seed=3)
    store = Store(few[0].paths.folder.parents[1])
    held = by_sweep(store)
    assert {name: len(runs) for name, runs in held.items()} == {"few": 2, "many": 3, "": 2}
    assert {run.name for run in held[""]} == {run.name for run in other}
    assert list(by_sweep(store, ["many"])) == ["many"]
    with pytest.raises(StoreError, match="did you mean 'many'"):
        by_sweep(store, ["manny"])
    place = ["--data", str(folder), "--device", "cpu"]
    assert main(["soup", str(store.root), "--sweep", "few", "many", *place, "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out, type=list[Harvest])
    assert [(one.sweep, len(one.members)) for one in told] == [("few", 2), ("many", 3)]
    assert len(many) == 3
    records = read_stores([store.root]).records
    assert {(one.sweep, one.runs) for one in records} == {("few", 2), ("many", 3)}


def test_restricting_over_trials_is_refused(swept: Swept) -> None:
    from diwa.soup.greedy import greedy

    runs = swept(runs=1, trials=2, share_init="target")
    with pytest.raises(DiwaError, match="validated on another split"):
        greedy([run.member() for run in runs], score=lambda weights: 0.0)
