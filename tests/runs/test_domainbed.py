"""DomainBed's folders: what is read of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diwa.errors import StoreError
from diwa.runs.domainbed import is_domainbed, read_runs, unfinished


def told(step: int = 0, **changes: Any) -> dict[str, Any]:
    args = {"dataset": "PACS", "algorithm": "ERM", "test_envs": [3]}
    args |= {"trial_seed": 1, "hparams_seed": 2, "holdout_fraction": 0.2, "data_dir": "/x"}
    found: dict[str, Any] = {"step": step, "args": args, "loss": float("nan")}
    found["hparams"] = {"lr": 3e-05, "batch_size": 32, "resnet18": False, "name": "x"}
    for number in range(4):
        found[f"env{number}_in_acc"] = 0.1 * number
        found[f"env{number}_out_acc"] = 0.1 * number + 0.05
    return {**found, **changes}


def folder(root: Path, *lines: Any, end: str = "\n", done: bool = True, name: str = "run") -> Path:
    place = root / name
    place.mkdir(parents=True)
    texts = [one if isinstance(one, str) else json.dumps(one, sort_keys=True) for one in lines]
    (place / "results.jsonl").write_text("\n".join(texts) + end)
    if done:
        (place / "done").write_text("done")
    return root


def test_a_run(tmp_path: Path) -> None:
    (run,), notes = read_runs(folder(tmp_path, told(0), told(100)))
    assert notes == []
    assert run.folder == tmp_path / "run"
    assert run.done
    assert [row.step for row in run.rows] == [0, 100]
    row = run.rows[0]
    assert (row.data, row.algorithm, row.unseen, row.trial, row.draw) == ("PACS", "ERM", (3,), 1, 2)
    assert list(row.inner) == [0.0, 0.1, 0.2, 0.1 * 3]
    assert list(row.outer) == [0.05, 0.1 + 0.05, 0.2 + 0.05, 0.1 * 3 + 0.05]
    assert run.hparams == {"lr": 3e-05, "batch_size": 32.0}
    assert run.weights == tmp_path / "run" / "model_best.pkl"


def test_a_single_run_is_a_folder_too(tmp_path: Path) -> None:
    place = folder(tmp_path, told()) / "run"
    assert is_domainbed(place)
    assert is_domainbed(tmp_path)
    (run,), _ = read_runs(place)
    assert run.folder == place


def test_other_folders_are_none(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    assert not is_domainbed(tmp_path)
    assert not is_domainbed(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"no folder in it has a results\.jsonl"):
        read_runs(tmp_path)
    with pytest.raises(StoreError, match="nowhere: can't be read"):
        read_runs(tmp_path / "nowhere")


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_cut_off_last_line_is_left_out_and_noted(tmp_path: Path, cut: int) -> None:
    half = json.dumps(told(100), sort_keys=True)[:-cut]
    (run,), notes = read_runs(folder(tmp_path, told(0), half, end=""))
    assert [row.step for row in run.rows] == [0]
    assert notes == [
        f"{tmp_path / 'run' / 'results.jsonl'}: its last line is cut off, and left out"
    ]


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_a_whole_last_line_counts(tmp_path: Path, end: str) -> None:
    (run,), notes = read_runs(folder(tmp_path, told(0), told(100), end=end))
    assert [row.step for row in run.rows] == [0, 100]
    assert notes == []


def test_a_run_that_wrote_nothing_yet(tmp_path: Path) -> None:
    (run,), notes = read_runs(folder(tmp_path, end="", done=False))
    assert run.rows == ()
    assert run.best is None
    assert notes == []
    (note,) = unfinished(tmp_path, [run])
    assert "1 of 1 runs have not finished" in note


def test_a_broken_line_amid_others_is_refused(tmp_path: Path) -> None:
    folder(tmp_path, told(0), '{"step": 1', told(2))
    with pytest.raises(
        StoreError, match=r"results\.jsonl: line 2 is not JSON .*; remove that line"
    ):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"step": 0}, "line 1 has no 'args'"),
        ({"args": told()["args"]}, "line 1 has no 'step'"),
        ([1, 2], "line 1 is no JSON object"),
        ({**told(), "step": "zero"}, "line 1: Expected `int`, got `str`"),
        ({**told(), "args": {**told()["args"], "trial_seed": None}}, r"\$.trial_seed"),
        ({**told(), "env1_out_acc": "high"}, "line 1: Expected `float`, got `str`"),
        ({k: v for k, v in told().items() if k != "env2_in_acc"}, "line 1 has no 'env2_in_acc'"),
        ({**told(), "args": {**told()["args"], "test_envs": [4]}}, r"test_envs \[4\] of 4 domains"),
        ({**told(), "args": {**told()["args"], "test_envs": []}}, r"test_envs \[\] of 4 domains"),
    ],
)
def test_what_is_not_domainbeds_is_refused(tmp_path: Path, line: Any, says: str) -> None:
    folder(tmp_path, line, told(1))
    with pytest.raises(StoreError, match=says) as caught:
        read_runs(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "run" / "results.jsonl"))
    assert "\n" not in str(caught.value)


def better(step: int, *outer: float) -> dict[str, Any]:
    return told(step, **{f"env{n}_out_acc": value for n, value in enumerate(outer)})


def test_the_best_validation_is_the_first_of_equal_ones(tmp_path: Path) -> None:
    # The unseen domain, the last one, must not count.
    rows = [better(0, 0.5, 0.5, 0.5, 1.0), better(1, 0.5, 0.75, 1.0, 0.0)]
    rows += [better(2, 1.0, 0.75, 0.5, 1.0), better(3, 0.1, 0.1, 0.1, 1.0)]
    (run,), _ = read_runs(folder(tmp_path, *rows))
    assert run.best is not None
    row, score = run.best
    assert row.step == 1
    assert score == 0.75


def test_after_a_second_start_only_its_own_lines_are_of_the_weights(tmp_path: Path) -> None:
    first = [better(0, 0.9, 0.9, 0.9, 0), better(1, 0.8, 0.8, 0.8, 0)]
    again = [better(0, 0.1, 0.1, 0.1, 0), better(1, 0.4, 0.4, 0.4, 0)]
    (run,), _ = read_runs(folder(tmp_path, *first, *again))
    assert run.best is not None
    assert run.best[0].step == 1
    assert run.best[1] == pytest.approx(0.4)


def test_notes_name_a_few_of_many_unfinished(tmp_path: Path) -> None:
    for number in range(5):
        folder(tmp_path, told(), done=number == 4, name=f"run{number}")
    runs, _ = read_runs(tmp_path)
    (note,) = unfinished(tmp_path, runs)
    assert "4 of 5 runs have not finished" in note
    assert note.endswith("run0, run1, run2 and 1 more")
