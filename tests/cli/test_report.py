"""`diwa report`, as a person or a script uses it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diwa.cli.main import main
from diwa.report.domainbed import as_latex, as_text, read_results


def write(path: Path, told: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A soup of two runs, and one of all trials."""
    root = tmp_path / "store"
    write(root / "store.json", {"format": 1})
    task = {"data": "PACS", "unseen": ["sketch"], "trial": 0}
    init = {"task": task, "backbone": "resnet50", "head": "lp"}
    for name in ("a", "b"):
        spec = {"init": init, "algorithm": "ERM", "hparams": {}, "steps": 5001}
        write(root / "runs" / name / "spec.json", spec)
        write(root / "runs" / name / "result.json", {})
    methods = {"erm": 0.6124, "ens": 0.6, "diwa-uniform": 0.7}
    soup = {"data": "PACS", "target": "sketch", "trial": 0, "members": [{"run": "a"}, {"run": "b"}]}
    write(
        root / "soups" / "sketch" / "results.json",
        {**soup, "methods": {"erm": 0.5}, "methods_80": methods},
    )
    return root


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Two runs of DomainBed's."""
    root = tmp_path / "theirs"
    for trial in range(2):
        args = {"dataset": "PACS", "algorithm": "ERM", "test_envs": [3], "hparams_seed": 0}
        line = {"args": {**args, "trial_seed": trial}, "step": 0}
        line |= {f"env{n}_{p}_acc": 0.5 + trial / 4 for n in range(4) for p in ("in", "out")}
        write(root / str(trial) / "results.jsonl", line)
        write(root / str(trial) / "done", "")
    return root


def test_text(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store)]) == 0
    shown = capsys.readouterr()
    assert "PACS · training-domain validation · accuracy in % on 80 %" in shown.out
    (line,) = [line for line in shown.out.splitlines() if line.startswith("DiWA")]
    assert line.split() == ["DiWA", "uniform:", "M", "=", "2", "LP", "70.0*", "2"]
    (line,) = [line for line in shown.out.splitlines() if line.startswith("ERM")]
    assert "61.2'" in line
    assert shown.err == ""


def test_text_is_as_wide_as_it_needs_in_a_pipe(store: Path) -> None:
    diwa = Path(sys.executable).with_name("diwa")
    run = subprocess.run(
        [diwa, "report", store, "--want-trials", "3"],
        capture_output=True,
        check=True,
        env={"COLUMNS": "20", "PATH": ""},
    )
    lines = run.stdout.decode().splitlines()
    assert any("uniform: M = 2" in line and "70.0*" in line for line in lines)
    assert sum("1 of 3" in line for line in lines) == 3


def test_markdown(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), "--format", "markdown"]) == 0
    assert "| DiWA | uniform: M = 2 | LP | **70.0** | 2 |" in capsys.readouterr().out


def test_latex(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), "--format", "latex"]) == 0
    shown = capsys.readouterr().out
    assert r"DiWA & uniform: M = 2 & LP & \textbf{70.0} & 2 \\" in shown
    assert r"\toprule" in shown


def test_csv(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), "--format", "csv"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [float(row["sketch"]) for row in found] == pytest.approx([61.24, 60.0, 70.0])
    assert {row["sketch runs"] for row in found} == {"2"}


def test_all_images(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), "--images", "all"]) == 0
    shown = capsys.readouterr().out
    assert "80 % of the unseen domain" in shown
    assert "100 % of the unseen domain" in shown


def test_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {record["method"] for record in told["records"]} == {"erm", "ens", "diwa-uniform"}
    assert told["tables"][0]["columns"] == ["sketch"]


def test_domainbeds_own_tables(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_results([theirs])
    assert main(["report", str(theirs)]) == 0
    shown = capsys.readouterr()
    assert shown.out == as_text(results)
    assert "62.5 +/- 8.8" in shown.out
    assert "--layout paper" in shown.err
    assert main(["report", str(theirs), "--format", "latex"]) == 0
    assert capsys.readouterr().out == as_latex(results)
    assert main(["report", str(theirs), "--selection", "oracle"]) == 0
    assert capsys.readouterr().out == as_text(results, ["oracle"])


def test_domainbeds_tables_are_not_of_all_images(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(theirs), "--images", "100"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing to tabulate: all that was found is left out by what was asked for" in told.err
    assert main(["report", str(theirs), "--images", "all"]) == 0
    assert capsys.readouterr().out.startswith("Total records: ")


def test_domainbeds_tables_in_other_forms(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", str(theirs), "--layout", "domainbed", "--format"]
    assert main([*arguments, "markdown"]) == 0
    assert "| ERM | X | X | X | 62.5 +/- 8.8 | X |" in capsys.readouterr().out
    assert main([*arguments, "csv"]) == 0
    head, row, *_ = csv.reader(io.StringIO(capsys.readouterr().out))
    assert dict(zip(head, row, strict=True))["S"] == "62.5 +/- 8.8"


def test_the_papers_table_of_domainbeds_runs(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(theirs), "--layout", "paper", "--want-trials", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("ERM"))
    assert lines[place].split() == ["ERM", "N/A", "Random", "62.5", "±", "8.8", "3", "x", "1"]
    assert lines[place + 1].split() == ["2", "of", "3"]


def test_both_together(store: Path, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), str(theirs)]) == 0
    shown = capsys.readouterr().out
    assert "70.0*" in shown
    assert "62.5 ± 8.8" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "error: nowhere: no such folder; give a --store of diwa sweep"),
        ([], "error: no folders to report on; name stores"),
    ],
)
def test_errors(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(says)


def test_a_layout_that_nothing_has(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(store), "--layout", "domainbed"]) == 1
    assert "error: layout domainbed: none of the folders" in capsys.readouterr().err


def test_notes_do_not_mix_with_tables(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "soups" / "sketch" / "results.json").unlink()
    assert main(["report", str(store), "--format", "csv"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == ""
    assert "note: " in shown.err
    assert f"run diwa soup {store}" in shown.err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: diwa report" in shown
    assert "--json" in shown


def test_it_loads_no_torch(store: Path) -> None:
    code = f"from diwa.cli.main import main\nmain(['report', {str(store)!r}])\nimport sys"
    code += "\nassert not {'torch', 'torchvision', 'timm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
