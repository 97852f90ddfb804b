"""`diwa sweep --dry-run`, as a person sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diwa.cli.dryrun import _images, _time
from diwa.cli.main import main

TINY = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32", "--steps", "3"),
    *("--target", "sketch", "--device", "cpu", "--allow-small-domains"),
]


def _dry(folder: Path, *more: str) -> list[str]:
    return ["sweep", str(folder), *TINY, "--dry-run", *more]


@pytest.fixture(autouse=True)
def _hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_lists_the_runs_and_what_they_cost(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "runs")]
    assert main(["sweep", str(folder), *TINY, "--runs", "1", *store]) == 0
    capsys.readouterr()
    assert main(_dry(folder, "--runs", "2", "--algorithm", "ERM", "CORAL", *store)) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" not in shown
    assert "shapes: 2 runs of 3 steps from a probed head, sketch unseen" in lines
    (done,) = [line for line in lines if line.rstrip().endswith("done")]
    assert done.split()[:3] == ["0", "0", "ERM"]
    assert re.search(r" 0 +1 +CORAL .* gamma .* missing", shown)
    assert "all: lr" in shown
    # Two runs of three steps of 32 images from two domains.
    assert re.search(r"shapes +2 +1 +384 ", shown)
    assert re.search(r"CORAL on shapes +test_resnet +10 +64 ", shown)


def test_says_so_where_nothing_was_timed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_dry(folder, "--runs", "2", "--no-trial")) == 0
    shown = capsys.readouterr().out
    assert "leave --no-trial out to have a few steps timed" in shown
    assert re.search(r"\? +\? +\? *$", shown, flags=re.M)


def test_for_machines(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = _dry(folder, "--runs", "2", "--json", "--store", str(tmp_path / "runs"))
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["left"] == told["total"]
    assert told["total"]["training"] == 384
    assert told["total"]["seconds"] > 0
    assert told["trials"][0]["pace"]["steps"] == 10
    assert [run["state"] for run in told["runs"]] == ["missing", "missing"]
    assert not (tmp_path / "runs").exists()
    assert main([*arguments, "--no-trial"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["seconds"] is None


def test_names_of_sweeps_are_not_cut_short(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or `erm-mixup` and `erm-mixup-coral` would look the same."""
    recipe = tmp_path / "mine.toml"
    names = ("a-long-name-of-a-sweep-and-one", "a-long-name-of-a-sweep-and-two")
    recipe.write_text("".join(f'[[sweep]]\nname = "{name}"\n' for name in names))
    assert main([*_dry(folder, "--no-trial"), "--recipe", str(recipe)]) == 0
    _, _, costs = capsys.readouterr().out.partition("images, and time:")
    lines = costs.splitlines()
    heads = next(line for line in lines if "validated" in line)
    # The runs stand to the right, below the end of their heading.
    width = heads.index("runs")
    first = "".join(line[:width].strip() for line in lines)
    assert "…" not in costs
    assert all(name in first for name in names)


def test_a_wide_table_still_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--runs", "6", "--no-trial", "--space", "extreme", "--trials", "2"]
    assert main(_dry(folder, *more, "--algorithm", "ERM", "Mixup", "SAM+CORAL")) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert "SAM+CORAL" in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("count", "says"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (115_248, "115 k"), (2.65e9, "2.65 G")],
)
def test_images(count: float, says: str) -> None:
    assert _images(int(count)) == says


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (None, "?"),
        (0.4, "0 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (99 * 60, "99 min"),
        (100 * 60, "2 h"),
        (71 * 3600, "71 h"),
        (72 * 3600, "3 days"),
    ],
)
def test_time(seconds: float | None, says: str) -> None:
    assert _time(seconds) == says
