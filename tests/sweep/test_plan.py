"""From a sweep to its runs: draws, seeds, keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from diwa.data.benchmark import Benchmark, open_folder
from diwa.errors import DataError, DiwaError, ModelError, SpecError
from diwa.seeding import run_seed, seed_hash
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec

Sweep = Callable[..., SweepSpec]


def test_the_default_sweep_is_the_papers(shapes: Benchmark) -> None:
    spec = SweepSpec(target=("sketch",), weights="none")
    runs = plan(spec, shapes, device="cpu")
    assert len(runs) == 20
    first = runs[0]
    assert (first.steps, first.eval_every, first.algorithm) == (5001, 100, "ERM")
    assert first.init.backbone == "resnet50.tv_in1k"
    assert (first.init.head, first.init.steps, first.init.lr) == ("lp", 5001, 5e-5)
    assert {run.hparams["lr"] for run in runs} == {1e-5, 3e-5, 5e-5}
    assert all(run.hparams["batch_size"] == 32 for run in runs)


def test_draws_have_the_protocols_golden_values(shapes: Benchmark) -> None:
    runs = plan(SweepSpec(target=("sketch",), weights="none"), shapes, device="cpu")
    drawn = [
        (run.hparams["lr"], run.hparams["weight_decay"], run.hparams["dropout"]) for run in runs
    ]
    assert drawn[1:4] == [(3e-5, 1e-4, 0.5), (1e-5, 1e-6, 0.5), (3e-5, 1e-6, 0.0)]
    assert [run.hparams_seed for run in runs] == list(range(20))


@pytest.mark.parametrize(
    ("data", "algorithm"),
    [(d, a) for d in ("ColoredMNIST", "DomainNet", "domain_net", "PACS") for a in ("ERM", "DANN")],
)
def test_extreme_draws_have_domainbeds_ranges_of_the_data_set(
    folder: Path, data: str, algorithm: str
) -> None:
    """DomainBed has other ranges for digits, and smaller batches for DomainNet."""
    images = open_folder(folder, name=data, allow_small_domains=True)
    spec = SweepSpec(
        target=("sketch",), weights="none", algorithm=(algorithm,), space="extreme", runs=30
    )
    digits, dann = data == "ColoredMNIST", algorithm == "DANN"
    for number, run in enumerate(plan(spec, images, device="cpu")):

        def chance(name: str, number: int = number) -> np.random.RandomState:
            return np.random.RandomState(seed_hash(seed_hash(number, 0), name))

        rate = (-4.5, -2.5) if digits else (-5, -3.5)
        assert run.hparams["lr"] == 10 ** chance("lr_g" if dann else "lr").uniform(*rate)
        decay = 10 ** chance("weight_decay_g" if dann else "weight_decay").uniform(-6, -2)
        assert run.hparams["weight_decay"] == (0.0 if digits else decay)
        power = chance("batch_size").uniform(
            3, 9 if digits else 5 if "net" in data.lower() else 5.5
        )
        assert run.hparams["batch_size"] == int(2**power)
        if dann:
            assert run.hparams["lr_d"] == 10 ** chance("lr_d").uniform(*rate)
            assert run.hparams["weight_decay_d"] > 0


def test_mild_draws_are_the_same_for_all_data_sets(folder: Path) -> None:
    drawn = []
    for data in ("ColoredMNIST", "DomainNet", "PACS"):
        images = open_folder(folder, name=data, allow_small_domains=True)
        spec = SweepSpec(target=("sketch",), weights="none", space="mild", runs=10)
        drawn.append([run.hparams for run in plan(spec, images, device="cpu")])
    assert drawn[0] == drawn[1] == drawn[2]


def test_run_seeds_are_domainbeds(folder: Path) -> None:
    images = open_folder(folder, name="OfficeHome", allow_small_domains=True)
    spec = SweepSpec(target=("cartoon",), weights="none", runs=1)
    assert plan(spec, images, device="cpu")[0].seed == run_seed("OfficeHome", "ERM", [0], 0, 0)
    assert plan(spec, images, device="cpu")[0].seed == 851163946


def test_all_runs_of_a_target_and_trial_share_one_start(
    shapes: Benchmark, tiny_sweep: Sweep
) -> None:
    runs = plan(tiny_sweep(target=("all",), trials=2), shapes, device="cpu")
    assert len(runs) == 3 * 2 * 2
    assert len({run.key for run in runs}) == len(runs)
    starts = {(run.task.unseen, run.task.trial): run.init.key for run in runs}
    assert len(set(starts.values())) == 6
    for run in runs:
        assert run.init.key == starts[run.task.unseen, run.task.trial]


def test_few_steps_mean_larger_learning_rates(shapes: Benchmark, tiny_sweep: Sweep) -> None:
    def rates(**changes: object) -> tuple[set[float], float]:
        runs = plan(tiny_sweep(hparams={}, runs=20, **changes), shapes, device="cpu")
        return {run.hparams["lr"] for run in runs}, runs[0].init.lr

    assert rates(steps=999) == ({2e-4, 4e-4, 6e-4}, 1e-3)
    assert rates(steps=1000) == ({1e-5, 3e-5, 5e-5}, 5e-5)
    assert rates(steps=999, space="mild") == ({1e-5, 3e-5, 5e-5}, 5e-5)
    assert rates(steps=1000, space="short", lp_lr=0.5)[1] == 0.5


def test_named_choices_replace_the_draw(shapes: Benchmark, tiny_sweep: Sweep) -> None:
    runs = plan(tiny_sweep(runs=30, hparams={"lr": (1.0, 2.0)}), shapes, device="cpu")
    assert {run.hparams["lr"] for run in runs} == {1.0, 2.0}


def test_a_key_depends_on_the_science_only(folder: Path, tmp_path: Path, tiny_sweep: Sweep) -> None:
    elsewhere = tmp_path / "elsewhere" / "shapes"
    elsewhere.parent.mkdir()
    here = plan(tiny_sweep(), open_folder(folder, allow_small_domains=True), device="cpu")
    folder.rename(elsewhere)
    there = open_folder(elsewhere, allow_small_domains=True, cache_dir=tmp_path / "other")
    assert [run.key for run in plan(tiny_sweep(), there, device="cpu")] == [r.key for r in here]
    for change in (
        {"steps": 6},
        {"seed": 1},
        {"size": (48,)},
        {"init": "random"},
        {"backbone": "test_efficientnet"},
        {"lp_views": 3},
        {"precision": "bf16"},
    ):
        assert plan(tiny_sweep(**change), there, device="cpu")[0].key != here[0].key, change


def test_a_key_survives_the_way_to_disk_and_back(shapes: Benchmark, tiny_sweep: Sweep) -> None:
    for run in plan(tiny_sweep(hparams={"batch_size": (4.0,)}), shapes, device="cpu"):
        assert type(run).from_json(run.to_json()).key == run.key


def test_weights_are_known_by_content_not_by_path(
    shapes: Benchmark, tmp_path: Path, tiny_sweep: Sweep
) -> None:
    first, second = tmp_path / "a.pth", tmp_path / "b.pth"
    for path in (first, second):
        path.write_bytes(b"the same")
    keys = [
        plan(tiny_sweep(weights=str(path)), shapes, device="cpu")[0] for path in (first, second)
    ]
    assert keys[0] == keys[1]
    assert keys[0].init.weights == hashlib.sha256(b"the same").hexdigest()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"target": ("sketsch",)}, DataError, "did you mean 'sketch'"),
        ({"algorithm": "EMR"}, SpecError, "did you mean 'ERM'"),
        ({"hparams": {"learning_rate": (1.0,)}}, SpecError, "it has lr, weight_decay"),
        ({"weights": "nowhere.pth"}, ModelError, r"nowhere\.pth: no such file"),
        ({"backbone": "resnet5"}, ModelError, "did you mean resnet50"),
        ({"backbone": "resnet50.nobodys"}, ModelError, "no weights tagged 'nobodys'"),
        ({"weights": "demo"}, ModelError, "no package carries its weights"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(
    shapes: Benchmark, tiny_sweep: Sweep, change: dict, error: type[DiwaError], says: str
) -> None:
    with pytest.raises(error, match=says):
        plan(tiny_sweep(**change), shapes, device="cpu")


@pytest.mark.parametrize(
    "change",
    [{"runs": 0}, {"steps": 0}, {"target": ()}, {"size": (1, 2, 3)}, {"lp_lr": 0.0}],
    ids=str,
)
def test_a_sweep_that_makes_no_sense_can_not_be_written(tiny_sweep: Sweep, change: dict) -> None:
    with pytest.raises(SpecError, match=next(iter(change)).replace("target", "no target")):
        tiny_sweep(**change)


def test_a_single_domain_is_not_enough(folder: Path, tiny_sweep: Sweep) -> None:
    import shutil

    shutil.rmtree(folder / "photo")
    shutil.rmtree(folder / "cartoon")
    with pytest.raises(DataError, match="has one domain only"):
        plan(tiny_sweep(), open_folder(folder, allow_small_domains=True), device="cpu")


def test_a_sweep_reads_back_from_its_own_json(tiny_sweep: Sweep) -> None:
    spec = tiny_sweep()
    assert SweepSpec.from_json(spec.to_json()) == spec
    assert msgspec.json.decode(spec.to_json())["target"] == ["sketch"]
