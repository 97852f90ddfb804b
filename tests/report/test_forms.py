"""The same table as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from diwa.report.cells import Cell, Row, Table
from diwa.report.latex import escaped, latex_table
from diwa.report.markdown import markdown_table
from diwa.report.sheet import csv_table
from diwa.report.text import text_table


def cell(mean: float | None = 85.46, **more: Any) -> Cell:
    known = {"error": 0.25, "trials": 3, "wanted": 3, "runs": 60, "wanted_runs": 60}
    return Cell(mean=mean, **{**known, **more})


def table(*rows: Row, columns: tuple[str, ...] = ("art_painting", "Avg")) -> Table:
    return Table(
        title="PACS · 80 % of the unseen domain",
        data="PACS",
        chosen="training-domain",
        scored="in",
        network="resnet50",
        columns=list(columns),
        rows=list(rows),
    )


def row(algorithm: str, *cells: Cell, init: str = "LP", selection: str = "N/A") -> Row:
    return Row(
        algorithm=algorithm, selection=selection, init=init, cells=list(cells), runs="3 x 20"
    )


EXAMPLE = table(
    row("ERM", cell(), cell(70.0, error=None, rank=2), init="Random"),
    row(
        "DiWA†",
        cell(90.0, rank=1, trials=2),
        cell(None, error=None, missing="1 of 2 domains"),
        selection="restricted: M ≤ 20",
    ),
)


def printed(shown: Table, *, width: int = 200, marks: bool = False, tight: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(text_table(shown, marks=marks, tight=tight))
    return console.export_text()


def lines_of(text: str) -> list[list[str]]:
    return [[part for part in line.split("  ") if part.strip()] for line in text.splitlines()]


def test_text() -> None:
    lines = [" | ".join(part.strip() for part in parts) for parts in lines_of(printed(EXAMPLE))]
    assert lines[1] == "Algorithm | Weight selection | Init | art_painting | Avg | per cell"
    assert "ERM | N/A | Random | 85.5 ± 0.2 | 70.0 | 3 x 20" in lines
    assert "DiWA† | restricted: M ≤ 20 | LP | 90.0 ± 0.2 | 1 of 2 domains | 3 x 20" in lines
    assert lines[lines.index(next(x for x in lines if x.startswith("DiWA†"))) + 1] == "2 of 3"


def test_best_is_bold_and_second_underlined_or_marked() -> None:
    console = Console(width=200, file=io.StringIO(), force_terminal=True, color_system="standard")
    with console.capture() as caught:
        console.print(text_table(EXAMPLE))
    assert "\x1b[1m90.0\x1b[0m ± 0.2" in caught.get()
    assert "\x1b[4m70.0\x1b[0m" in caught.get()
    plain = printed(EXAMPLE, marks=True)
    assert "90.0* ± 0.2" in plain
    assert "70.0'" in plain
    assert "85.5 ± 0.2" in plain


@pytest.mark.parametrize("tight", [False, True])
def test_no_number_is_cut_however_narrow(tight: bool) -> None:
    shown = printed(EXAMPLE, width=80, tight=tight)
    for number in ("85.5 ± 0.2", "90.0 ± 0.2", "70.0", "3 x 20", "1 of 2 domains", "2 of 3"):
        assert number in shown


def test_columns_that_would_be_empty_are_left_out() -> None:
    bare = table(row("ERM", cell(), cell(), init="", selection=""))
    assert "Init" not in printed(bare)
    assert "Weight" not in printed(bare)
    assert "\\textbf{Init}" not in latex_table(bare)
    assert "| Init |" not in markdown_table(bare)


def test_markdown() -> None:
    heading, empty, head, rule, *rows = markdown_table(EXAMPLE).splitlines()
    assert heading == "### PACS · 80 % of the unseen domain"
    assert empty == ""
    assert head == (
        r"| Algorithm | Weight selection | Init | art\_painting | Avg | Runs per cell |"
    )
    assert rule == "| --- | --- | --- | --: | --: | --: |"
    assert rows == [
        "| ERM | N/A | Random | 85.5 ± 0.2 | <ins>70.0</ins> | 3 x 20 |",
        "| DiWA† | restricted: M ≤ 20 | LP | **90.0** ± 0.2 (2 of 3) | (1 of 2 domains) | 3 x 20 |",
    ]


def test_markdown_keeps_its_columns_whatever_the_names() -> None:
    odd = table(row("a|b", cell(), cell()), columns=("*x*", "Avg"))
    lines = markdown_table(odd).splitlines()[2:]
    assert {line.replace(r"\|", "").count("|") for line in lines} == {7}
    assert r"\*x\*" in lines[0]


def test_latex() -> None:
    assert latex_table(EXAMPLE).splitlines() == [
        r"\begin{table}",
        r"  \caption{PACS $\cdot$ 80 \% of the unseen domain}",
        r"  \centering",
        r"  \begin{tabular}{lllccc}",
        r"    \toprule",
        r"    \textbf{Algorithm} & \textbf{Weight selection} & \textbf{Init} & "
        r"\textbf{art\_painting} & \textbf{Avg} & \textbf{Runs per cell} \\",
        r"    \midrule",
        r"    ERM & N/A & Random & 85.5 $\pm$ 0.2 & \underline{70.0} & 3 x 20 \\",
        r"    \midrule",
        r"    DiWA$^{\dagger}$ & restricted: M $\leq$ 20 & LP & "
        r"\textbf{90.0} $\pm$ 0.2 {\scriptsize (2 of 3)} & {\scriptsize (1 of 2 domains)} & "
        r"3 x 20 \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


@given(st.text(alphabet="ab&%$#_{}~^\\±≤†·<> ", max_size=20))
def test_latex_eats_no_sign(text: str) -> None:
    """Undone naively, the escapes give back what was escaped."""
    shown = escaped(text)
    undone = shown
    commands = {
        r"\textbackslash{}": "\\",
        r"\textasciitilde{}": "~",
        r"\textasciicircum{}": "^",
        r"$\pm$": "±",
        r"$\leq$": "≤",
        r"$^{\dagger}$": "†",
        r"$\cdot$": "·",
        "$<$": "<",
        "$>$": ">",
    }
    back, place = "", 0
    while place < len(undone):
        for command, sign in commands.items():
            if undone.startswith(command, place):
                back, place = back + sign, place + len(command)
                break
        else:
            if undone[place] == "\\":
                assert undone[place + 1] in "&%$#_{}"
                place += 1
            back, place = back + undone[place], place + 1
    assert back == text


def test_every_row_of_latex_has_as_many_cells_as_columns() -> None:
    lines = [line for line in latex_table(EXAMPLE).splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in lines} == {5}


def test_csv_is_read_back_in_full() -> None:
    odd = table(
        row('D"iW,A', cell(100 / 3, error=1 / 7), cell(None, error=None, missing="none")),
    )
    (head, held) = list(csv.reader(io.StringIO(csv_table(odd))))
    told = dict(zip(head, held, strict=True))
    assert float(told["art_painting"]) == 100 / 3
    assert float(told["art_painting error"]) == 1 / 7
    assert (told["art_painting trials"], told["art_painting runs"]) == ("3", "60")
    assert told["algorithm"] == 'D"iW,A'
    assert (told["Avg"], told["Avg error"], told["Avg lacks"]) == ("", "", "none")
    assert (told["data"], told["chosen by"], told["scored on"], told["network"]) == (
        *("PACS", "training-domain", "in", "resnet50"),
    )
