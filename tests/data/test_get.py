"""Fetching whole data sets, from places on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import diwa
from diwa.data import get as getting
from diwa.data.home import data_home
from diwa.data.sets.base import DataSet, Remote
from diwa.errors import DataError, SpecError

if TYPE_CHECKING:
    from tests.data.conftest import Place

Grow = Callable[[Path, Mapping[str, int]], Path]


@pytest.fixture
def archive(
    tmp_path: Path, grow: Grow, small_pacs: dict[str, int], pack: Callable[..., Path]
) -> bytes:
    mine = grow(tmp_path / "mine", small_pacs)
    return pack(mine, tmp_path / "PACS.zip", "kfold/").read_bytes()


@pytest.fixture
def at(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Moves a data set to the server of the test."""

    def moved(name: str, *remotes: Remote) -> None:
        held: DataSet = dataclasses.replace(diwa.DATASETS.get(name), remotes=remotes)
        monkeypatch.setattr(getting, "known", lambda _: held)

    return moved


def test_it_is_fetched_unpacked_and_found_by_name(
    place: Place, at: Callable[..., None], archive: bytes
) -> None:
    place.holds["/PACS.zip"] = {"body": archive}
    sha = hashlib.sha256(archive).hexdigest()
    at("PACS", Remote(name="PACS.zip", urls=(place.url("/PACS.zip"),), sha256=sha))
    got = diwa.get_data("PACS")
    assert got.added.new
    assert (got.files, got.unchecked) == ({"PACS.zip": sha}, ())
    assert len(diwa.open_data("PACS", allow_small_domains=True)) == 4
    # The archive is not kept, and a second call fetches nothing.
    assert not list((data_home() / ".downloads").glob("PACS*"))
    asked = len(place.asked)
    assert not diwa.get_data("PACS").added.new
    assert len(place.asked) == asked


def test_a_digest_that_is_not_known_is_told(
    place: Place, at: Callable[..., None], archive: bytes
) -> None:
    place.holds["/PACS.zip"] = {"body": archive}
    at("PACS", Remote(name="PACS.zip", urls=(place.url("/PACS.zip"),)))
    got = diwa.get_data("PACS", keep=True)
    assert got.unchecked == ("PACS.zip",)
    assert got.files["PACS.zip"] == hashlib.sha256(archive).hexdigest()
    assert (data_home() / ".downloads" / "PACS" / "PACS.zip").read_bytes() == archive


def test_what_to_do_when_it_is_gone(place: Place, at: Callable[..., None]) -> None:
    at("PACS", Remote(name="PACS.zip", urls=(place.url("/gone.zip"),)))
    with pytest.raises(DataError) as caught:
        diwa.get_data("PACS")
    assert str(caught.value) == (
        "PACS.zip: its only place does not give it (127.0.0.1 is gone (404)); look for a copy at "
        f"{diwa.DATASETS.get('PACS').homepage}, then diwa data add PACS FILE "
        "(or diwa data get PACS --url ADDRESS)"
    )
    assert not (data_home() / "PACS").exists()


def test_a_place_of_ones_own(place: Place, archive: bytes) -> None:
    place.holds["/my/copy.zip"] = {"body": archive}
    assert diwa.get_data("PACS", urls=[place.url("/my/copy.zip")]).added.new


def test_what_is_fetched_but_is_something_else(place: Place, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("holiday/beach/1.png", b"x")
    place.holds["/a.zip"] = {"body": (tmp_path / "a.zip").read_bytes()}
    with pytest.raises(DataError, match="nothing in there looks like PACS"):
        diwa.get_data("PACS", urls=[place.url("/a.zip")])
    assert not (data_home() / "PACS").exists()


@pytest.mark.parametrize("url", ["/home/me/PACS.zip", "file:///home/me/PACS.zip", "ftp://x/y"])
def test_a_place_that_is_not_of_the_web(url: str) -> None:
    with pytest.raises(DataError, match="not an address of the web"):
        diwa.get_data("PACS", urls=[url])


@pytest.mark.parametrize(("name", "near"), [("VLSC", "VLCS"), ("pcas", "PACS")])
def test_an_unknown_name(name: str, near: str) -> None:
    with pytest.raises(SpecError, match=f"no data set is called {name!r}; did you mean {near!r}"):
        diwa.get_data(name)


def test_the_list_of_duplicates_is_fetched_too_and_can_be_missing(
    place: Place,
    at: Callable[..., None],
    tmp_path: Path,
    grow: Grow,
    pack: Callable[..., Path],
) -> None:
    domains = diwa.DATASETS.get("DomainNet").domains
    mine = grow(tmp_path / "mine", {f"{domain}/zebra": 2 for domain in domains})
    place.holds["/all.zip"] = {"body": pack(mine, tmp_path / "all.zip").read_bytes()}
    listed = Remote(name="domain_net_duplicates.txt", urls=(place.url("/list.txt"),), optional=True)
    at("DomainNet", Remote(name="all.zip", urls=(place.url("/all.zip"),)), listed)
    without = diwa.get_data("DomainNet", home=tmp_path / "without")
    assert without.added.notes[0] == (
        "domain_net_duplicates.txt: its only place does not give it (127.0.0.1 is gone (404))"
    )
    assert without.added.notes[1].startswith("duplicates: there is no list of them")
    place.holds["/list.txt"] = {"body": b"real/zebra/pic_001.png\n", "kind": "text/plain"}
    got = diwa.get_data("DomainNet", home=tmp_path / "with")
    assert [domain.found for domain in got.added.count.domains] == [2, 2, 2, 2, 1, 2]


def test_the_digits(
    place: Place,
    at: Callable[..., None],
    tmp_path: Path,
    fake_digits: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import gzip

    remotes = []
    for path in fake_digits(tmp_path / "digits").iterdir():
        name = f"{path.name}.gz"
        place.holds[f"/{name}"] = {"body": gzip.compress(path.read_bytes())}
        remotes.append(Remote(name=name, urls=(place.url(f"/{name}"),)))
    at("RotatedMNIST", *remotes)
    got = diwa.get_data("RotatedMNIST")
    assert [domain.found for domain in got.added.count.domains] == [12] * 6
    # Both data sets are made of the same digits.
    assert diwa.open_data("ColoredMNIST").names == ["plus90", "plus80", "minus90"]
