"""Archives as sources: what is taken out, and what is refused."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from diwa.data import archive
from diwa.data.sources import Sources, open_sources
from diwa.errors import DataError

CONTENT = {"a/x/1.png": b"one", "a/y/2.png": b"two!", "notes.txt": b"hello"}


def zipped(to: Path, content: dict[str, bytes] = CONTENT) -> Path:
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as out:
        for name, body in content.items():
            out.writestr(name, body)
    return to


def tarred(to: Path, content: dict[str, bytes] = CONTENT) -> Path:
    mode = {".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(to.suffix, "w")
    with tarfile.open(to, mode) as out:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for name, body in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            out.addfile(info, io.BytesIO(body))
    return to


def taken(sources: Sources, into: Path, wanted: dict[str, str]) -> dict[str, bytes]:
    sources.place(wanted, into, "link", lambda _: None)
    return {target: (into / target).read_bytes() for target in wanted}


def said(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_sources([path])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["a.zip", "a.whl", "a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "noend"]
)
def test_what_is_wanted_is_taken_out_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = (zipped if name in ("a.zip", "a.whl", "noend") else tarred)(tmp_path / name)
    sources = open_sources([path])
    assert sources.images() == {"a/x/1.png": 3, "a/y/2.png": 4}
    assert sources.names(".txt") == ["notes.txt"]
    assert sources.read("notes.txt") == b"hello"
    wanted = {"b/2.png": "a/y/2.png", "c/d/2.png": "a/y/2.png"}
    assert taken(sources, tmp_path / "out", wanted) == dict.fromkeys(wanted, b"two!")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*.*")) == ["2.png", "2.png"]


def test_a_file_that_was_cut_short_is_made_whole_and_whole_ones_stay(tmp_path: Path) -> None:
    for make in (zipped, tarred):
        sources = open_sources([make(tmp_path / f"{make.__name__}.x")])
        into = tmp_path / make.__name__
        wanted = {"1.png": "a/x/1.png", "2.png": "a/y/2.png"}
        into.mkdir()
        (into / "1.png").write_bytes(b"on")
        (into / "2.png").write_bytes(b"kept")
        assert taken(sources, into, wanted) == {"1.png": b"one", "2.png": b"kept"}


@pytest.mark.parametrize(
    "name", ["../x.png", "a/../../x.png", "/etc/x.png", "C:/x.png", "a\\..\\..\\x.png", "..\\x"]
)
@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_name_that_points_outside_is_refused(
    tmp_path: Path, make: Callable[..., Path], name: str
) -> None:
    path = make(tmp_path / "evil", {**CONTENT, name: b"x"})
    text = said(path)
    assert text.startswith(f"{path}: holds {name!r}, which points outside of it; ")
    assert [p.name for p in tmp_path.rglob("*")] == ["evil"]


def test_links_and_devices_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as out:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"a/x/{kind!r}.png")
            info.type, info.linkname = kind, "/etc/passwd"
            out.addfile(info)
    assert open_sources([path]).images() == {}
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as out:
        info = zipfile.ZipInfo("a/x/1.png")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        out.writestr(info, "/etc/passwd")
    assert open_sources([path]).images() == {}


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_one_file_under_two_names_is_both(tmp_path: Path, name: str) -> None:
    """As tar packs an image of two classes whose bytes are shared."""
    from diwa.data.archive import open_archive

    mine = tmp_path / "mine"
    for number in range(3):
        (mine / "a" / "x").mkdir(parents=True, exist_ok=True)
        (mine / "a" / "y").mkdir(parents=True, exist_ok=True)
        (mine / "a" / "x" / f"{number}.png").write_bytes(bytes([number]) * 5000)
        (mine / "a" / "y" / f"{number}.png").hardlink_to(mine / "a" / "x" / f"{number}.png")
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as out:
        out.add(mine, ".")
        assert sum(member.islnk() for member in out.getmembers()) == 3
    sources = open_sources([tmp_path / name])
    names = [f"a/{folder}/{number}.png" for folder in "xy" for number in range(3)]
    assert sorted(sources.images()) == names
    expected = {name: (mine / name).read_bytes() for name in names}
    assert taken(sources, tmp_path / "out", {name: name for name in names}) == expected
    with open_archive(tmp_path / name).open("a/y/1.png") as file:
        assert file.read() == expected["a/y/1.png"]


def test_a_bomb_is_refused_before_it_goes_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_GROWTH", 2)
    path = zipped(tmp_path / "a.zip", {"a/x/1.png": bytes(3 * 2**20)})
    sources = open_sources([path])
    with pytest.raises(DataError, match=r"would unpack to 0\.0 GB, 3 times its size; images don't"):
        taken(sources, tmp_path / "out", {"1.png": "a/x/1.png"})
    assert not (tmp_path / "out" / "1.png").exists()


def test_an_archive_that_lies_about_a_size(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"1.png": b"longer than it says"})
    raw = path.read_bytes()
    at = raw.index(b"PK\x01\x02") + 24
    path.write_bytes(raw[:at] + (5).to_bytes(4, "little") + raw[at + 4 :])
    sources = open_sources([path])
    with pytest.raises(DataError, match=r"damaged or incomplete|not as long"):
        taken(sources, tmp_path / "out", {"1.png": "1.png"})
    assert not (tmp_path / "out" / "1.png").exists() or (
        (tmp_path / "out" / "1.png").stat().st_size <= 5
    )


class TestDamaged:
    def test_half_a_zip(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "a.zip")
        path.write_bytes(path.read_bytes()[:60])
        assert said(path).startswith(f"{path}: damaged or incomplete, no archive that is known; ")

    @pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
    def test_half_a_tar(self, tmp_path: Path, name: str) -> None:
        import numpy as np

        chance = np.random.RandomState(0)
        path = tarred(tmp_path / name, {f"a/x/{n}.png": chance.bytes(20_000) for n in "12"})
        path.write_bytes(path.read_bytes()[:25_000])
        assert said(path).startswith(f"{path}: damaged or incomplete (")

    def test_a_flipped_bit_in_a_zip(self, tmp_path: Path) -> None:
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("1.png", b"A" * 1000)
        path.write_bytes(path.read_bytes().replace(b"AAAA", b"AABA", 1))
        sources = open_sources([path])
        with pytest.raises(DataError, match=r"damaged or incomplete \(Bad CRC-32"):
            taken(sources, tmp_path / "out", {"1.png": "1.png"})

    def test_a_web_page_under_an_archives_name(self, tmp_path: Path) -> None:
        path = tmp_path / "PACS.zip"
        path.write_text("\n <!DOCTYPE html><html><title>Google Drive</title>")
        assert said(path) == (
            f"{path}: a web page that was saved under an archive's name; "
            "fetch the archive again, in a browser if need be"
        )

    @pytest.mark.parametrize(("start", "kind"), [(b"Rar!\x1a", "RAR"), (b"7z\xbc\xaf'", "7-Zip")])
    def test_an_archive_of_another_kind(self, tmp_path: Path, start: bytes, kind: str) -> None:
        path = tmp_path / "PACS.rar"
        path.write_bytes(start + bytes(600))
        assert said(path) == (
            f"{path}: a {kind} archive, which can't be read here; unpack it and give the folder"
        )

    def test_a_zip_that_is_locked(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "a.zip")
        raw = bytearray(path.read_bytes())
        raw[raw.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(raw)
        assert said(path).startswith(f"{path}: locked with a password; ")


class TestSeveral:
    def test_a_folder_of_archives(self, tmp_path: Path) -> None:
        zipped(tmp_path / "one.zip", {"a/x/1.png": b"1"})
        tarred(tmp_path / "two.tar.gz", {"b/x/2.png": b"2"})
        (tmp_path / "README").write_text("hello")
        sources = open_sources([tmp_path])
        assert sources.images() == {"a/x/1.png": 1, "b/x/2.png": 1}
        wanted = {"1.png": "a/x/1.png", "2.png": "b/x/2.png"}
        assert taken(sources, tmp_path / "out", wanted) == {"1.png": b"1", "2.png": b"2"}

    def test_archives_beside_images_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "1.png").write_bytes(b"1")
        zipped(tmp_path / "one.zip")
        assert open_sources([tmp_path]).images() == {"1.png": 1}

    def test_the_first_of_two_namesakes_counts(self, tmp_path: Path) -> None:
        one = zipped(tmp_path / "one.zip", {"1.png": b"first"})
        two = zipped(tmp_path / "two.zip", {"1.png": b"second"})
        sources = open_sources([one, two])
        assert taken(sources, tmp_path / "out", {"1.png": "1.png"}) == {"1.png": b"first"}

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        assert said(tmp_path / "no").startswith(f"{tmp_path / 'no'}: no such file or folder")


class TestFolders:
    def test_hidden_things_are_no_images(self, tmp_path: Path) -> None:
        for name in ("a/1.png", "a/._2.png", "__MACOSX/3.png", ".git/4.png", "a/Thumbs.db"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        assert list(open_sources([tmp_path]).images()) == ["a/1.png"]

    def test_links_are_followed_and_circles_end(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "1.png").write_bytes(b"1")
        (tmp_path / "in" / "a").mkdir(parents=True)
        (tmp_path / "in" / "a" / "2.png").symlink_to(tmp_path / "real" / "1.png")
        (tmp_path / "in" / "b").symlink_to(tmp_path / "real")
        (tmp_path / "in" / "a" / "up").symlink_to(tmp_path / "in")
        (tmp_path / "in" / "gone.png").symlink_to(tmp_path / "nowhere")
        sources = open_sources([tmp_path / "in"])
        assert sorted(sources.images()) == ["a/2.png", "b/1.png"]
        made = taken(sources, tmp_path / "out", {"2.png": "a/2.png"})
        assert made == {"2.png": b"1"}
        assert not (tmp_path / "out" / "2.png").is_symlink()
