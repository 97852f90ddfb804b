"""From the description of a sweep to the specifications of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.hparams import Choice, Space, checked, draw
from diwa.data.benchmark import Benchmark
from diwa.data.transforms import ImageSpec
from diwa.errors import DataError, ModelError
from diwa.models.backbones import FROM_HUB, FROM_NOWHERE
from diwa.models.device import Compute
from diwa.models.packaged import FROM_PACKAGE, packaged_weights
from diwa.runs.spec import InitSpec, RunSpec, TaskSpec
from diwa.seeding import random_state, run_seed, seed_hash
from diwa.sweep.spec import SweepSpec
from diwa.weights import files

#: Draws of sweeps with different seeds are this far apart, more than any sweep has runs.
_SEED_STRIDE = 100_000

#: Where the protocol validates at other steps than every 100th.
_EVAL_EVERY = {"vlcs": 50, "domainnet": 500, "sviro": 300}


def plan(spec: SweepSpec, benchmark: Benchmark, *, device: str = "auto") -> list[RunSpec]:
    """The runs of a sweep, in the order to do them.

    Args:
        spec: the sweep.
        benchmark: the images it is about.
        device: where it will run; decides what precision "auto" means.

    Raises:
        DiwaError: for an unknown domain, algorithm or hyperparameter, or a missing file.
    """
    precision = Compute.choose(device, spec.precision).precision
    assert precision in ("fp32", "bf16")
    weights = _identity(spec)
    every = spec.eval_every or _EVAL_EVERY.get(benchmark.name.lower().replace("_", ""), 100)
    runs = []
    for target in _targets(spec, benchmark):
        number = benchmark.index(target)
        for trial in range(spec.trials):
            task = TaskSpec(
                data=benchmark.name,
                digest=benchmark.digest,
                unseen=(target,),
                trial=trial,
                image=ImageSpec(size=spec.shape, channels=spec.channels, augment=spec.augment),
            )
            init = InitSpec(
                task=task,
                backbone=spec.backbone,
                weights=weights,
                head=spec.init,
                seed=run_seed(benchmark.name, "init", [number], spec.seed, trial),
                precision=precision,
                **_probing(spec, every),
            )
            for run in range(spec.runs):
                hparams_seed = spec.seed * _SEED_STRIDE + run
                runs.append(
                    RunSpec(
                        init=init,
                        algorithm=spec.algorithm,
                        hparams=_drawn(spec, hparams_seed, trial),
                        hparams_seed=hparams_seed,
                        seed=run_seed(
                            benchmark.name, spec.algorithm, [number], hparams_seed, trial
                        ),
                        steps=spec.steps,
                        eval_every=every,
                        track_unseen=spec.track_unseen,
                        precision=precision,
                    )
                )
    return runs


def weights_file(spec: SweepSpec) -> Path | None:
    """The file that the backbone's weights are in, if they are in one.

    Raises:
        ModelError: if it is not there.
    """
    if spec.weights in (FROM_HUB, FROM_NOWHERE):
        return None
    if spec.weights == FROM_PACKAGE:
        return packaged_weights(spec.backbone)
    path = Path(spec.weights)
    if not path.is_file():
        raise ModelError(
            f"{path}: no such file of weights", remedy="give --weights FILE, hub, demo or none"
        )
    return path


def _identity(spec: SweepSpec) -> str:
    path = weights_file(spec)
    return spec.weights if path is None else files.digest(path)


def _targets(spec: SweepSpec, benchmark: Benchmark) -> list[str]:
    if len(benchmark) < 2:
        raise DataError(
            f"{benchmark.name}: has one domain only", remedy="add at least one to train on"
        )
    if spec.target == ("all",):
        return benchmark.names
    return [benchmark[name].name for name in dict.fromkeys(spec.target)]


def _probing(spec: SweepSpec, every: int) -> dict[str, Any]:
    """Only what bears on the result: a drawn head has the same key however one would probe."""
    if spec.init != "lp":
        return {}
    return {
        "steps": spec.lp_steps or spec.steps,
        "eval_every": every,
        "lr": spec.lp_lr or (1e-3 if spec.drawn_from == "short" else 5e-5),
        "views": spec.lp_views,
    }


def _drawn(spec: SweepSpec, hparams_seed: int, trial: int) -> dict[str, float]:
    space: Space = ALGORITHMS.get(spec.algorithm).space
    values = draw(space, spec.drawn_from, hparams_seed=hparams_seed, trial=trial)
    checked(space, dict.fromkeys(spec.hparams, 1), algorithm=spec.algorithm)
    seed = seed_hash(hparams_seed, trial)
    for name, choices in spec.hparams.items():
        held = space[name]
        chance = random_state(seed, held.seed_name or name)
        value = Choice(choices).draw(chance)
        values[name] = value
    return checked(space, values, algorithm=spec.algorithm)
