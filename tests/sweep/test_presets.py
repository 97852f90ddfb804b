"""The protocol's presets: what each does, and that runs say which one they follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from diwa.data.benchmark import Benchmark, open_folder
from diwa.data.loaders import augmented_batches, eval_batches
from diwa.data.split import common
from diwa.errors import DataError, SpecError
from diwa.runs.presets import PRESETS
from diwa.runs.spec import InitSpec, RunSpec, TaskSpec
from diwa.runs.store import Store
from diwa.seeding import run_seed
from diwa.sweep.plan import plan
from diwa.sweep.run import run_one, run_sweep
from diwa.sweep.spec import SweepSpec
from diwa.train.workplace import Workplace
from diwa.weights import files

Sweep = Callable[..., SweepSpec]

DEFAULTS = {"lr": 5e-5, "weight_decay": 0.0, "dropout": 0.0, "batch_size": 32}


def _plan(images: Benchmark, **changes: object) -> list[RunSpec]:
    settings: dict = {"target": ("sketch",), "weights": "none", "init": "random", **changes}
    return plan(SweepSpec(**settings), images, device="cpu")


def test_keys_stay_what_they_are() -> None:
    # Folders on users' disks have these names: a change here orphans them.
    task = TaskSpec(data="PACS", digest="0123456789abcdef", unseen=("sketch",), trial=1)
    init = InitSpec(task=task, head="lp", steps=5001, seed=7)
    run = RunSpec(init=init, hparams={"lr": 3e-5, "batch_size": 32}, hparams_seed=1, seed=851163946)
    assert (task.key, init.key) == ("3104fd6effdb1c69", "098bcf08ae6a85c6")
    assert run.key == "28e7d1a7e602af5b"


@pytest.mark.parametrize("protocol", PRESETS)
def test_every_run_says_which_one_it_follows(shapes: Benchmark, protocol: str) -> None:
    runs = _plan(shapes, protocol=protocol)
    assert {run.task.protocol for run in runs} == {protocol}
    assert RunSpec.from_json(runs[0].to_json()).task.protocol == protocol
    fixed = {run.key for run in _plan(shapes)}
    assert ({run.key for run in runs} == fixed) == (protocol == "fixed")
    assert fixed.isdisjoint(run.key for run in runs) == (protocol != "fixed")


@pytest.mark.parametrize(
    ("protocol", "name", "steps"),
    [
        ("fixed", "DomainNet", 15001),
        ("paper", "DomainNet", 15001),
        ("released", "DomainNet", 5001),
        ("released", "PACS", 5001),
        ("paper", "PACS", 5001),
        ("paper", "domain_net", 15001),
    ],
)
def test_steps(folder: Path, protocol: str, name: str, steps: int) -> None:
    images = open_folder(folder, name=name, allow_small_domains=True)
    (run,) = _plan(images, protocol=protocol, runs=1, init="lp")
    assert (run.steps, run.init.steps) == (steps, steps)
    (told,) = _plan(images, protocol=protocol, runs=1, steps=7)
    assert told.steps == 7


@pytest.mark.parametrize("protocol", PRESETS)
def test_draws(shapes: Benchmark, protocol: str) -> None:
    for trial in range(2):
        runs = _plan(shapes, protocol=protocol, trials=2)[20 * trial : 20 * trial + 20]
        assert [run.hparams_seed for run in runs] == list(range(20))
        defaults = [place for place, run in enumerate(runs) if run.hparams == DEFAULTS]
        # 20 runs of the released code are 1 default and 19 drawn; the paper draws all.
        assert defaults == ([0] if protocol == "released" else [])
    runs = _plan(shapes, protocol=protocol)
    drawn = [(r.hparams["lr"], r.hparams["weight_decay"], r.hparams["dropout"]) for r in runs]
    assert drawn[1:4] == [(3e-5, 1e-4, 0.5), (1e-5, 1e-6, 0.5), (3e-5, 1e-6, 0.0)]


def test_mixups_alpha(shapes: Benchmark) -> None:
    def alphas(protocol: str) -> list[float]:
        runs = _plan(shapes, protocol=protocol, algorithm="Mixup")
        return [run.hparams["alpha"] for run in runs]

    released = alphas("released")
    assert released[0] == 0.2
    assert released[1:] == [0.1] * 19
    assert len(set(alphas("fixed"))) == 20
    assert alphas("fixed") == alphas("paper")


@pytest.mark.parametrize("protocol", PRESETS)
def test_run_seeds_are_domainbeds(folder: Path, protocol: str) -> None:
    images = open_folder(folder, name="OfficeHome", allow_small_domains=True)
    runs = _plan(images, target=("cartoon",), protocol=protocol, trials=2, runs=3)
    assert runs[0].seed == 851163946
    assert [run.seed for run in runs] == [
        run_seed("OfficeHome", "ERM", [0], draw, trial) for trial in range(2) for draw in range(3)
    ]


@pytest.mark.parametrize("protocol", ["paper", "released"])
def test_short_runs_of_the_papers_protocol_draw_its_learning_rates(
    shapes: Benchmark, protocol: str
) -> None:
    runs = _plan(shapes, protocol=protocol, steps=10)
    assert {run.hparams["lr"] for run in runs} == {1e-5, 3e-5, 5e-5}
    assert {run.hparams["lr"] for run in _plan(shapes, steps=10)} == {2e-4, 4e-4, 6e-4}


class TestWhoStartsAlike:
    def test_in_the_papers_protocol_all_trials_of_a_target(self, shapes: Benchmark) -> None:
        for protocol in ("paper", "released"):
            for head in ("random", "lp"):
                runs = _plan(
                    shapes, protocol=protocol, init=head, trials=3, runs=2, target=("all",)
                )
                starts = {(run.task.unseen, run.init.key) for run in runs}
                assert len(starts) == 3
                # Probed on the first trial's split, whichever trial the run is of.
                assert {(run.init.task.trial, run.init.trials) for run in runs} == {(0, 1)}
                assert [run.task.trial for run in runs[:6]] == [0, 0, 1, 1, 2, 2]
                assert len({run.key for run in runs}) == len(runs)

    def test_in_fixed_those_of_a_trial_unless_told(self, shapes: Benchmark) -> None:
        runs = _plan(shapes, init="lp", trials=3, runs=2)
        assert len({run.init.key for run in runs}) == 3
        assert [run.init.task.trial for run in runs] == [0, 0, 1, 1, 2, 2]
        shared = _plan(shapes, init="lp", trials=3, runs=2, share_init="target")
        assert len({run.init.key for run in shared}) == 1
        assert shared[0].init.trials == 3
        assert [run.task.trial for run in shared] == [0, 0, 1, 1, 2, 2]

    def test_a_drawn_head_is_the_same_for_any_number_of_trials(self, shapes: Benchmark) -> None:
        three = _plan(shapes, trials=3, runs=1, share_init="target")
        (one,) = _plan(shapes, trials=1, runs=1)
        assert three[0].key == one.key
        assert {run.init.key for run in three} == {one.init.key}

    def test_or_nobody(self, shapes: Benchmark) -> None:
        runs = _plan(shapes, trials=2, runs=5, share_init="none")
        assert len({run.init.key for run in runs}) == 10
        assert len({run.init.seed for run in runs}) == 10
        alike = _plan(shapes, trials=2, runs=5)
        assert [run.hparams for run in runs] == [run.hparams for run in alike]
        assert [run.seed for run in runs] == [run.seed for run in alike]


class TestProbing:
    def test_what_all_trials_train_on(self, shapes: Benchmark) -> None:
        splits = [shapes.split("photo", trial=trial) for trial in range(3)]
        both = common(splits)
        inner = set.intersection(*(set(one.inner.tolist()) for one in splits))
        assert set(both.inner.tolist()) == inner
        assert set(both.outer.tolist()) == set(range(12)) - inner
        assert len(both.outer) == 12 - len(inner)
        assert common(splits[:1]) is splits[0]

    def test_no_trial_validates_on_what_its_start_was_trained_on(
        self, shapes: Benchmark, tmp_path: Path
    ) -> None:
        place = Workplace(benchmark=shapes, store=Store(tmp_path / "runs"))
        (run,) = _plan(shapes, init="lp", trials=1, runs=1)
        for name, inner, outer in place.sources(run.task, trials=3):
            assert not set(inner.positions) & set(outer.positions)
            for trial in range(3):
                held_out = shapes.split(name, trial=trial).outer
                assert not set(inner.positions) & set(held_out)
                assert set(held_out) <= set(outer.positions)

    def test_too_few_images_are_said(self, folder: Path, tmp_path: Path) -> None:
        images = open_folder(folder, allow_small_domains=True)
        place = Workplace(benchmark=images, store=Store(tmp_path / "runs"))
        (run,) = _plan(images, runs=1)
        with pytest.raises(DataError, match="has no image that all 100 trials train on"):
            list(place.sources(run.task, trials=100))

    def test_the_head_of_all_trials_is_another_than_the_first_ones(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
    ) -> None:
        def head(store: str, **changes: object) -> dict:
            (run, *_) = run_sweep(
                tiny_sweep(init="lp", runs=1, steps=4, lp_lr=0.1, **changes),
                shapes,
                tmp_path / store,
                device="cpu",
            )
            held = files.read(Store(tmp_path / store).paths.init(run.spec.init.key).weights)
            return {name: tensor for name, tensor in held.items() if name.startswith("fc")}

        alone, shared = head("alone"), head("shared", trials=2, share_init="target")
        assert any(not (alone[name] == shared[name]).all() for name in alone)


class TestValidation:
    def test_augmented_views_differ_from_clean_ones_and_by_seed(self, shapes: Benchmark) -> None:
        domain = shapes["photo"]
        from diwa.evaluate.predict import source_of

        source = source_of(domain, np.arange(5))
        (run,) = _plan(shapes, size=(32,), runs=1)
        image = run.task.image
        (clean, labels), *_ = eval_batches(source, image)
        (one, same_labels), *_ = augmented_batches(source, image, 1)
        (again, _), *_ = augmented_batches(source, image, 1)
        (other, _), *_ = augmented_batches(source, image, 2)
        assert (labels == same_labels).all()
        assert (one == again).all()
        assert not (one == other).all()
        assert not (one == clean).all()
        sizes = [len(y) for _, y in augmented_batches(source, image, 1, batch_size=2)]
        assert sizes == [2, 2, 1]

    def test_only_the_released_code_validates_on_them(
        self, shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from diwa.train import loop, probe

        seen: list[tuple[str, object]] = []
        for module in (loop, probe):
            real = module.predict_network

            def spied(*given: object, real: Callable = real, **named: object) -> object:
                seen.append((str(named.get("title", "run")), named.get("augmented")))
                return real(*given, **named)

            monkeypatch.setattr(module, "predict_network", spied)
        for protocol in PRESETS:
            seen.clear()
            sweep = tiny_sweep(protocol=protocol, runs=1, steps=3, track_unseen=True)
            run_sweep(sweep, shapes, tmp_path / protocol, device="cpu")
            probed = [seed for title, seed in seen if title != "run"]
            validated = [seed for title, seed in seen if title == "run"]
            assert len(probed) == 2
            # Two sources and the unseen domain, at steps 0 and 2; the latter is always clean.
            assert len(validated) == 6
            assert validated[2] is None
            assert validated[5] is None
            if protocol == "released":
                assert None not in probed
                assert validated[0] == validated[1] != validated[3] == validated[4]
                assert None not in (validated[0], validated[3])
            else:
                assert {*probed, *validated} == {None}


def test_one_job_does_the_run_of_any_trial(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    sweep = tiny_sweep(trials=2, runs=2, steps=2, share_init="target")
    planned = plan(sweep, shapes, device="cpu")
    done = run_one(sweep, shapes, tmp_path / "runs", run=1, trial=1, device="cpu")
    assert done.name == planned[3].key
    assert done.spec.task.trial == 1
    assert done.spec.init.task.trial == 0
    about = files.about(done.paths.weights)
    digests = [shapes.split(name, trial=1).digest[:8] for name in ("cartoon", "photo")]
    assert about["split"] == "-".join(digests)
    unaware = msgspec.structs.replace(sweep, trials=1)
    with pytest.raises(SpecError, match=r"trial 1 of 1: .*; give --trials, the same number for"):
        run_one(unaware, shapes, tmp_path / "runs", trial=1, device="cpu")


class TestSeveralAlgorithms:
    def test_they_share_the_runs_out(self, shapes: Benchmark) -> None:
        runs = _plan(shapes, algorithm=("ERM", "Mixup", "CORAL"), runs=20)
        names = [run.algorithm for run in runs]
        assert names[:4] == ["ERM", "Mixup", "CORAL", "ERM"]
        assert [names.count(name) for name in ("ERM", "Mixup", "CORAL")] == [7, 7, 6]
        assert len({run.init.key for run in runs}) == 1

    def test_a_pool_is_made_of_the_first_runs_of_each(self, shapes: Benchmark) -> None:
        pool = [run.key for run in _plan(shapes, algorithm=("ERM", "Mixup"), runs=20)]
        for place, name in enumerate(("ERM", "Mixup")):
            alone = [run.key for run in _plan(shapes, algorithm=name, runs=20)]
            assert pool[place::2] == alone[:10]

    def test_a_hyperparameter_need_only_be_one_ones(self, shapes: Benchmark) -> None:
        runs = _plan(shapes, algorithm=("ERM", "Mixup"), runs=2, hparams={"alpha": (0.7,)})
        assert "alpha" not in runs[0].hparams
        assert runs[1].hparams["alpha"] == 0.7
        with pytest.raises(SpecError) as caught:
            _plan(shapes, algorithm=("ERM", "Mixup"), runs=2, hparams={"alhpa": (0.7,)})
        assert str(caught.value).startswith(
            "ERM/Mixup has no hyperparameter 'alhpa'; did you mean 'alpha'? it has lr, weight_decay"
        )

    def test_each_needs_a_run(self) -> None:
        with pytest.raises(SpecError, match="runs=1: too few for 2 algorithms"):
            SweepSpec(target=("a",), runs=1, algorithm=("ERM", "Mixup"))
        with pytest.raises(SpecError, match="algorithm ERM, ERM; name each once"):
            SweepSpec(target=("a",), algorithm=("ERM", "ERM"))
