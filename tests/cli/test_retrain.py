"""`diwa retrain`, as a person and a script use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diwa.cli.main import main

TINY = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32", "--trials", "1"),
    *("--runs", "2", "--steps", "2", "--hparams", "batch_size=4", "lr=1e-3,2e-3"),
    *("--device", "cpu", "--allow-small-domains"),
]


def test_the_table_the_json_and_the_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    recipe = ["sweep", str(folder), "--recipe", "last-layer-small", "--target", "sketch"]
    assert main([*recipe, "--store", str(store), *TINY]) == 0
    capsys.readouterr()
    call = ["retrain", str(store), "--device", "cpu", "--sweep", "last-layer-small"]
    assert main([*call, "--save", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (pool,) = printed["pools"]
    (table,) = printed["tables"]
    assert json.loads(Path(pool["results"]).read_text()) == pool
    cells = {(c["features"], c["percent"], c["tested_percent"]): c for c in table["cells"]}
    assert len(cells) == len(pool["scores"]) == 10
    for score in pool["scores"]:
        held = cells[score["features"], score["percent"], score["tested_percent"]]
        assert held["accuracy"]["mean"] == pytest.approx(100 * score["accuracy"])
        assert held["accuracy"]["error"] is None

    # What is saved scores on the other part what the table says.
    saved = next(path for path in pool["saved"] if path.endswith("soup-20.safetensors"))
    scoring = ["eval", saved, str(folder), "--domain", "sketch", "--part", "in", "--device", "cpu"]
    assert main([*scoring, "--allow-small-domains", "--precision", "fp32", "--json"]) == 0
    (scored,) = json.loads(capsys.readouterr().out)
    assert scored["images"] == cells["diwa", 20, 80]["tested_on"] == 10
    assert scored["accuracy"] == pytest.approx(
        cells["diwa", 20, 80]["accuracy"]["mean"] / 100, abs=0.1
    )

    # The images are not needed a second time, nor does anything change.
    before = Path(pool["results"]).read_bytes()
    assert main(call) == 0
    shown = capsys.readouterr().out
    for heading in ("trainedon0%20%0%80%", "testedon80%80%20%20%", "images101022"):
        assert heading in shown.replace(" ", "").splitlines()
    assert "the pretrained encoder as it came" in shown
    again = {**pool, "saved": []}
    assert json.loads(Path(pool["results"]).read_bytes()) == again
    assert main([*call, "--save"]) == 0
    assert Path(pool["results"]).read_bytes() == before

    # Named by hand, and elsewhere.
    moved = tmp_path / "moved"
    shutil.move(folder, moved)
    out = tmp_path / "out"
    capsys.readouterr()
    assert main([*call, "--data", str(moved), "--images", "80", "--out", str(out)]) == 0
    assert "trainedon0%80%" in capsys.readouterr().out.replace(" ", "").splitlines()
    assert len(list(out.glob("last-layer-small-sketch-t0-*/results.json"))) == 1
    other = ["erm" if word == "last-layer-small" else word for word in call]
    assert other != call
    for wrong, says in (
        ([*call, "--target", "photo"], "none of its 2 runs is finished and wanted"),
        (other, "has no sweep called 'erm'"),
        ([*call, "--images"], "no share of the unseen domain to train on; choose 20, 80 or both"),
    ):
        assert main([*wrong, "--data", str(moved)]) == 1
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retrain", str(tmp_path / "none")]) == 1
    assert "holds no runs; start with diwa sweep" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["retrain", str(tmp_path), "--images", "50"])
    assert stopped.value.code == 2
