"""Recipes on the command line: flags on top of them, names, and one run of many."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from diwa.cli.main import main
from diwa.errors import StoreError
from diwa.runs.store import Store
from diwa.sweep.recipe import packaged
from diwa.sweep.run import runs_of

TINY = """
backbone = "test_resnet"
weights = "none"
size = 32
steps = 2
init = "random"
share_init = "target"
"""

RECIPE = f"""
about = "two objectives and a pool of both"
data = "FOLDER"
target = "sketch"
runs = 2
{TINY}
[[sweep]]
name = "erm"

[[sweep]]
name = "mixup"
algorithm = ["Mixup"]

[[sweep]]
name = "pool"
algorithm = ["ERM", "Mixup"]
hparams = {{ batch_size = 4 }}
"""


@pytest.fixture
def recipe(folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)))
    return path


def _run(*arguments: object) -> int:
    return main([*map(str, arguments), "--device", "cpu", "--allow-small-domains"])


def _planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict]:
    assert _run("sweep", *arguments, "--dry-run", "--no-trial", "--json") == 0
    return json.loads(capsys.readouterr().out)["runs"]


def test_what_it_says_is_done(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    arguments = ["sweep", "--recipe", recipe, "--hparams", "batch_size=4", "--store", store]
    assert _run(*arguments, "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["sweep"], run["algorithm"]) for run in runs] == [
        ("erm", "ERM"),
        ("erm", "ERM"),
        ("mixup", "Mixup"),
        ("mixup", "Mixup"),
        ("pool", "ERM"),
        ("pool", "Mixup"),
    ]
    # A run of the pool is one of those before it.
    assert [runs[4]["run"], runs[5]["run"]] == [runs[0]["run"], runs[2]["run"]]
    held = Store(store)
    assert len(held.runs()) == 4
    for name in ("erm", "mixup", "pool"):
        named = {run["run"] for run in runs if run["sweep"] == name}
        assert {run.name for run in runs_of(held, name)} == named
    with pytest.raises(StoreError, match="has no sweep called 'pol'; did you mean 'pool'"):
        runs_of(held, "pol")
    assert _run(*arguments) == 0
    shown = capsys.readouterr()
    assert shown.err.count("2 of 2 runs are done already") == 3
    assert "pool · shapes" in shown.out
    assert f"next: diwa soup {store}" in shown.out.replace("\n", "")


class TestFlags:
    def test_change_every_sweep(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        runs = _planned(capsys, "--recipe", recipe, "--runs", "3", "--steps", "5")
        assert len(runs) == 9
        assert {run["steps"] for run in runs} == {5}

    def test_even_where_one_of_them_says_so_already(
        self, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        # ERM is the first sweep's own default, and must reach the second all the same.
        runs = _planned(capsys, "--recipe", recipe, "--algorithm", "ERM")
        assert {run["algorithm"] for run in runs} == {"ERM"}

    def test_leave_the_rest_as_it_is(
        self, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs = _planned(capsys, f"--recipe={recipe}", "--trials", "2")
        assert [run["algorithm"] for run in runs].count("Mixup") == 6
        assert {run["hparams"]["batch_size"] for run in runs if run["sweep"] == "pool"} == {4}
        assert {run["hparams"]["batch_size"] for run in runs if run["sweep"] != "pool"} == {32}
        assert {run["trial"] for run in runs} == {0, 1}

    def test_name_the_target_where_the_recipe_does_not(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "open.toml"
        path.write_text(f"runs = 1\n{TINY}")
        (run,) = _planned(capsys, folder, "--recipe", path, "--target", "photo")
        assert (run["target"], run["sweep"], run["data"]) == ("photo", "open", "shapes")
        assert _run("sweep", folder, "--recipe", path) == 1
        assert capsys.readouterr().err.startswith(f"error: {path}: no target; name the domain")
        assert _run("sweep", "--recipe", path, "--target", "photo") == 1
        assert capsys.readouterr().err.startswith("error: no data set; give a folder")

    def test_choose_among_its_sweeps(
        self, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs = _planned(capsys, "--recipe", recipe, "--only", "pool", "erm")
        assert [run["sweep"] for run in runs] == ["erm", "erm", "pool", "pool"]
        assert _run("sweep", "--recipe", recipe, "--only", "pol") == 1
        assert "no sweep is called 'pol'; did you mean 'pool'? it has erm, mixup, pool" in (
            capsys.readouterr().err
        )

    def test_data_stand_in_for_all_of_its_data_sets(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "two.toml"
        path.write_text(f'data = ["PACS", "VLCS"]\ntarget = "all"\nruns = 1\n{TINY}')
        runs = _planned(capsys, folder, "--recipe", path)
        assert [run["target"] for run in runs] == ["cartoon", "photo", "sketch"]

    def test_the_same_as_the_recipe_give_the_same_runs(
        self, folder: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = [
            *("--target", "sketch", "--runs", "2", "--backbone", "test_resnet", "--weights"),
            *("none", "--size", "32", "--steps", "2", "--init", "random", "--share-init", "target"),
            *("--algorithm", "ERM", "Mixup", "--hparams", "batch_size=4"),
        ]
        told = _planned(capsys, folder, *flags)
        written = _planned(capsys, "--recipe", recipe, "--only", "pool")
        assert [run["run"] for run in told] == [run["run"] for run in written]

    def test_ranges(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        flags = ["--target", "sketch", "--weights", "none", "--runs", "9"]
        runs = _planned(capsys, folder, *flags, "--hparams", "lr=1e-4..1e-2:log", "dropout=0.1")
        rates = [run["hparams"]["lr"] for run in runs]
        assert len(set(rates)) == 9
        assert all(1e-4 <= rate <= 1e-2 for rate in rates)
        with pytest.raises(SystemExit) as stopped:
            _run("sweep", folder, *flags, "--hparams", "lr=1e-2..1e-4")
        assert stopped.value.code == 2
        assert "is above high" in capsys.readouterr().err


def test_one_run_of_a_recipe(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = _planned(capsys, "--recipe", recipe, "--only", "pool", "--trials", "2")
    job = ["train", "--recipe", recipe, "--trials", "2", "--store", tmp_path / "runs", "--json"]
    assert _run(*job, "--only", "pool", "--run", "1", "--trial", "1") == 0
    done = json.loads(capsys.readouterr().out)
    (wanted,) = [run for run in planned if (run["number"], run["trial"]) == (1, 1)]
    assert done["run"] == wanted["run"]
    assert [run.name for run in runs_of(Store(tmp_path / "runs"), "pool")] == [done["run"]]
    assert _run(*job) == 1
    assert "the recipe has several sweeps: erm on" in capsys.readouterr().err


def test_a_mistake_leaves_no_store(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(recipe.read_text().replace('["Mixup"]', '["Mixpu"]'))
    assert _run("sweep", "--recipe", recipe, "--store", tmp_path / "runs") == 1
    assert "did you mean 'Mixup'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    recipe.write_text("stpes = 3")
    assert _run("sweep", "--recipe", recipe, "--store", tmp_path / "runs") == 1
    assert f"error: {recipe}: has no field 'stpes'; did you mean 'steps'?" in (
        capsys.readouterr().err
    )
    assert _run("sweep", "--recipe", "sam-tabel") == 1
    assert "did you mean 'sam-table'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('algorithm = ["Mixpu"]', "no algorithm is called 'Mixpu'; did you mean 'Mixup'?"),
        ('backbone = "test_resent"', "backbone 'test_resent': neither timm nor a plug-in has it"),
        ('target = "sketsh"', "has no domain 'sketsh'; did you mean 'sketch'?"),
        ("hparams = { gama = 1 }", "Mixup has no hyperparameter 'gama'"),
        ("hparams = { lr = -1 }", "hyperparameter lr=-1; give a number from 0 up"),
        ('averages = ["mma"]', "no average is called 'mma'; did you mean 'ma'?"),
        ("size = 4", "size (4, 4): too small"),
    ],
)
@pytest.mark.parametrize("verb", [["sweep"], ["sweep", "--dry-run"], ["train"]], ids=" ".join)
def test_a_word_that_nobody_knows_is_told_with_its_table_before_anything_is_done(
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: list[str],
    line: str,
    says: str,
) -> None:
    wrong = recipe.read_text().replace('name = "mixup"\n', f'name = "mixup"\n{line}\n')
    if "algorithm" in line:
        wrong = wrong.replace('algorithm = ["Mixup"]\n', "")
    recipe.write_text(wrong)
    one = ["--only", "mixup"] if verb == ["train"] else []
    store = tmp_path / "runs"
    assert _run(*verb, "--recipe", recipe, "--store", store, *one) == 1
    told = capsys.readouterr().err
    assert f"error: {recipe}: [[sweep]] 2: " in told
    assert says in told
    assert not store.exists()
    # What a flag has changed is not the recipe's fault.
    assert _run(*verb, "--recipe", recipe, "--store", store, *one, "--runs", "3") == 1
    told = capsys.readouterr().err
    assert "error: sweep mixup: " in told
    assert says in told


class TestRecipes:
    def test_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["recipes"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == sorted(packaged())
        assert max(map(len, lines)) <= 100

    def test_are_printed_as_they_are(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["recipes", "sam-table"]) == 0
        shown = capsys.readouterr().out
        assert shown == packaged()["sam-table"].read_text()
        assert msgspec.toml.decode(shown)["target"] == "Art"

    def test_in_full_for_machines(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["recipes", "sam-table", "--json"]) == 0
        (recipe,) = json.loads(capsys.readouterr().out)
        assert [part["name"] for part in recipe["parts"]] == ["erm", "sam"]
        assert recipe["parts"][1]["spec"]["algorithm"] == ["SAM"]

    def test_an_unknown_one_suggests_another(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["recipes", "sam"]) == 1
        assert "no recipe is called 'sam'" in capsys.readouterr().err
