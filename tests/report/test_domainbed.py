"""DomainBed's own tables, against a naive reckoning of what they are defined to hold."""

from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.report.domainbed import as_latex, as_text, grids, read_results

Line = dict[str, Any]

DOMAINS = {
    "Debug28": ["0", "1", "2"],
    "PACS": ["A", "C", "P", "S"],
    "ColoredMNIST": ["+90%", "+80%", "-90%"],
    "SVIRO": [
        *("aclass", "escape", "hilux", "i3", "lexus"),
        *("tesla", "tiguan", "tucson", "x5", "zoe"),
    ],
}
#: Some of DomainBed's data sets and algorithms, in its order.
DATA = ["Debug28", "ColoredMNIST", "PACS", "SVIRO"]
ALGORITHMS = ["ERM", "MA", "IRM", "Mixup", "CORAL"]
TITLES = {
    "iid": "training-domain validation set",
    "loo": "leave-one-domain-out cross-validation",
    "oracle": "test-domain validation set (oracle)",
}


def line(
    data: str,
    algorithm: str,
    test_envs: Sequence[int],
    trial: int,
    draw: int,
    step: int,
    accuracies: Sequence[float],
) -> Line:
    """A line of results; accuracies are in, out of the first domain, in, out of the second, …"""
    told: Line = {"step": step, "loss": 0.5, "hparams": {"lr": 5e-05, "class_balanced": False}}
    for number in range(len(DOMAINS[data])):
        told[f"env{number}_in_acc"] = accuracies[2 * number]
        told[f"env{number}_out_acc"] = accuracies[2 * number + 1]
    args = {"dataset": data, "algorithm": algorithm, "test_envs": list(test_envs)}
    return {**told, "args": {**args, "trial_seed": trial, "hparams_seed": draw, "seed": 7}}


def written(root: Path, lines: Sequence[Line]) -> Path:
    """A folder per run, as DomainBed's sweep leaves them."""
    for told in lines:
        args = told["args"]
        name = "-".join(str(args[key]) for key in sorted(args)).replace("/", "_")
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "done").write_text("done")
        with (folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(told, sort_keys=True) + "\n")
    return root


# -- the naive reckoning


def read_naively(root: Path) -> list[Line]:
    found = []
    for name in os.listdir(root):
        text = (root / name / "results.jsonl").read_text()
        found += [json.loads(one) for one in text.splitlines()]
    return found


def firsts(values: Sequence[Any]) -> list[Any]:
    return [value for place, value in enumerate(values) if value not in values[:place]]


def chosen_test_accuracy(lines: Sequence[Line], env: int, how: str) -> float | None:
    """Of all lines of one data set, algorithm and trial that leave `env` out."""
    best = None
    for draw in sorted({one["args"]["hparams_seed"] for one in lines}):
        own = [one for one in lines if one["args"]["hparams_seed"] == draw]
        alone = [one for one in own if one["args"]["test_envs"] == [env]]
        scored: tuple[float, float] | None = None
        if how == "iid":
            for one in alone:
                others = []
                number = 0
                while f"env{number}_out_acc" in one:
                    if number != env:
                        others.append(one[f"env{number}_out_acc"])
                    number += 1
                validation = float(np.mean(others))
                if scored is None or validation > scored[0]:
                    scored = (validation, one[f"env{env}_in_acc"])
        elif how == "oracle":
            for one in alone:
                if one["step"] == max(other["step"] for other in alone):
                    # The last of several that have it.
                    scored = (one[f"env{env}_out_acc"], one[f"env{env}_in_acc"])
        else:
            for step in sorted({one["step"] for one in own}):
                at = [one for one in own if one["step"] == step]
                here = [one for one in alone if one["step"] == step]
                count = sum(key.endswith("_out_acc") for key in at[0])
                held = {}
                for one in at:
                    envs = one["args"]["test_envs"]
                    if len(envs) == 2:
                        other = envs[1] if envs[0] == env else envs[0]
                        held[other] = one[f"env{other}_in_acc"]
                if len(here) != 1 or len(held) != count - 1:
                    continue
                validation = float(np.sum([held[key] for key in sorted(held)]) / (count - 1))
                if scored is None or validation > scored[0]:
                    scored = (validation, here[0][f"env{env}_in_acc"])
        if scored is not None and (best is None or scored[0] >= best[0]):
            best = scored
    return None if best is None else best[1]


def naive_cells(lines: Sequence[Line], how: str, plus_minus: str) -> list[tuple[str, list[Any]]]:
    """For each table its name and its rows, header included."""
    algorithms = firsts([one["args"]["algorithm"] for one in lines])
    algorithms = [a for a in ALGORITHMS if a in algorithms] + [
        a for a in algorithms if a not in ALGORITHMS
    ]
    data_sets = [d for d in DATA if d in {one["args"]["dataset"] for one in lines}]
    accuracy: dict[tuple[str, str, int, int], float] = {}
    for told in lines:
        about = told["args"]
        for env in about["test_envs"]:
            key = (about["dataset"], about["algorithm"], env, about["trial_seed"])
            together = [
                one
                for one in lines
                if one["args"]["dataset"] == key[0]
                and one["args"]["algorithm"] == key[1]
                and one["args"]["trial_seed"] == key[3]
                and env in one["args"]["test_envs"]
            ]
            found = chosen_test_accuracy(together, env, how)
            if found is not None and key not in accuracy:
                accuracy[key] = found

    def cell(values: list[float]) -> str:
        if not values:
            return "X"
        error = 100 * np.std(np.array(values) / np.sqrt(len(values)))
        return f"{100 * np.mean(values):.1f} {plus_minus} {error:.1f}"

    def last(columns: list[list[float]]) -> str:
        if not all(columns):
            return "X"
        return f"{sum(100 * np.mean(values) for values in columns) / len(columns):.1f}"

    tables = []
    for data in data_sets:
        rows = [["Algorithm", *DOMAINS[data], "Avg"]]
        for algorithm in algorithms:
            columns = [
                [v for (d, a, e, _), v in accuracy.items() if (d, a, e) == (data, algorithm, env)]
                for env in range(len(DOMAINS[data]))
            ]
            rows.append([algorithm, *map(cell, columns), last(columns)])
        tables.append((data, rows))
    rows = [["Algorithm", *data_sets, "Avg"]]
    for algorithm in algorithms:
        columns = []
        for data in data_sets:
            own = {k: v for k, v in accuracy.items() if k[:2] == (data, algorithm)}
            columns.append(
                [
                    float(np.mean([v for k, v in own.items() if k[3] == trial]))
                    for trial in sorted({k[3] for k in own})
                ]
            )
        rows.append([algorithm, *map(cell, columns), last(columns)])
    tables.append(("", rows))
    return tables


def naive_text(lines: Sequence[Line]) -> str:
    said = f"Total records: {len(lines)}\n"
    for how, title in TITLES.items():
        for name, rows in naive_cells(lines, how, "+/-"):
            about = f"Dataset: {name}" if name else "Averages"
            said += f"\n-------- {about}, model selection method: {title}\n"
            width = 20 if name else 25
            for row in rows:
                said += "  ".join((text + " " * width)[:width] for text in row) + " \n"
    return said


def naive_latex(lines: Sequence[Line]) -> str:
    said = "\\documentclass{article}\n\\usepackage{booktabs}\n\\usepackage{adjustbox}\n"
    said += "\\begin{document}\n\\section{Full DomainBed results}\n"
    said += f"% Total records: {len(lines)}\n"
    for how, title in TITLES.items():
        said += "\n\\subsection{Model selection: " + title + "}\n"
        for name, (head, *rows) in naive_cells(lines, how, "$\\pm$"):
            width = 20 if name else 25
            said += "\n\\subsubsection{" + (name or "Averages") + "}\n"
            said += "\n\\begin{center}\n\\adjustbox{max width=\\textwidth}{%\n"
            said += "\\begin{tabular}{l" + "c" * (len(head) - 1) + "}\n\\toprule\n"
            bold = ["\\textbf{" + text.replace("%", "\\%") + "}" for text in head]
            said += " & ".join((text + " " * width)[:width] for text in bold) + " \\\\\n\\midrule\n"
            for row in rows:
                said += " & ".join((text + " " * width)[:width] for text in row) + " \\\\\n"
            said += "\\bottomrule\n\\end{tabular}}\n\\end{center}\n"
    return said + "\\end{document}\n"


def agrees(root: Path) -> str:
    """Asserts that all tables are the naive ones; gives their text."""
    results = read_results([root])
    lines = read_naively(root)
    assert as_text(results) == naive_text(lines)
    assert as_latex(results) == naive_latex(lines)
    return as_text(results)


# -- records


def many(chance: random.Random) -> list[Line]:
    """About 200 lines: two data sets, three algorithms, three trials, ties and gaps."""
    lines = []
    for data, algorithm, trial, draw in itertools.product(
        ("PACS", "Debug28"), ("Mixup", "ERM", "Own"), range(3), range(2)
    ):
        count = len(DOMAINS[data])
        combinations = [[env] for env in range(count)]
        if data == "Debug28":
            combinations += [[0, 1], [0, 2], [1, 2]]
        for envs in combinations:
            if chance.random() < (0.7 if data == "PACS" else 0.25):
                continue
            # In eighths, so that validations are often equal.
            lines += [
                line(
                    *(data, algorithm, envs, trial, draw, step),
                    [chance.randrange(9) / 8 for _ in range(2 * count)],
                )
                for step in (0, 100)
            ]
    return lines


def test_about_200_lines(tmp_path: Path) -> None:
    lines = many(random.Random(1))
    assert 180 < len(lines) < 260
    text = agrees(written(tmp_path, lines))
    assert text.count("--------") == 9
    assert " X " in text, "some cells must be empty for this to test them"
    leave_one_out = text.split("leave-one-domain-out")[1]
    assert "+/-" in leave_one_out, "some cells must not be empty either"


def test_ties_and_what_breaks_them(tmp_path: Path) -> None:
    """Of equal draws the highest wins, of equal steps the first; oracle takes the last step."""
    flat = [0.5] * 6
    lines = []
    for draw, step, test in [(0, 0, 0.1), (0, 9, 0.2), (1, 0, 0.3), (1, 9, 0.4)]:
        lines.append(line("Debug28", "ERM", [0], 0, draw, step, [test, *flat[1:]]))
        lines += [line("Debug28", "ERM", [0, other], 0, draw, step, flat) for other in (1, 2)]
    results = read_results([written(tmp_path, lines)])
    found = {one.chosen: one.value for one in results.records if one.domain == "0"}
    assert found == {"training-domain": 0.3, "leave-one-out": 0.3, "oracle": 0.4}
    agrees(tmp_path)


def test_a_run_that_was_done_twice(tmp_path: Path) -> None:
    """Its lines stand twice: training-domain takes the better half, leave-one-out neither."""
    once = [line("Debug28", "ERM", [0], 0, 0, step, [0.1 + step, *[0.5] * 5]) for step in (0, 1)]
    more = [line("Debug28", "ERM", [0], 0, 0, step, [0.3, 0.9, *[0.7] * 4]) for step in (0, 1)]
    both = [
        line("Debug28", "ERM", [0, other], 0, 0, step, [0.5] * 6)
        for other in (1, 2)
        for step in (0, 1)
    ]
    results = read_results([written(tmp_path, [*once, *more, *both])])
    found = {one.chosen: one.value for one in results.records if one.domain == "0"}
    assert found == {"training-domain": 0.3, "oracle": 0.3}
    agrees(tmp_path)


def test_ten_domains_and_signs_that_latex_would_eat(tmp_path: Path) -> None:
    chance = random.Random(3)
    lines = [
        line(data, "ERM", [env], trial, 0, step, [chance.random() for _ in range(20)])
        for data in ("SVIRO", "ColoredMNIST")
        for env in range(len(DOMAINS[data]))
        for trial in range(3)
        for step in (0, 100)
    ]
    agrees(written(tmp_path, lines))
    assert "\\textbf{+90\\%}" in as_latex(read_results([tmp_path]))


eighths = st.integers(0, 8).map(lambda number: number / 8)
anything = st.floats(0, 1)


@st.composite
def some_lines(draw: st.DrawFn) -> list[Line]:
    number = draw(st.sampled_from([eighths, anything]))
    found = []
    for _ in range(draw(st.integers(1, 25))):
        data = draw(st.sampled_from(["Debug28", "PACS"]))
        count = len(DOMAINS[data])
        envs = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
        found.append(
            line(
                data,
                draw(st.sampled_from(["ERM", "MA", "Zeta", "Own"])),
                sorted(envs),
                draw(st.integers(0, 2)),
                draw(st.integers(0, 2)),
                draw(st.sampled_from([0, 100])),
                draw(st.lists(number, min_size=2 * count, max_size=2 * count)),
            )
        )
    return found


@settings(deadline=None, max_examples=60)
@given(some_lines())
def test_any_lines(lines: list[Line]) -> None:
    with tempfile.TemporaryDirectory() as root:
        agrees(written(Path(root), lines))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_leave_one_out_with_all_its_runs(data: st.DataObject) -> None:
    """Random lines seldom have them all, so here they do, but for one now and then."""
    lines = [
        line(
            *("Debug28", algorithm, envs, trial, draw, step),
            data.draw(st.lists(eighths, min_size=6, max_size=6)),
        )
        for algorithm in ("ERM", "Mixup")
        for trial in range(2)
        for draw in range(2)
        for envs in ([0], [1], [2], [0, 1], [0, 2], [1, 2])
        for step in (0, 100)
        if data.draw(st.integers(0, 9))
    ]
    with tempfile.TemporaryDirectory() as root:
        if lines:
            agrees(written(Path(root), lines))


# -- around the numbers


def test_a_number_by_hand(tmp_path: Path) -> None:
    """DomainBed's own example: .1, .2 and .3 are 20.0 +/- 4.7."""
    lines = [
        line("Debug28", "ERM", [0], trial, 0, 0, [value, *[0.5] * 5])
        for trial, value in enumerate((0.1, 0.2, 0.3))
    ]
    results = read_results([written(tmp_path, lines)])
    (table, _) = grids(results, "training-domain")
    assert table.rows == (("ERM", "20.0 +/- 4.7", "X", "X", "X"),)
    (table, _) = grids(results, "training-domain", latex=True)
    assert table.rows[0][1] == "20.0 $\\pm$ 4.7"


def test_a_data_set_of_ones_own_comes_last(tmp_path: Path) -> None:
    told = line("Debug28", "ERM", [1], 0, 0, 0, [0.5] * 6)
    told["args"]["dataset"] = "Aardvark"
    lines = [told, line("PACS", "ERM", [1], 0, 0, 0, [0.5] * 8)]
    results = read_results([written(tmp_path, lines)])
    assert results.data == ["PACS", "Aardvark"]
    assert results.domains("Aardvark") == ("0", "1", "2")
    assert any("Aardvark" in note for note in results.notes)


def test_records_say_what_is_behind_them(tmp_path: Path) -> None:
    lines = [
        line("PACS", "ERM", [3], trial, draw, step, [0.5] * 8)
        for trial in range(2)
        for draw in range(4)
        for step in (0, 100)
    ]
    results = read_results([written(tmp_path, lines)])
    ours = [one for one in results.records if one.chosen == "oracle"]
    assert [(one.domain, one.trial, one.runs, one.scored) for one in sorted(
        ours, key=lambda one: one.trial or 0
    )] == [("S", 0, 4, "in"), ("S", 1, 4, "in")]  # fmt: skip
    assert {one.init for one in ours} == {"Random"}


def test_a_shared_start_is_told_apart(tmp_path: Path) -> None:
    told = line("PACS", "ERM", [3], 0, 0, 0, [0.5] * 8)
    told["args"]["path_for_init"] = "/somewhere/init.pth"
    results = read_results([written(tmp_path, [told])])
    assert {one.init for one in results.records} == {"Shared"}


def test_unfinished_runs_count_and_are_noted(tmp_path: Path) -> None:
    written(tmp_path, [line("PACS", "ERM", [3], 0, 0, 0, [0.5] * 8)])
    (done,) = tmp_path.glob("*/done")
    done.unlink()
    results = read_results([tmp_path])
    assert len(results.records) == 2
    (note,) = results.notes
    assert "1 of 1 runs have not finished" in note
    assert done.parent.name in note


@pytest.mark.parametrize("count", [1, 2])
def test_several_folders_are_one_sweep(tmp_path: Path, count: int) -> None:
    lines = [line("PACS", "ERM", [3], trial, 0, 0, [0.5] * 8) for trial in range(count)]
    roots = [written(tmp_path / str(place), [one]) for place, one in enumerate(lines)]
    results = read_results(roots)
    assert len(results.rows) == count
    assert sum(one.chosen == "oracle" for one in results.records) == count
