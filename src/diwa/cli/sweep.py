"""`diwa sweep`: fine-tune several models from one shared start, or say what that would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from diwa.cli.console import progress, say, show, show_json
from diwa.cli.options import DataFlags, DataOptions, Device, Flat
from diwa.cli.parts import DataSet, Named, Names, Order, check, opened, remember
from diwa.spec import Spec
from diwa.sweep.spec import SweepSpec

if TYPE_CHECKING:
    from diwa.runs.store import Run
    from diwa.sweep.forecast import Asked


class SweepReport(Spec, frozen=True, kw_only=True):
    """What `diwa sweep --json` prints."""

    store: str
    """The folder of the runs."""
    runs: list[dict[str, object]]
    """Every run: key, sweep, data, unseen domain, trial, hyperparameters, validation accuracy."""


def sweep(arguments: Sequence[str]) -> Callable[..., None]:
    """The verb, whose flags are on top of the recipe that the arguments name."""
    order = Order(arguments)

    def sweep(
        data: DataSet = None,
        /,
        *,
        spec: Annotated[SweepSpec, Flat],
        options: DataFlags = DataOptions(),  # noqa: B008 - frozen
        recipe: Named = None,
        only: Names = (),
        dry_run: bool = False,
        no_trial: bool = False,
        store: Path = Path("runs"),
        device: Device = "auto",
        workers: int = -1,
        json: bool = False,
    ) -> None:
        """Fine-tune several models from one shared start, without looking at the target domain.

        Give the same command again to go on after a stop; what is done is not done twice. Start it
        twice at once and the two share the runs out. Then: diwa soup.

        Args:
            data: a folder laid out as domain/class/image; needed unless the recipe names it.
            spec: the sweep.
            options: how the folder is opened.
            recipe: sweeps written down: a file, or a name that diwa recipes lists. Other flags
                change what it says.
            only: of the recipe's sweeps, these.
            dry_run: train nothing; list the runs and say what they will cost.
            no_trial: in a dry run, don't time a few steps; no image is opened.
            store: the folder that keeps the runs.
            device: where to compute.
            workers: processes that prepare batches; -1 chooses.
            json: print the result as JSON.
        """
        from diwa.runs.store import Store
        from diwa.sweep.forecast import forecast

        del recipe
        told = progress()
        parts = order.parts(spec, data, only)
        asked = opened(order, parts, options, told)
        check(asked, device=device)
        held = Store(store)
        if dry_run:
            from diwa.cli.dryrun import show_forecast

            expected = forecast(
                asked, held, trial=not no_trial, device=device, workers=workers, progress=told
            )
            show_json(expected.to_json()) if json else show_forecast(expected)
            return
        for part, one in zip(parts, asked, strict=True):
            remember(held, one.benchmark, Path(part.data), options)
        from diwa.sweep.run import run_sweep

        done = [
            run_sweep(
                one.spec,
                one.benchmark,
                held,
                name=one.name,
                device=device,
                workers=workers,
                progress=told,
            )
            for one in asked
        ]
        if json:
            rows = [_told(one, run) for one, runs in zip(asked, done, strict=True) for run in runs]
            show_json(SweepReport(store=str(store), runs=rows).to_json())
            return
        _show(asked, done)
        say(f"next: diwa soup {store}")

    return order.defaults_of(sweep)


def _told(asked: Asked, run: Run) -> dict[str, object]:
    return {
        "run": run.name,
        "sweep": asked.name,
        "data": asked.benchmark.name,
        "unseen": list(run.spec.task.unseen),
        "trial": run.spec.task.trial,
        "algorithm": run.spec.algorithm,
        "hparams": run.spec.hparams,
        "validation": run.result.score,
    }


def _show(asked: Sequence[Asked], done: Sequence[Sequence[Run]]) -> None:
    from diwa.report.runs import Line, runs_table

    for one, runs in zip(asked, done, strict=True):
        lines = [
            Line(
                target="+".join(run.spec.task.unseen),
                trial=run.spec.task.trial,
                number=place % one.spec.runs,
                algorithm=run.spec.algorithm,
                hparams=run.spec.hparams,
                run=run.name,
                last=f"{100 * run.result.score:.1f} %",
            )
            for place, run in enumerate(runs)
        ]
        title = " · ".join(filter(None, [one.name, one.benchmark.name]))
        show(runs_table(title, lines, last="validation"))


sweep.flags_depend_on_arguments = True  # pyright: ignore[reportFunctionMemberAccess]
