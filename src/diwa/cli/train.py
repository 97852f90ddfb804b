"""`diwa train`: one run of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from diwa.cli.console import progress, say, show, show_json
from diwa.cli.options import DataFlags, DataOptions, Device, Flat
from diwa.cli.parts import DataSet, Named, Names, Order, check, opened, remember
from diwa.errors import SpecError
from diwa.sweep.spec import SweepSpec

if TYPE_CHECKING:
    from diwa.runs.store import Run


def train(arguments: Sequence[str]) -> Callable[..., None]:
    """The verb, whose flags are on top of the recipe that the arguments name."""
    order = Order(arguments)

    def train(
        data: DataSet = None,
        /,
        *,
        spec: Annotated[SweepSpec, Flat],
        options: DataFlags = DataOptions(),  # noqa: B008 - frozen
        recipe: Named = None,
        only: Names = (),
        run: int = 0,
        trial: int = 0,
        store: Path = Path("runs"),
        device: Device = "auto",
        workers: int = -1,
        json: bool = False,
    ) -> None:
        """Do one run of a sweep, e.g. as one job of many on a cluster.

        Takes the flags of diwa sweep and the number of the run; all runs that agree in everything
        else share their initialisation and can be averaged. diwa sweep --dry-run lists them. For
        hyperparameters of your own: --space default --hparams lr=3e-5 dropout=0.1.

        Args:
            data: a folder laid out as domain/class/image; needed unless the recipe names it.
            spec: the sweep.
            options: how the folder is opened.
            recipe: sweeps written down: a file, or a name that diwa recipes lists. Other flags
                change what it says.
            only: which of the recipe's sweeps.
            run: which of the sweep's runs, from 0.
            trial: which of the random splits, from 0.
            store: the folder that keeps the runs.
            device: where to compute.
            workers: processes that prepare batches; -1 chooses.
            json: print the run's result and history as JSON.
        """
        from diwa.runs.store import Store
        from diwa.sweep.run import run_one

        del recipe
        told = progress()
        parts = order.parts(spec, data, only)
        if len(parts) != 1:
            named = ", ".join(f"{part.name} on {part.data}" for part in parts)
            raise SpecError(
                f"the recipe has several sweeps: {named}",
                remedy="choose one with --only NAME, and name its data set",
            )
        (asked,) = opened(order, parts, options, told)
        check([asked], device=device)
        held = Store(store)
        remember(held, asked.benchmark, Path(parts[0].data), options)
        done = run_one(
            asked.spec,
            asked.benchmark,
            held,
            run=run,
            trial=trial,
            name=asked.name,
            device=device,
            workers=workers,
            progress=told,
        )
        _show_json(done) if json else _show(done)

    return order.defaults_of(train)


def _show_json(done: Run) -> None:
    import msgspec

    content = {
        "run": done.name,
        "weights": str(done.paths.weights),
        "spec": done.spec,
        "result": done.result,
        "history": done.history,
    }
    show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))


def _show(done: Run) -> None:
    from rich.markup import escape

    from diwa.report.table import hyperparameters, rows_table

    say(f"run {done.name}: {hyperparameters(done.spec.hparams)}")
    sources = list(done.result.accuracy)
    rows = [
        (
            str(row.step),
            "none" if row.loss is None else f"{row.loss:.4f}",
            *(f"{100 * row.accuracy[name]:.1f} %" for name in sources),
            f"{100 * row.score:.1f} %" + (" kept" if row.step == done.result.step else "     "),
        )
        for row in done.history
    ]
    show(rows_table(["step", "loss", *map(escape, sources), "mean"], rows))
    say(f"weights: {done.paths.weights}")


train.flags_depend_on_arguments = True  # pyright: ignore[reportFunctionMemberAccess]
