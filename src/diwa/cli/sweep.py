"""`diwa sweep`: fine-tune several models from one shared start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import tyro

from diwa.cli.console import progress, show, show_json
from diwa.cli.options import DataFlags, DataOptions, Device, Flat, open_data
from diwa.spec import Spec
from diwa.sweep.spec import SweepSpec

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark
    from diwa.runs.store import Store


class SweepReport(Spec, frozen=True, kw_only=True):
    """What `diwa sweep --json` prints."""

    store: str
    """The folder of the runs."""
    runs: list[dict[str, object]]
    """Every run: key, unseen domain, trial, hyperparameters, validation accuracy."""


def sweep(
    data: tyro.conf.Positional[Path],
    /,
    spec: Annotated[SweepSpec, Flat],
    options: DataFlags = DataOptions(),  # noqa: B008 - frozen
    *,
    store: Path = Path("runs"),
    device: Device = "auto",
    workers: int = -1,
    json: bool = False,
) -> None:
    """Fine-tune several models from one shared start, without looking at the target domain.

    Give the same command again to go on after a stop; what is done is not done twice. Start it
    twice at once and the two share the runs out. Then: diwa soup.

    Args:
        data: a folder laid out as domain/class/image.
        spec: the sweep.
        options: how the folder is opened.
        store: the folder that keeps the runs.
        device: where to compute.
        workers: processes that prepare batches; -1 chooses.
        json: print the result as JSON.
    """
    from diwa.runs.store import Store
    from diwa.sweep.plan import plan
    from diwa.sweep.run import run_sweep

    told = progress()
    benchmark = open_data(data, options, size=spec.shape, channels=spec.channels, progress=told)
    held = Store(store)
    plan(spec, benchmark, device=device)  # so that a mistake leaves no store behind
    remember(held, benchmark, data, options)
    runs = run_sweep(spec, benchmark, held, device=device, workers=workers, progress=told)
    report = SweepReport(
        store=str(store),
        runs=[
            {
                "run": run.name,
                "unseen": list(run.spec.task.unseen),
                "trial": run.spec.task.trial,
                "hparams": run.spec.hparams,
                "validation": run.result.score,
            }
            for run in runs
        ],
    )
    if json:
        show_json(report.to_json())
        return
    from diwa.report.table import runs_table

    show(runs_table(report.runs))
    show(f"next: diwa soup {store}")


def remember(store: Store, benchmark: Benchmark, data: Path, options: DataOptions) -> None:
    """Notes where these images are and how they were opened, so `diwa soup` need not be told."""
    if options.cache_dir is not None:
        options = msgspec.structs.replace(options, cache_dir=options.cache_dir.resolve())
    place = {
        "data": str(data.resolve()),
        "options": msgspec.to_builtins(options, enc_hook=str),
    }
    store.note(images={**(store.noted("images") or {}), benchmark.digest: place})
