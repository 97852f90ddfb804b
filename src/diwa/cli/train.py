"""`diwa train`: one run of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from diwa.cli.console import progress, show, show_json
from diwa.cli.options import DataFlags, DataOptions, Device, Flat, open_data
from diwa.sweep.spec import SweepSpec


def train(
    data: tyro.conf.Positional[Path],
    /,
    spec: Annotated[SweepSpec, Flat],
    options: DataFlags = DataOptions(),  # noqa: B008 - frozen
    *,
    run: int = 0,
    trial: int = 0,
    store: Path = Path("runs"),
    device: Device = "auto",
    workers: int = -1,
    json: bool = False,
) -> None:
    """Do one run of a sweep, e.g. as one job of many on a cluster.

    Takes the flags of diwa sweep and the number of the run; all runs that agree in everything else
    share their initialisation and can be averaged. For hyperparameters of your own:
    --space default --hparams lr=3e-5 dropout=0.1.

    Args:
        data: a folder laid out as domain/class/image.
        spec: the sweep.
        options: how the folder is opened.
        run: which of the sweep's runs, from 0.
        trial: which of the random splits, from 0.
        store: the folder that keeps the runs.
        device: where to compute.
        workers: processes that prepare batches; -1 chooses.
        json: print the run's result and history as JSON.
    """
    import msgspec

    from diwa.cli.sweep import remember
    from diwa.runs.store import Store
    from diwa.sweep.plan import plan
    from diwa.sweep.run import run_one

    told = progress()
    benchmark = open_data(data, options, size=spec.shape, channels=spec.channels, progress=told)
    held = Store(store)
    plan(spec, benchmark, device=device)
    remember(held, benchmark, data, options)
    done = run_one(
        spec, benchmark, held, run=run, trial=trial, device=device, workers=workers, progress=told
    )
    if json:
        content = {
            "run": done.name,
            "weights": str(done.paths.weights),
            "spec": done.spec,
            "result": done.result,
            "history": done.history,
        }
        show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))
        return
    from diwa.report.table import hyperparameters, rows_table

    show(f"run {done.name}: {hyperparameters(done.spec.hparams)}")
    sources = list(done.result.accuracy)
    rows = [
        (
            str(row.step),
            f"{row.loss:.4f}",
            *(f"{100 * row.accuracy[name]:.1f} %" for name in sources),
            f"{100 * row.score:.1f} %" + (" kept" if row.step == done.result.step else "     "),
        )
        for row in done.history
    ]
    show(rows_table(["step", "loss", *sources, "mean"], rows))
    show(f"weights: {done.paths.weights}")
