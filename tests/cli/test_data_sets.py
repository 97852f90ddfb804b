"""Data sets by name, as a stranger meets them on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diwa.cli.main import main
from diwa.data.home import data_home

Capture = pytest.CaptureFixture[str]


def paint(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.RandomState(seed).randint(0, 256, size=(12, 12, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A PACS with one image of each class, some folders below what is given."""
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for d, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        for c, name in enumerate(classes):
            for number in range(2):
                paint(
                    tmp_path / "mine" / "kfold" / domain / name / f"{number}.png",
                    100 * d + 10 * c + number,
                )
    return tmp_path / "mine"


def flat(text: str) -> str:
    return " ".join(text.split())


def run(*arguments: object) -> int:
    return main([str(one) for one in arguments])


def test_add_list_and_look(mine: Path, capsys: Capture) -> None:
    assert run("data", "add", "PACS", mine) == 0
    shown = flat(capsys.readouterr().out)
    assert "art_painting (A) 14 2,048 -2,034" in shown
    assert "not as published (Li et al. 2017): art_painting, cartoon, photo, sketch" in shown
    assert "photo: dog 2, published 189, elephant 2, published 202" in shown
    assert "next: diwa sweep PACS --target art_painting" in shown
    assert run("data", "add", "PACS", mine) == 0
    assert "was there already" in capsys.readouterr().out
    assert run("data", "list", "--json") == 0
    held = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert held["PACS"]["root"] == str(data_home() / "PACS")
    assert held["VLCS"]["root"] is None
    assert run("data", "list") == 0
    assert "586,575" in capsys.readouterr().out
    assert run("data", "PACS", "--list-only", "--allow-small-domains") == 0
    shown = flat(capsys.readouterr().out)
    assert "PACS art_painting cartoon photo sketch" in shown
    assert "not as published" in shown


def test_add_as_json(mine: Path, capsys: Capture) -> None:
    assert run("data", "add", "PACS", mine, "--how", "copy", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["new"] is True
    assert [one["found"] for one in told["count"]["domains"]] == [14] * 4
    assert told["count"]["domains"][0]["published"] == 2048
    assert told["count"]["domains"][2]["differing"]["dog"] == 189


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data", "add", "PASC", "."], "error: no data set is called 'PASC'; did you mean 'PACS'?"),
        (["data", "add", "PACS"], "error: PACS: nothing to add; name archives or a folder"),
        (["data", "add", "PACS", "nowhere"], "error: nowhere: no such file or folder; give what"),
        (["data", "get", "VLSC"], "error: no data set is called 'VLSC'; did you mean 'VLCS'?"),
        (["data", "PASC"], "error: PASC: no such folder; give a folder laid out as"),
        (["data", "vlcs"], "error: VLCS: not in "),
        (["data", "get", "PACS", "--url", "x.zip"], "error: x.zip: not an address of the web"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str, capsys: Capture) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(says)
    assert shown.err.count("\n") == 1


def test_a_folder_called_like_a_verb(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder.rename(folder.parent / "add")
    monkeypatch.chdir(folder.parent)
    assert run("data", "show", "add", "--list-only", "--allow-small-domains") == 0
    assert "sketch" in capsys.readouterr().out


TINY = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32", "--init", "random"),
    *("--runs", "1", "--steps", "2", "--hparams", "batch_size=2", "--device", "cpu"),
    "--allow-small-domains",
]


def test_a_sweep_by_name_and_its_soup_from_elsewhere(
    mine: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("data", "add", "PACS", mine) == 0
    store = tmp_path / "runs"
    assert run("sweep", "PACS", "--target", "A", "--store", store, *TINY, "--json") == 0
    swept = capsys.readouterr().out
    swept = json.loads(swept[swept.index('{\n  "store"') :])
    assert swept["runs"][0]["unseen"] == ["art_painting"]
    monkeypatch.chdir(mine)
    assert run("soup", store, "--target", "A", "--device", "cpu", "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["target"] == "art_painting"
    assert run("soup", store, "--target", "S", "--device", "cpu") == 1
    assert "none of its 1 runs is finished and wanted" in capsys.readouterr().err
    scored = ["eval", result["soup"], "PACS", "--domain", "S", "--allow-small-domains"]
    assert run(*scored, "--device", "cpu", "--json") == 0
    (score,) = json.loads(capsys.readouterr().out)
    assert (score["domain"], score["images"]) == ("sketch", 14)


def test_a_sweep_of_coloured_digits(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diwa.data import digits

    def few(_: object) -> digits.Digits:
        chance = np.random.RandomState(0)
        images = chance.randint(0, 256, size=(120, 28, 28)).astype(np.uint8)
        return digits.Digits(images, np.arange(120) % 10, "")

    where = digits.Whereabouts(tmp_path, {})
    monkeypatch.setattr("diwa.data.sets.digits.locate", lambda _: where)
    monkeypatch.setattr("diwa.data.sets.digits.read", few)
    store = tmp_path / "runs"
    settings = ["--runs", "2", "--steps", "3", "--init", "random", "--device", "cpu"]
    arguments = ["sweep", "ColoredMNIST", "--target=-90%", "--store", store, *settings]
    assert run(*arguments, "--hparams", "batch_size=4") == 0
    told = capsys.readouterr()
    assert "ColoredMNIST: with backbone mnist_cnn, weights none, size 28, channels 2" in told.err
    assert run("soup", store, "--device", "cpu", "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["target"], result["images"]) == ("minus90", 40)
    assert run("data", "ColoredMNIST") == 0
    shown = capsys.readouterr().out
    assert "plus90" in shown
    assert "cache:" not in shown


def test_a_table_goes_the_same_way(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = [
        f"{path.relative_to(tmp_path)},{path.parts[-3]},{path.parts[-2]}"
        for path in sorted(folder.rglob("*.png"))
    ]
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(["path,domain,label", *rows]))
    store = tmp_path / "runs"
    assert run("sweep", table, "--target", "sketch", "--store", store, *TINY) == 0
    capsys.readouterr()
    assert run("soup", store, "--device", "cpu", "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["target"], result["images"]) == ("sketch", 12)


@pytest.mark.parametrize("verb", ["data list", "data get", "data add"])
def test_each_verb_has_help(verb: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*verb.split(), "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: diwa {verb}" in shown
    assert "--json" in shown


def test_get_from_a_place_that_is_gone_says_what_to_do(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import urllib.error
    import urllib.request

    def gone(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", gone)
    assert run("data", "get", "PACS") == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("PACS: about 0.2 GB to fetch, into ")
    assert shown[1].startswith(
        "error: PACS.zip: its only place does not give it (drive.usercontent.google.com can't be "
        "reached (no network in tests)); look for a copy at https://"
    )
    assert len(shown) == 2
    # With several places, each is tried.
    assert run("data", "get", "RotatedMNIST") == 1
    assert "ossci-datasets.s3.amazonaws.com can't be reached" in capsys.readouterr().err


def test_callers_get_the_same_functions(mine: Path) -> None:
    import diwa

    given: Callable[..., object] = diwa.add_data
    assert given("PACS", mine)
    assert diwa.open_data("PACS", allow_small_domains=True)["P"].name == "photo"


def test_names_in_brackets_are_shown_as_they_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever draws the tables would take them for colours."""
    import shutil

    mine = tmp_path / "[red]" / "[bold]photos"
    shutil.copytree(folder, mine)
    for domain in [one for one in mine.iterdir() if one.is_dir()]:
        (domain / "cat").rename(domain / "[dim]cat")
    (mine / "[link]").mkdir()
    assert main(["data", "show", str(mine), "--list-only"]) == 0
    told = capsys.readouterr().out
    for name in ("[bold]photos", "[dim]cat", "[link]"):
        assert name in told
