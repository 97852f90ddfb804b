"""`diwa report`: the paper's tables, from stores and from DomainBed's folders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from diwa.cli.console import say, show_json

if TYPE_CHECKING:
    from diwa.report.cells import Table
    from diwa.report.domainbed import Results
    from diwa.report.report import Report

Format = Literal["text", "markdown", "latex", "csv"]
#: The same names as in `diwa.report.record`, which flags must not wait for.
Chosen = Literal["training-domain", "leave-one-out", "oracle"]


def report(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    /,
    *,
    format: Format = "text",
    layout: Literal["auto", "paper", "domainbed"] = "auto",
    images: Literal["80", "100", "all"] = "80",
    selection: tuple[Chosen, ...] = (),
    target: tuple[str, ...] = (),
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    want_trials: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    json: bool = False,
) -> None:
    """Print the paper's tables: per data set, and over all.

    FOLDERS are stores of diwa sweep, whose soups diwa soup has made, and folders of DomainBed's or
    DiWA's own runs, in any mix. A cell is the mean over the trials, with the population standard
    deviation over the root of their number; the best of a column is bold, the second underlined;
    "2 of 3" stands in a cell that lacks trials. Notes on what is missing go to stderr.

    Of folders of DomainBed's alone, text and LaTeX are those that its collect_results prints, to
    the last character.

    Args:
        folders: what to read.
        format: how to print.
        layout: the paper's tables, which say how many runs are behind a cell, or DomainBed's own.
        images: which part of the unseen domain, in percent: 80 as in the paper, 100, or all of
            these. Where a choice was scored on neither, its own 20 %.
        selection: only these ways to choose runs and checkpoints.
        target: only these unseen domains.
        sweep: only the runs of these sweeps, by the names that their recipe gave them.
        want_trials: how many trials a cell should have; the most that any has by default.
        json: print all results and tables as JSON.
    """
    from diwa.errors import SpecError
    from diwa.report.record import CHOSEN
    from diwa.report.report import tabulate

    found = tabulate(
        folders,
        images=images,
        selection=selection,
        target=target,
        sweep=sweep,
        want_trials=want_trials,
    )
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    if json:
        show_json(found.to_json())
        return
    # What DomainBed's own tables can't show asks for the others.
    plain = not (found.stores or target or want_trials is not None or images == "100")
    if layout == "domainbed" or (layout == "auto" and plain and format in ("text", "latex")):
        if found.domainbed is None:
            raise SpecError(
                "layout domainbed: none of the folders is DomainBed's", remedy="use --layout paper"
            )
        ways: list[Chosen] = [way for way in CHOSEN if not selection or way in selection]
        say(_DOMAINBED[format](found.domainbed, ways).rstrip("\n"))
        if layout == "auto":
            print("note: --layout paper tells how many runs are behind each cell", file=sys.stderr)
        return
    _PAPER[format](found)


def _text(found: Report) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    from diwa.report.text import LEGEND, text_table

    console = Console(highlight=False)
    here = console.is_terminal
    wide = console.options.update(width=10_000)
    for table in found.tables:
        made = text_table(table, marks=not here)
        if here and Measurement.get(console, wide, made).minimum > console.width:
            made = text_table(table, tight=True)
        needs = Measurement.get(console, wide, made)
        # A line too long for the terminal is still better than a number cut in two.
        console.width = max(console.width, needs.minimum if here else needs.maximum)
        console.print(Text(table.title, style="bold"), soft_wrap=True)
        console.print(made, "")
    if found.tables and not here:
        console.print(LEGEND, markup=False, soft_wrap=True)


def _markdown(found: Report) -> None:
    from diwa.report.markdown import markdown_table

    _each(found.tables, markdown_table)


def _latex(found: Report) -> None:
    from diwa.report.latex import latex_table

    _each(found.tables, latex_table)


def _csv(found: Report) -> None:
    from diwa.report.sheet import csv_table

    _each(found.tables, csv_table)


def _each(tables: Sequence[Table], form: Callable[[Table], str]) -> None:
    say("\n".join(form(table) for table in tables).rstrip("\n"))


def _their_text(results: Results, ways: Sequence[Chosen]) -> str:
    from diwa.report.domainbed import as_text

    return as_text(results, ways)


def _their_latex(results: Results, ways: Sequence[Chosen]) -> str:
    from diwa.report.domainbed import as_latex

    return as_latex(results, ways)


def _their_markdown(results: Results, ways: Sequence[Chosen]) -> str:
    from diwa.report.markdown import grid_markdown

    return grid_markdown(results, ways)


def _their_csv(results: Results, ways: Sequence[Chosen]) -> str:
    from diwa.report.sheet import grid_csv

    return grid_csv(results, ways)


_PAPER = {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv}
_DOMAINBED = {
    "text": _their_text,
    "markdown": _their_markdown,
    "latex": _their_latex,
    "csv": _their_csv,
}
