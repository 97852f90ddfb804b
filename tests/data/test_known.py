"""Naming data: a path, a table, a data set."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import diwa
from diwa.data.home import data_home
from diwa.data.known import locate, whereabouts
from diwa.errors import DataError

Grow = Callable[[Path, Mapping[str, int]], Path]


@pytest.fixture
def pacs_at_home(grow: Grow, small_pacs: dict[str, int]) -> Path:
    return grow(data_home() / "PACS", small_pacs)


def said(data: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        diwa.open_data(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def small(data: Path | str) -> diwa.Benchmark:
    return diwa.open_data(data, allow_small_domains=True)


class TestHome:
    def test_the_users_data_folder_unless_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DIWA_DATA")
        monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
        assert data_home() == Path("/xdg/diwa")
        monkeypatch.delenv("XDG_DATA_HOME")
        monkeypatch.setenv("HOME", "/home/me")
        assert data_home() == Path("/home/me/.local/share/diwa")
        monkeypatch.setenv("DIWA_DATA", "~/data")
        assert data_home() == Path("/home/me/data")
        assert data_home(Path("/told")) == Path("/told")


class TestByName:
    def test_it_has_its_own_name_whatever_its_folders(self, grow: Grow) -> None:
        grow(data_home() / "office_home", {"Art/Bed": 2, "Clipart/Bed": 2})
        for name in ("OfficeHome", "officehome", "office_home"):
            assert small(name).name == "OfficeHome"

    def test_domains_by_folder_and_by_short_name(self, pacs_at_home: Path) -> None:
        opened = small("PACS")
        assert opened["A"] is opened["art_painting"]
        assert opened.index("S") == 3
        assert (opened.split("S", trial=1).outer == opened.split("sketch", trial=1).outer).all()
        with pytest.raises(DataError) as caught:
            opened["skech"]
        assert str(caught.value) == (
            "PACS: has no domain 'skech'; did you mean 'sketch'? it has art_painting (A), "
            "cartoon (C), photo (P), sketch (S)"
        )

    def test_a_path_always_wins(
        self, pacs_at_home: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert small("PACS").names[0] == "art_painting"
        shutil.copytree(folder, "PACS")
        assert small("PACS").names == ["cartoon", "photo", "sketch"]
        assert small(Path("PACS")).names == ["cartoon", "photo", "sketch"]

    def test_a_folder_of_the_home_that_nobody_described(self, grow: Grow) -> None:
        grow(data_home() / "sviro", {"zoe/child": 3, "tesla/child": 3})
        assert small("sviro").names == ["tesla", "zoe"]

    def test_a_folder_elsewhere_knows_its_short_names_too(
        self, tmp_path: Path, grow: Grow, small_pacs: dict[str, int]
    ) -> None:
        opened = small(grow(tmp_path / "mine", small_pacs))
        assert (opened.name, opened["S"].name) == ("mine", "sketch")

    def test_one_that_is_not_there(self) -> None:
        assert said("pacs") == (
            f"PACS: not in {data_home()}; diwa data get PACS fetches it, "
            "diwa data add PACS PATH takes what you have of it"
        )

    def test_a_typo(self) -> None:
        assert said("PASC").endswith("or the name of a data set; did you mean PACS?")
        assert said("qqqqq").endswith("or the name of a data set")
        assert said("PASC").startswith("PASC: no such folder; give a folder laid out as")

    def test_a_path_is_not_taken_for_a_name(self) -> None:
        assert said("some/PACS") == (
            "some/PACS: no such folder; give a folder laid out as domain/class/image"
        )

    def test_things_that_are_no_data(self, tmp_path: Path) -> None:
        (tmp_path / "PACS.zip").write_bytes(b"PK")
        assert said(tmp_path / "PACS.zip").startswith(f"{tmp_path}/PACS.zip: an archive; unpack it")
        (tmp_path / "notes.txt").write_text("hello")
        text = said(tmp_path / "notes.txt")
        assert text.startswith(f"{tmp_path}/notes.txt: neither a folder nor a table; ")


def test_whereabouts_mean_the_same_from_anywhere(
    pacs_at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert whereabouts("photos") == str(tmp_path.resolve() / "photos")
    assert whereabouts("PACS") == str(pacs_at_home.resolve())
    assert whereabouts("ColoredMNIST") == "ColoredMNIST"
    assert locate(Path("PACS"))[0] == pacs_at_home


def test_it_takes_what_open_folder_takes() -> None:
    def arguments(function: Callable[..., object]) -> dict[str, object]:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        return {one.name: (one.default, one.kind, one.annotation) for one in parameters}

    assert arguments(diwa.open_data) == arguments(diwa.open_folder)


def test_the_real_pacs_by_name(pacs: Path) -> None:
    (data_home() / "PACS").symlink_to(pacs)
    opened = diwa.open_data("PACS")
    assert opened.digest == diwa.open_folder(pacs).digest
    assert [len(opened[short]) for short in "ACPS"] == [2048, 2344, 1670, 3929]
