"""Every objective on the real PACS: each learns, and none of them is another one in disguise."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest
import torch

from diwa.algorithms import ALGORITHMS, WRAPPERS
from diwa.data.benchmark import Benchmark
from diwa.data.known import open_data
from diwa.runs.store import Store
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec
from diwa.train.loop import train_run
from diwa.train.workplace import Workplace
from diwa.weights import files

NAMES = [*(n for n in ALGORITHMS.names() if n not in WRAPPERS), "SAM+ERM", "SAM+CORAL"]
PER_CLASS = 6


@pytest.fixture
def few(pacs: Path, tmp_path: Path) -> Benchmark:
    """Some images of every class and domain, through a table of paths."""
    rows = [
        (image, domain.name, label.name)
        for domain in sorted(path for path in pacs.iterdir() if path.is_dir())
        for label in sorted(domain.iterdir())
        for image in sorted(label.iterdir())[:PER_CLASS]
    ]
    table = tmp_path / "pacs.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "domain", "label"), *rows])
    return open_data(table, size=(64, 64), channels=3)


def test_every_objective_on_the_real_pacs(few: Benchmark, tmp_path: Path) -> None:
    spec = SweepSpec(
        target=("sketch",),
        algorithm=tuple(NAMES),
        runs=len(NAMES),
        steps=4,
        eval_every=2,
        init="random",
        backbone="test_resnet",
        weights="none",
        size=(64,),
        precision="fp32",
        track_unseen=True,  # which keeps the last weights, too
        # The same for all, so that nothing but the objective differs.
        hparams={"lr": (1e-3,), "batch_size": (4,), "dropout": (0,), "anneal": (1,)},
    )
    place = Workplace(benchmark=few, store=Store(tmp_path / "store"), device="cpu")
    # One seed for all: batches and dropout are then the same, too.
    planned = [msgspec.structs.replace(run, seed=7) for run in plan(spec, few, device="cpu")]
    runs = [train_run(run, place) for run in planned]
    start = files.read(next((tmp_path / "store" / "inits").glob("*/weights.safetensors")))
    ends: dict[str, torch.Tensor] = {}
    for run in runs:
        assert all(row.loss is not None for row in run.history)
        weights = dict(run.member("last").tensors())
        moved = torch.cat([(weights[n] - start[n]).flatten() for n in start if weights[n].ndim])
        assert torch.isfinite(moved).all(), run.spec.algorithm
        assert moved.abs().max() > 0, run.spec.algorithm
        ends[run.spec.algorithm] = moved
    assert len(ends) == len(NAMES)
    for name, moved in ends.items():
        alike = [other for other in ends if other != name and torch.equal(ends[other], moved)]
        assert not alike, f"{name} does what {alike[0]} does"
