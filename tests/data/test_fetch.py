"""Fetching from a server on this machine: resume, checks, and places that are gone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from diwa.data import fetch as fetching
from diwa.data.fetch import fetch
from diwa.data.sets.base import Remote
from diwa.data.webpage import explain, next_step
from diwa.errors import DataError

if TYPE_CHECKING:
    from tests.data.conftest import Place

BODY = np.random.RandomState(0).bytes(3_000_000)
SHA = hashlib.sha256(BODY).hexdigest()


def remote(*urls: str, **more: Any) -> Remote:
    return Remote(name="PACS.zip", urls=urls, **more)


def said(held: Remote, to: Path, **more: Any) -> str:
    with pytest.raises(DataError) as caught:
        fetch(held, to, wait=lambda _: None, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "PACS.zip"


class TestWhole:
    @pytest.mark.parametrize("silent", [False, True])
    def test_a_file(self, place: Place, to: Path, silent: bool) -> None:
        place.holds["/a.zip"] = {"body": BODY, "silent": silent}
        got = fetch(remote(place.url("/a.zip"), size=len(BODY), sha256=SHA), to)
        assert (got.path, got.sha256, got.checked) == (to, SHA, True)
        assert to.read_bytes() == BODY
        assert [path.name for path in to.parent.iterdir()] == ["PACS.zip"]

    def test_a_digest_that_nobody_published_is_told(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY}
        got = fetch(remote(place.url("/a.zip")), to)
        assert (got.sha256, got.checked) == (SHA, False)

    def test_what_is_there_is_not_fetched_again(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY}
        held = remote(place.url("/a.zip"), sha256=SHA)
        fetch(held, to)
        assert fetch(held, to).checked
        assert len(place.asked) == 1

    def test_what_is_there_but_wrong_is(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY}
        to.parent.mkdir()
        to.write_bytes(b"something else")
        assert fetch(remote(place.url("/a.zip"), sha256=SHA), to).sha256 == SHA

    def test_progress_says_how_much_is_left(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY}
        told: list[Any] = []

        class Told:
            def task(self, title: str, total: int) -> Any:
                told.append((title, total))
                return self

            def __enter__(self) -> Told:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def advance(self, amount: int = 1, *, note: str = "") -> None:
                told.append(amount)

            def say(self, text: str) -> None:
                told.append(text)

        fetch(remote(place.url("/a.zip")), to, progress=Told())
        assert told[0] == ("fetching PACS.zip, MB", 3)
        assert sum(told[1:]) == 3


class TestResumed:
    def test_a_connection_that_breaks_is_taken_up_where_it_broke(
        self, place: Place, to: Path
    ) -> None:
        place.holds["/a.zip"] = {"body": BODY, "cut": [1_000_000, 500_000], "etag": '"1"'}
        fetch(remote(place.url("/a.zip"), sha256=SHA), to, wait=lambda _: None)
        assert [asked for _, asked in place.asked] == [None, "bytes=1000000-", "bytes=1500000-"]
        assert to.read_bytes() == BODY

    def test_a_later_start_goes_on(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY, "cut": [1_000_000]}

        def stop(_: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch(remote(place.url("/a.zip")), to, wait=stop)
        assert not to.exists()
        assert to.with_name("PACS.zip.part").stat().st_size == 1_000_000
        fetch(remote(place.url("/a.zip"), sha256=SHA), to)
        assert place.asked[-1][1] == "bytes=1000000-"
        assert to.read_bytes() == BODY

    def test_a_file_that_changed_meanwhile_is_begun_again(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": b"x" * 9, "cut": [4], "etag": '"old"'}
        said_once: list[float] = []

        def change(seconds: float) -> None:
            said_once.append(seconds)
            place.holds["/a.zip"] = {"body": BODY, "etag": '"new"'}

        fetch(remote(place.url("/a.zip"), sha256=SHA), to, wait=change)
        assert to.read_bytes() == BODY
        assert len(said_once) == 1

    def test_a_place_that_gives_no_parts(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY, "cut": [1_000_000], "deaf": True}
        fetch(remote(place.url("/a.zip"), sha256=SHA), to, wait=lambda _: None)
        assert to.read_bytes() == BODY

    def test_another_place_does_not_go_on_with_what_the_first_left(
        self, place: Place, to: Path
    ) -> None:
        place.holds["/a.zip"] = {"body": b"y" * 500_000, "cut": [100] * 20}
        place.holds["/b.zip"] = {"body": BODY}
        held = remote(place.url("/a.zip"), place.url("/b.zip"), sha256=SHA)
        fetch(held, to, wait=lambda _: None)
        assert to.read_bytes() == BODY

    def test_more_than_all_of_it_is_begun_again(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY}
        part = to.with_name("PACS.zip.part")
        part.parent.mkdir()
        part.write_bytes(b"z" * (len(BODY) + 5))
        note = {"url": place.url("/a.zip"), "pages": 0, "version": "", "total": None}
        part.with_name("PACS.zip.part.json").write_text(json.dumps(note))
        fetch(remote(place.url("/a.zip"), sha256=SHA), to, wait=lambda _: None)
        assert to.read_bytes() == BODY

    def test_a_kill_after_the_last_byte_costs_nothing(self, place: Place, to: Path) -> None:
        part = to.with_name("PACS.zip.part")
        part.parent.mkdir()
        part.write_bytes(BODY)
        note = {"url": place.url("/a.zip"), "pages": 0, "version": "", "total": len(BODY)}
        part.with_name("PACS.zip.part.json").write_text(json.dumps(note))
        fetch(remote(place.url("/a.zip"), sha256=SHA), to)
        assert place.asked == []
        assert to.read_bytes() == BODY

    def test_a_place_that_is_busy_is_asked_again(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY, "status": [503, 429, 200]}
        waited: list[float] = []
        fetch(remote(place.url("/a.zip"), sha256=SHA), to, wait=waited.append)
        assert waited == [2.0, 4.0]

    def test_but_not_for_ever(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY, "status": 503}
        text = said(remote(place.url("/a.zip")), to)
        assert "127.0.0.1 stops answering (503 Service Unavailable)" in text
        assert len(place.asked) == 5

    def test_a_place_that_breaks_off_again_and_again_keeps_what_came(
        self, place: Place, to: Path
    ) -> None:
        place.holds["/a.zip"] = {"body": BODY, "cut": [1000] + [0] * 20}
        text = said(remote(place.url("/a.zip")), to)
        assert "stops answering (the connection ended after 1,000 of 3,000,000 bytes)" in text
        assert to.with_name("PACS.zip.part").stat().st_size == 1000


class TestGone:
    def test_the_next_place_is_tried(self, place: Place, to: Path) -> None:
        place.holds["/b.zip"] = {"body": BODY}
        got = fetch(remote(place.url("/a.zip"), place.url("/b.zip"), sha256=SHA), to)
        assert got.checked

    def test_what_to_do_when_all_are_gone(self, place: Place, to: Path) -> None:
        place.holds["/b.zip"] = {"body": b"", "status": 403}
        held = remote(place.url("/a.zip"), place.url("/b.zip"))
        assert said(held, to, remedy="look elsewhere") == (
            "PACS.zip: none of its places gives it (127.0.0.1 is gone (404); "
            "127.0.0.1 forbids it, or its quota is used up); look elsewhere"
        )
        assert said(remote(place.url("/a.zip")), to) == (
            "PACS.zip: its only place does not give it (127.0.0.1 is gone (404))"
        )

    def test_nobody_there(self, place: Place, to: Path) -> None:
        url = place.url("/a.zip")
        place.server.shutdown()
        place.server.server_close()
        assert "127.0.0.1 can't be reached (" in said(remote(url), to)

    def test_a_wrong_digest(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY[:-1] + b"!"}
        other = hashlib.sha256(place.holds["/a.zip"]["body"]).hexdigest()
        text = said(remote(place.url("/a.zip"), sha256=SHA), to)
        assert f"127.0.0.1 gave another file: its SHA-256 is {other}, not {SHA}" in text
        assert list(to.parent.iterdir()) == []

    def test_a_wrong_size_is_seen_before_it_is_fetched(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": BODY}
        text = said(remote(place.url("/a.zip"), size=9), to)
        assert "127.0.0.1 has another file, of 3,000,000 bytes and not 9" in text
        assert list(to.parent.iterdir()) == []

    def test_an_address_that_is_not_of_the_web(self, to: Path, tmp_path: Path) -> None:
        (tmp_path / "a.zip").write_bytes(BODY)
        text = said(remote((tmp_path / "a.zip").as_uri()), to)
        assert "has an address that is not of the web" in text

    def test_no_room(self, place: Place, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import shutil

        place.holds["/a.zip"] = {"body": BODY}
        monkeypatch.setattr(
            fetching.shutil,
            "disk_usage",
            lambda _: shutil._ntuple_diskusage(1, 1, 7),  # pyright: ignore
        )
        text = said(remote(place.url("/a.zip")), to)
        assert "PACS.zip needs 0.0 GB and 0.0 GB are free; free some space" in text


DRIVE = """<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>
<p>Google Drive can't scan this file for viruses.</p>
<form id="download-form" action="{action}" method="get"><input type="submit" value="Download"/>
<input type="hidden" name="id" value="1JF"><input type="hidden" name="uuid" value="a-b"></form>"""


class TestWebPages:
    def test_a_page_instead_of_the_file(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {
            "body": b"<html><title>Our  group</title>Welcome</html>",
            "kind": "text/html; charset=utf-8",
        }
        text = said(remote(place.url("/a.zip")), to, remedy="look elsewhere")
        assert "127.0.0.1 gives a web page ('Our group') instead of the file" in text
        assert list(to.parent.iterdir()) == []

    def test_one_that_pretends_to_be_the_file(self, place: Place, to: Path) -> None:
        place.holds["/a.zip"] = {"body": b"\n<!DOCTYPE html><p>hello", "kind": "application/zip"}
        assert "gives a web page" in said(remote(place.url("/a.zip")), to)

    def test_the_warning_about_viruses_is_passed(self, place: Place, to: Path) -> None:
        page = DRIVE.format(action=place.url("/download")).encode()
        place.holds["/uc"] = {"body": page, "kind": "text/html"}
        place.holds["/download?id=1JF&uuid=a-b"] = {"body": BODY, "cut": [1_000_000]}
        fetch(remote(place.url("/uc"), sha256=SHA), to, wait=lambda _: None)
        assert to.read_bytes() == BODY
        # The page is asked for again, and the rest of the file from there.
        assert place.asked[-1] == ("/download?id=1JF&uuid=a-b", "bytes=1000000-")

    def test_a_form_that_leads_in_circles(self, place: Place, to: Path) -> None:
        page = DRIVE.format(action="/uc").encode()
        place.holds["/uc"] = {"body": page, "kind": "text/html"}
        assert "wants a click" in said(remote(place.url("/uc")), to)
        assert len(place.asked) == 3

    def test_a_form_that_leads_off_the_web(self) -> None:
        assert next_step(DRIVE.format(action="file:///etc/passwd"), "http://x/") is None

    @pytest.mark.parametrize(
        ("page", "meaning"),
        [
            (
                "<title>Google Drive - Quota exceeded</title><p>Sorry, you can't view or download "
                "this file. Too many users have viewed or downloaded this file recently.",
                "has used up its quota; try in a day",
            ),
            ("<title>Google Drive: Sign-in</title>", "asks to sign in"),
            ("<title>404 - page not found</title>", "is gone"),
            ("<title>Data</title><a>Sign in</a>", "gives a web page ('Data') instead of the file"),
            ("<script>var virus = 1</script>", "gives a web page"),
        ],
    )
    def test_what_pages_mean(self, page: str, meaning: str) -> None:
        assert explain(page) == meaning
