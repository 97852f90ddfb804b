"""What `diwa sweep --dry-run` shows: the runs, and what they will cost."""

from __future__ import annotations

from diwa.cli.console import show
from diwa.report.runs import Line, runs_table
from diwa.report.table import rows_table
from diwa.sweep.forecast import Cost, Forecast, RunForecast, Trial, costs

_HEADINGS = ["sweep", "runs", "done", "trained", "validated", "probed", "per run", "all", "left"]
_TIMED = ["timed", "network", "steps", "of images", "s per step", "ms per image validated"]


def show_forecast(expected: Forecast) -> None:
    """Prints every run, then what each sweep takes and what all of it does."""
    sweeps: dict[tuple[str, str], list[RunForecast]] = {}
    for run in expected.runs:
        sweeps.setdefault((run.sweep, run.data), []).append(run)
    rows = []
    timed = bool(expected.trials)
    for (name, data), runs in sweeps.items():
        title = " · ".join(filter(None, [name, data]))
        heads = {one.head for one in expected.inits if one.init in {run.init for run in runs}}
        start = "a probed head" if heads == {"lp"} else "a drawn head"
        about = f"{title}: {len(runs)} runs of {runs[0].steps:,} steps from {start}"
        lines = [
            Line(
                target=run.target,
                trial=run.trial,
                number=run.number,
                algorithm=run.algorithm,
                hparams=run.hparams,
                run=run.run,
                last=run.state,
            )
            for run in runs
        ]
        show(runs_table(about, lines, last="state"))
        rows.append(_row(title, runs, *costs(runs, expected.inits, timed=timed)))
    if len(sweeps) > 1:
        rows.append(_row("in all", expected.runs, expected.total, expected.left))
    show("images, and time:")
    show(rows_table(_HEADINGS, rows))
    distinct = len({run.run for run in expected.runs})
    if distinct < len(expected.runs):
        show(f"{len(expected.runs) - distinct} runs are in several sweeps, and count once in all")
    if timed:
        show(rows_table(_TIMED, [_timed(trial) for trial in expected.trials]))
    else:
        show("times: leave --no-trial out to have a few steps timed")


def _row(title: str, runs: list[RunForecast], total: Cost, left: Cost) -> list[str]:
    distinct = {run.run: run for run in runs}.values()
    own = [run.cost.seconds for run in distinct if run.cost.seconds is not None]
    return [
        title,
        str(len(distinct)),
        str(sum(run.state == "done" for run in distinct)),
        _images(total.training),
        _images(total.validation),
        _images(total.probing),
        _time(sum(own) / len(own) if own else None),
        _time(total.seconds),
        _time(left.seconds),
    ]


def _timed(trial: Trial) -> list[str]:
    held = trial.pace
    return [
        f"{trial.algorithm} on {trial.data}",
        trial.backbone,
        str(held.steps),
        str(held.images),
        f"{held.step:.3g}",
        f"{1000 * held.validated:.3g}",
    ]


def _images(count: int) -> str:
    """Images, in the unit that three figures tell."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def _time(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 72 else f"{hours / 24:.0f} days"
