"""From the description of a sweep to the specifications of its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from diwa.algorithms import ALGORITHMS
from diwa.algorithms.hparams import Choice, Distribution, PowerOf, Space, checked, draw
from diwa.data.benchmark import Benchmark
from diwa.data.transforms import ImageSpec
from diwa.errors import DataError, ModelError, SpecError, guess
from diwa.models.backbones import FROM_HUB, FROM_NOWHERE, check_backbone
from diwa.models.device import Compute
from diwa.models.packaged import FROM_PACKAGE, packaged_weights
from diwa.runs.presets import plain_name
from diwa.runs.spec import InitSpec, RunSpec, SwadSpec, TaskSpec
from diwa.seeding import random_state, run_seed, seed_hash
from diwa.sweep.choices import distribution
from diwa.sweep.spec import SweepSpec
from diwa.sweep.suit import suited
from diwa.train.averages import AVERAGES
from diwa.weights import files

#: Draws of sweeps with different seeds are this far apart, more than any sweep has runs.
_SEED_STRIDE = 100_000

#: Where the protocol validates at other steps than every 100th.
_EVAL_EVERY = {"vlcs": 50, "domainnet": 500, "sviro": 300}

#: Where SWAD's limit is another than .3 above the loss at convergence.
_SWAD_TOLERANCE = {"vlcs": 0.2}

_DIGITS: dict[str, Distribution] = {
    "lr": PowerOf(10, -4.5, -2.5),
    "lr_d": PowerOf(10, -4.5, -2.5),
    "weight_decay": Choice((0.0,)),
    "batch_size": PowerOf(2, 3, 9, whole=True),
}
#: Where DomainBed's own ranges are others than those that it has for most data sets.
_EXTREME: dict[str, dict[str, Distribution]] = {
    "coloredmnist": _DIGITS,
    "rotatedmnist": _DIGITS,
    "domainnet": {"batch_size": PowerOf(2, 3, 5, whole=True)},
}


class Planned(NamedTuple):
    """One run of a sweep, and which one it is."""

    target: str
    """The unseen domain."""
    trial: int
    """Which random split."""
    number: int
    """Which of the runs of that target and trial, from 0."""
    run: RunSpec
    """The run."""


def plan(spec: SweepSpec, benchmark: Benchmark, *, device: str = "auto") -> list[RunSpec]:
    """The runs of a sweep, in the order to do them.

    Args:
        spec: the sweep.
        benchmark: the images it is about.
        device: where it will run; decides what precision "auto" means.

    Raises:
        DiwaError: for an unknown domain, algorithm or hyperparameter, or a missing file.
    """
    return [planned.run for planned in numbered(spec, benchmark, device=device)]


def numbered(spec: SweepSpec, benchmark: Benchmark, *, device: str = "auto") -> list[Planned]:
    """The same runs, each with its target, trial and number.

    Args:
        spec: the sweep.
        benchmark: the images it is about.
        device: where it will run; decides what precision "auto" means.

    Raises:
        DiwaError: for an unknown domain, algorithm or hyperparameter, or a missing file.
    """
    spec = suited(spec, benchmark)
    precision = Compute.choose(device, spec.precision).precision
    assert precision in ("fp32", "bf16")
    every = spec.eval_every or _EVAL_EVERY.get(plain_name(benchmark.name), 100)
    steps = spec.steps or spec.preset.steps(benchmark.name)
    _check_names(spec)
    inits = _Inits(spec, benchmark, precision, steps, every)
    runs = []
    for unseen in _unseen(spec, benchmark):
        for trial in range(spec.trials):
            for number in range(spec.runs):
                # Algorithms take turns, so that the first runs of each are those that a sweep of
                # it alone would have.
                algorithm = spec.algorithm[number % len(spec.algorithm)]
                hparams_seed = spec.seed * _SEED_STRIDE + number // len(spec.algorithm)
                init = inits.of(unseen, trial, number)
                run = RunSpec(
                    init=init,
                    algorithm=algorithm,
                    hparams=_drawn(spec, benchmark.name, algorithm, hparams_seed, trial),
                    hparams_seed=hparams_seed,
                    seed=run_seed(
                        benchmark.name,
                        algorithm,
                        [benchmark.index(name) for name in unseen],
                        hparams_seed,
                        trial,
                    ),
                    steps=steps,
                    eval_every=every,
                    # Leave-one-out selection reads what was left out off the histories.
                    track_unseen=spec.track_unseen or spec.leave_one_out,
                    precision=precision,
                    trial=None if trial == init.task.trial else trial,
                    **_averaging(spec, benchmark, steps),
                )
                runs.append(Planned("+".join(unseen), trial, number, run))
    return runs


class _Inits:
    """The initialisation that each run of a sweep starts from."""

    def __init__(
        self,
        spec: SweepSpec,
        benchmark: Benchmark,
        precision: Literal["fp32", "bf16"],
        steps: int,
        every: int,
    ) -> None:
        self._spec, self._benchmark = spec, benchmark
        self._same: dict[str, Any] = {
            "backbone": spec.backbone,
            "weights": _identity(spec),
            "head": spec.init,
            "precision": precision,
            **_probing(spec, steps, every),
        }

    def of(self, unseen: tuple[str, ...], trial: int, number: int) -> InitSpec:
        spec, name = self._spec, self._benchmark.name
        shared = spec.shares_init
        trial = 0 if shared == "target" else trial
        drawn = spec.seed if shared != "none" else spec.seed * _SEED_STRIDE + number
        return InitSpec(
            task=TaskSpec(
                data=name,
                digest=self._benchmark.digest,
                unseen=unseen,
                trial=trial,
                image=ImageSpec(size=spec.shape, channels=spec.channels, augment=spec.augment),
                protocol=spec.protocol,
            ),
            seed=run_seed(
                name, "init", [self._benchmark.index(one) for one in unseen], drawn, trial
            ),
            trials=spec.trials if spec.probes_for_all_trials else 1,
            **self._same,
        )


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
    return list(dict.fromkeys(benchmark[name].name for name in spec.target))


def _unseen(spec: SweepSpec, benchmark: Benchmark) -> list[tuple[str, ...]]:
    """The domains that runs leave out: each target and, for leave-one-out, each pair with one."""
    targets = _targets(spec, benchmark)
    alone = [(target,) for target in targets]
    if not spec.leave_one_out:
        return alone
    if len(benchmark) < 3:
        raise DataError(
            f"{benchmark.name}: leave-one-out selection needs three domains",
            remedy="add one, or leave --leave-one-out out",
        )
    every = benchmark.names
    pairs = [(a, b) for n, a in enumerate(every) for b in every[n + 1 :] if {a, b} & set(targets)]
    return [*alone, *pairs]


def _averaging(spec: SweepSpec, benchmark: Benchmark, steps: int) -> dict[str, Any]:
    """What runs average of their own iterates; nothing that stands at its default otherwise."""
    for name in spec.averages:
        AVERAGES.get(name)
    held: dict[str, Any] = {"averages": spec.averages}
    if "ma" in spec.averages:
        held["ma_start"] = min(100, steps // 4) if spec.ma_start is None else spec.ma_start
    if "swad" in spec.averages and plain_name(benchmark.name) in _SWAD_TOLERANCE:
        held["swad"] = SwadSpec(tolerance=_SWAD_TOLERANCE[plain_name(benchmark.name)])
    return held


def _probing(spec: SweepSpec, steps: int, every: int) -> dict[str, Any]:
    """Only what bears on the result: a drawn head has the same key however one would probe."""
    if spec.init != "lp":
        return {}
    return {
        "steps": spec.lp_steps or steps,
        "eval_every": every,
        "lr": spec.lp_lr or (1e-3 if spec.drawn_from == "short" else 5e-5),
        "views": spec.lp_views,
    }


def _check_names(spec: SweepSpec) -> None:
    check_backbone(spec.backbone)
    # What one of several algorithms has, the others may lack; but one must have it.
    known = dict.fromkeys(name for a in spec.algorithm for name in ALGORITHMS.get(a).space)
    for name in spec.hparams:
        if name not in known:
            raise SpecError(
                f"{'/'.join(spec.algorithm)} has no hyperparameter {name!r}",
                remedy=f"{guess(name, known)}it has {', '.join(known)}",
            )


def _drawn(
    spec: SweepSpec, data: str, algorithm: str, hparams_seed: int, trial: int
) -> dict[str, float]:
    space: Space = {
        name: replace(held, extreme=_EXTREME.get(plain_name(data), {}).get(name, held.extreme))
        for name, held in ALGORITHMS.get(algorithm).space.items()
    }
    values = draw(
        space, spec.drawn_from, hparams_seed=hparams_seed, trial=trial, preset=spec.protocol
    )
    seed = seed_hash(hparams_seed, trial)
    for name, own in spec.hparams.items():
        if name in space:
            chance = random_state(seed, space[name].seed_name or name)
            values[name] = distribution(own, space[name]).draw(chance)
    return checked(space, values, algorithm=algorithm)
