"""Last-layer retraining of a store's runs, against doing it by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from diwa.data.benchmark import Benchmark
from diwa.errors import DiwaError
from diwa.evaluate.features import predict_with_features
from diwa.evaluate.lastlayer import fit_head
from diwa.report.lastlayer import layer_tables, shown
from diwa.runs.store import Store
from diwa.soup.uniform import uniform
from diwa.sweep.harvest import harvest
from diwa.sweep.retrain import LayerScore, RetrainedPool, retrain_runs
from diwa.sweep.run import run_sweep
from diwa.sweep.spec import SweepSpec
from diwa.weights.member import Member

Sweep = Callable[..., SweepSpec]


def _by(pool: RetrainedPool) -> dict[tuple[str, int, int], LayerScore]:
    return {(one.features, one.percent, one.tested_percent): one for one in pool.scores}


def test_each_number_is_what_it_is_by_hand(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    runs = run_sweep(tiny_sweep(runs=2, steps=3), shapes, store, device="cpu")
    (pool,) = retrain_runs(store, shapes, device="cpu")
    ranked = sorted(runs, key=lambda run: (-run.result.score, run.name))
    assert pool.runs == [run.name for run in ranked]
    assert (pool.data, pool.target, pool.trial, pool.images) == ("shapes", "sketch", 0, 12)
    found = _by(pool)
    assert set(found) == {
        *(("pretrained", percent, 100 - percent) for percent in (20, 80)),
        *((row, 0, tested) for row in ("erm", "diwa") for tested in (20, 80)),
        *((row, percent, 100 - percent) for row in ("erm", "diwa") for percent in (20, 80)),
    }
    encoders = {
        "pretrained": Member.from_file(store.paths.init(ranked[0].spec.init.key).weights),
        "erm": ranked[0].member(),
        "diwa": uniform([run.member() for run in ranked]),
    }
    sides = shapes.split("sketch", trial=0)
    for name, weights in encoders.items():
        says = predict_with_features(weights, shapes, "sketch", device="cpu", precision="fp32")
        assert says.features is not None
        for percent, inside, outside in (
            (20, sides.outer, sides.inner),
            (80, sides.inner, sides.outer),
        ):
            train, test = np.sort(inside), np.sort(outside)
            head = fit_head(says.features[train], says.labels[train], 2)
            right = head.logits(says.features[test]).argmax(1) == says.labels[test]
            one = found[name, percent, 100 - percent]
            assert one.accuracy == right.double().mean().item()
            assert (one.trained_on, one.tested_on) == (len(train), len(test))
            assert one.strength == head.strength
    (whole,) = harvest(store, shapes, device="cpu")
    assert found["erm", 0, 80].accuracy == whole.methods_80["erm"]
    assert found["diwa", 0, 80].accuracy == whole.methods_80["diwa-uniform"]
    assert found["erm", 0, 80].tested_on == found["erm", 20, 80].tested_on == 10
    assert found["erm", 0, 20].tested_on == found["erm", 80, 20].tested_on == 2
    assert RetrainedPool.from_file(Path(pool.results)) == pool
    assert not pool.saved


def test_trials_are_averaged_over_and_saved_apart(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    """Two trials that share one start are two pools, each with its own split."""
    store = Store(tmp_path / "store")
    spec = tiny_sweep(runs=2, steps=2, trials=2, init="random", share_init="target")
    run_sweep(spec, shapes, store, device="cpu")
    pools = retrain_runs(store, shapes, out=tmp_path / "out", save=True, device="cpu")
    assert [pool.trial for pool in pools] == [0, 1]
    assert [len(pool.runs) for pool in pools] == [2, 2]
    assert len({pool.init for pool in pools}) == 1
    for pool in pools:
        assert [Path(path).name for path in pool.saved] == [
            "soup-20.safetensors",
            "soup-80.safetensors",
        ]
        for path, percent in zip(pool.saved, (20, 80), strict=True):
            says = predict_with_features(
                Member.from_file(path), shapes, "sketch", device="cpu", precision="fp32"
            )
            sides = shapes.split("sketch", trial=pool.trial)
            test = torch.from_numpy(sides.inner if percent == 20 else sides.outer)
            right = (says.logits.argmax(1) == says.labels)[test].double().mean().item()
            assert right == _by(pool)["diwa", percent, 100 - percent].accuracy
    (table,) = layer_tables(pools)
    assert table.trials == [0, 1]
    for one in table.cells:
        values = [
            100 * _by(pool)[one.features, one.percent, one.tested_percent].accuracy
            for pool in pools
        ]
        assert one.accuracy.mean == pytest.approx(np.mean(values))
        assert one.accuracy.error == pytest.approx(np.std(values) / np.sqrt(2))
        assert one.accuracy.trials == 2
    assert [str(column.header) for column in shown(table).columns[1:]] == [
        "0 %\n80 %\n10",
        "20 %\n80 %\n10",
        "0 %\n20 %\n2",
        "80 %\n20 %\n2",
    ]


def test_one_percentage_and_other_starts(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    run_sweep(tiny_sweep(runs=1, steps=2), shapes, store, device="cpu")
    run_sweep(tiny_sweep(runs=1, steps=2, init="random"), shapes, store, device="cpu")
    pools = retrain_runs(store, shapes, percents=(20,), device="cpu")
    assert sorted(pool.head for pool in pools) == ["lp", "random"]
    assert all({one.tested_percent for one in pool.scores} == {80} for pool in pools)
    assert len(layer_tables(pools)) == 2, "different kinds of starts are not averaged"
    kept = list((store.root / "features").iterdir())
    # A soup of one run is that run, and both start from one encoder: features are kept once.
    assert len(kept) == 3


def test_refusals(shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path) -> None:
    with pytest.raises(DiwaError, match="none of its 0 runs is finished; run diwa sweep"):
        retrain_runs(tmp_path / "store", shapes)
    apart = tiny_sweep(share_init="none", init="random", steps=1)
    run_sweep(apart, shapes, tmp_path / "apart", device="cpu")
    with pytest.raises(DiwaError, match=r"none of its 2 finished runs .* share a start"):
        retrain_runs(tmp_path / "apart", shapes)
    with pytest.raises(DiwaError, match="images 50; choose 20, 80 or both"):
        retrain_runs(tmp_path / "store", shapes, percents=(50,))
    with pytest.raises(DiwaError, match="no share of the unseen domain"):
        retrain_runs(tmp_path / "store", shapes, percents=())
