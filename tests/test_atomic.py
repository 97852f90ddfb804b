"""Files and folders are whole or not there, whatever happens on the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from diwa import atomic
from diwa.atomic import replacing, replacing_folder, swapping_folder, write_bytes
from diwa.errors import DataError, StoreError

Replacing = Callable[[Path], AbstractContextManager[Path]]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupted(way: Replacing, path: Path, error: BaseException) -> None:
    """Comes half-way, no further."""
    with way(path) as part:
        put(part, "half")
        raise error


def put(part: Path, text: str) -> None:
    """Writes `text` as the file, or as a file in the folder."""
    (part / "a" if part.is_dir() else part).write_text(text)


def _in_the_way(folder: Path) -> str:
    return "" if names(folder) == ["a"] else "other things"


def swapping(path: Path) -> AbstractContextManager[Path]:
    """Replaces folders that hold nothing but one file, `a`."""
    return swapping_folder(path, in_the_way=_in_the_way)


both = pytest.mark.parametrize("way", [replacing, replacing_folder, swapping])


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.bin"
    write_bytes(path, b"one")
    assert path.read_bytes() == b"one"
    write_bytes(path, b"")
    assert path.read_bytes() == b""
    assert names(path.parent) == ["a.bin"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("half")
        assert part.parent == tmp_path  # a rename stays within one file system
        assert path.read_text() == "old"
        part.write_text("whole")
    assert path.read_text() == "whole"


def test_a_folder_appears_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "things"
    with replacing_folder(path) as part:
        (part / "b").mkdir()
        (part / "b" / "c.txt").write_text("c")
        assert not path.exists()
    assert (path / "b" / "c.txt").read_text() == "c"
    assert names(path.parent) == ["things"]


@both
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError(), DataError("no photos")])
def test_an_error_on_the_way_leaves_nothing_and_comes_through(
    tmp_path: Path, way: Replacing, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        interrupted(way, tmp_path / "a", error)
    assert caught.value is error
    assert names(tmp_path) == []


def test_an_error_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        interrupted(replacing, path, RuntimeError())
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@both
def test_a_full_disk_is_said_with_the_path_and_a_remedy(tmp_path: Path, way: Replacing) -> None:
    path = tmp_path / "a"
    with pytest.raises(StoreError) as caught:
        interrupted(way, path, OSError(28, "No space left on device"))
    assert str(caught.value) == (
        f"{path}: can't be written (No space left on device); "
        "free some space or choose another place"
    )
    assert names(tmp_path) == []


@both
def test_a_file_where_a_folder_should_be_is_said(tmp_path: Path, way: Replacing) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "a"
    with pytest.raises(StoreError, match="can't be written") as caught, way(path) as part:
        put(part, "x")
    assert str(caught.value).startswith(f"{path}: ")
    assert (tmp_path / "file").read_text() == "in the way"


@both
def test_a_name_that_is_too_long_is_said(tmp_path: Path, way: Replacing) -> None:
    with (
        pytest.raises(StoreError, match="File name too long"),
        way(tmp_path / ("x" * 250)) as part,
    ):
        put(part, "x")


def test_a_folder_in_the_way_of_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    with pytest.raises(StoreError, match=f"{path}: can't be written"):
        write_bytes(path, b"x")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("way", [replacing_folder, swapping])
def test_a_file_in_the_way_of_a_folder_is_said(tmp_path: Path, way: Replacing) -> None:
    path = tmp_path / "a"
    path.write_text("in the way")
    with pytest.raises(StoreError, match=f"{path}: can't be written"), way(path) as part:
        put(part, "x")
    assert path.read_text() == "in the way"
    assert names(tmp_path) == ["a"]


def test_the_folder_that_is_there_first_wins(tmp_path: Path) -> None:
    path = tmp_path / "things"
    with replacing_folder(path) as late, replacing_folder(path) as early:
        put(late, "late")
        put(early, "early")
    assert (path / "a").read_text() == "early"
    assert names(tmp_path) == ["things"]


def test_a_folder_that_appears_just_before_the_rename_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "things"
    rename = Path.rename

    def overtaken(part: Path, target: Path) -> Path:
        shutil.copytree(part, target)
        (target / "a").write_text("quicker")
        return rename(part, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    with replacing_folder(path) as part:
        put(part, "slower")
    assert (path / "a").read_text() == "quicker"
    assert names(tmp_path) == ["things"]


@both
def test_two_writers_do_not_share_a_part(tmp_path: Path, way: Replacing) -> None:
    with way(tmp_path / "a") as one, way(tmp_path / "a") as other:
        assert one != other
        put(one, "one")
        put(other, "other")
    assert names(tmp_path) == ["a"]


# -- a folder in another one's place


@pytest.fixture(params=["in one step", "in two"])
def things(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that may be replaced, on a system that can exchange folders, and on another one."""
    if request.param == "in two":
        monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
    path = tmp_path / "things"
    path.mkdir()
    put(path, "old")
    return path


def test_a_folder_is_replaced(things: Path) -> None:
    with swapping(things) as part:
        (part / "b").write_text("new")
        assert (things / "a").read_text() == "old"
    assert names(things) == ["b"]
    assert names(things.parent) == ["things"]


def test_an_empty_folder_is_replaced_whatever_the_mark(tmp_path: Path) -> None:
    with swapping_folder(tmp_path / "new", in_the_way=lambda _: "other things") as part:
        put(part, "one")
    (tmp_path / "empty").mkdir()
    with swapping_folder(tmp_path / "empty", in_the_way=lambda _: "other things") as part:
        put(part, "two")
    assert (tmp_path / "empty" / "a").read_text() == "two"
    assert names(tmp_path) == ["empty", "new"]


def test_a_foreign_folder_is_refused_at_once(things: Path) -> None:
    (things / "mine").write_text("years of work")
    with (
        pytest.raises(StoreError, match="things: is a folder with other things in it; choose"),
        swapping(things),
    ):
        pytest.fail("nothing has to be made for that")
    assert names(things) == ["a", "mine"]
    assert names(things.parent) == ["things"]


def test_what_is_put_there_meanwhile_is_not_lost(things: Path) -> None:
    with pytest.raises(StoreError, match="things: is a folder with other things in it; choose"):
        replaced_while_somebody_works(things)
    assert (things / "mine").read_text() == "years of work"
    assert (things / "a").read_text() == "old"
    assert names(things.parent) == ["things"]


def replaced_while_somebody_works(path: Path) -> None:
    with swapping(path) as part:
        put(part, "new")
        (path / "mine").write_text("years of work")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError()])
def test_an_error_on_the_way_leaves_the_old_folder(things: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        interrupted(swapping, things, error)
    assert (things / "a").read_text() == "old"
    assert names(things.parent) == ["things"]


def test_there_is_no_moment_without_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system can: what is killed between two renames can't put anything back."""
    path, other = tmp_path / "things", tmp_path / "other"
    path.mkdir()
    other.mkdir()
    if not atomic._exchanged(path, other):
        pytest.skip("folders can't be exchanged here")
    put(path, "old")
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("in more than one step"))
    with swapping(path) as part:
        put(part, "new")
    assert (path / "a").read_text() == "new"
    assert names(tmp_path) == ["other", "things"]


@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), KeyboardInterrupt()])
@pytest.mark.parametrize("failing", [1, 2])
def test_the_old_folder_is_put_back(
    things: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
    rename, done = Path.rename, []

    def fails_once(path: Path, target: Path) -> Path:
        done.append(path)
        if len(done) == failing:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    expected = StoreError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected), swapping(things) as part:
        put(part, "new")
    assert (things / "a").read_text() == "old"
    assert names(things.parent) == ["things"]


def test_a_link_stays_one(things: Path) -> None:
    link = things.parent / "place" / "link"
    link.parent.mkdir()
    link.symlink_to(things)
    with swapping(link) as part:
        put(part, "new")
    assert (things / "a").read_text() == "new"
    assert (names(link.parent), link.is_symlink()) == (["link"], True)
    assert names(things.parent) == ["place", "things"]


@pytest.mark.parametrize("name", [".", "", "../things"])
def test_the_folder_one_is_in_stays(
    things: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(things)
    with pytest.raises(StoreError, match="is the folder you are in; choose"), swapping(Path(name)):
        pytest.fail("nothing has to be made for that")
    assert os.path.samefile(things, ".")
    assert (things / "a").read_text() == "old"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import os, pathlib\n"
        "from diwa.atomic import swapping_folder\n"
        f"with swapping_folder(pathlib.Path({str(tmp_path / 'a[1]')!r}), in_the_way=str) as part:\n"
        "    (part / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", program], check=False)
        assert run.returncode == -9
    left = names(tmp_path)
    assert len(left) == 2
    assert all(name.startswith(".a[1].") for name in left)
    foreign = tmp_path / ".a[1].elsewhere-1-123456.part"
    alive = tmp_path / left[0].replace(left[0].rsplit("-", 2)[1], str(os.getpid()))
    for folder in (foreign, alive):
        folder.mkdir()
    with swapping(tmp_path / "a[1]") as part:
        put(part, "whole")
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"a[1]", foreign.name, alive.name}, "nobody's who may still be at it"
