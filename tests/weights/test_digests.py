"""SHA-256 of files, also when it was begun ahead of time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diwa.weights import digests
from diwa.weights.digests import ahead, sha256


@pytest.fixture(autouse=True)
def _nothing_begun() -> Iterator[None]:
    digests._begun.clear()
    yield
    _wait()
    digests._begun.clear()


def _wait() -> None:
    """Until whatever hashes in the background has come to an end."""
    deadline = time.monotonic() + 10
    while any(thread.name.endswith("(_begin)") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all files that are read through, as often as they are."""
    seen: list[str] = []
    plain = digests._hashed

    def noting(path: str | os.PathLike[str]) -> str:
        seen.append(os.path.basename(path))
        return plain(path)

    monkeypatch.setattr(digests, "_hashed", noting)
    return seen


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5000])
def test_is_that_of_hashlib(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_BLOCK", 1000)
    content = os.urandom(size)
    path = written(tmp_path / "a", content)
    assert sha256(path) == sha256(str(path)) == hashlib.sha256(content).hexdigest()
    ahead([str(path)])
    _wait()
    assert sha256(path) == hashlib.sha256(content).hexdigest()


def test_a_file_that_was_begun_is_read_once(tmp_path: Path, hashed: list[str]) -> None:
    paths = [written(tmp_path / name, name.encode()) for name in "abc"]
    ahead([str(path) for path in paths[:2]])
    _wait()
    for path in paths:
        assert sha256(path) == hashlib.sha256(path.name.encode()).hexdigest()
    assert sorted(hashed) == ["a", "b", "c"]
    # Asked again it is read again: it may be another by now.
    sha256(paths[0])
    assert len(hashed) == 4


def test_by_another_path(tmp_path: Path, hashed: list[str]) -> None:
    path = written(tmp_path / "a", b"content")
    (tmp_path / "link").symlink_to(path)
    ahead([str(path)])
    _wait()
    assert sha256(tmp_path / "link") == hashlib.sha256(b"content").hexdigest()
    assert hashed == ["a"]


@pytest.mark.parametrize("new", [b"another", b"CONTENT"], ids=["appended", "in place"])
def test_a_file_that_has_changed_since(tmp_path: Path, new: bytes) -> None:
    path = written(tmp_path / "a", b"content")
    ahead([str(path)])
    _wait()
    time.sleep(0.02)  # a tick of the file system's clock
    written(path, new)
    assert sha256(path) == hashlib.sha256(new).hexdigest()


def test_a_file_that_was_replaced_since(tmp_path: Path) -> None:
    path = written(tmp_path / "a", b"content")
    ahead([str(path)])
    _wait()
    about = path.stat()
    written(tmp_path / "b", b"CONTENT").replace(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert sha256(path) == hashlib.sha256(b"CONTENT").hexdigest()


def test_what_is_no_file_is_passed_over(tmp_path: Path, hashed: list[str]) -> None:
    """Arguments of all sorts come by: flags, patterns, folders."""
    path = written(tmp_path / "a", b"content")
    ahead(["--out", "", "*.pt", str(tmp_path), "hf://a/b", "x" * 5000, "\0", str(path)])
    _wait()
    assert hashed == ["a"]


def test_a_file_that_is_named_twice(tmp_path: Path, hashed: list[str]) -> None:
    """As a member, and as what a head is taken from; no thread may come to grief."""
    path = written(tmp_path / "a", b"content")
    other = written(tmp_path / "b", b"other")
    ahead([str(path), str(path), str(tmp_path / "." / "a"), str(other)])
    _wait()
    assert sorted(set(hashed)) == ["a", "b"]
    assert sha256(path) == hashlib.sha256(b"content").hexdigest()
    assert sha256(other) == hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize("broken", [[0], [1], [0, 1]])
def test_a_file_that_cannot_be_opened(
    tmp_path: Path, broken: list[int], monkeypatch: pytest.MonkeyPatch, hashed: list[str]
) -> None:
    """It says so when its digest is asked for, and no thread comes to grief before."""
    paths = [str(written(tmp_path / name, name.encode())) for name in "ab"]
    missing = [paths[n] for n in broken]
    for path in missing:
        os.unlink(path)
    there = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: path in missing or there(path))
    ahead(paths)
    _wait()
    for path in missing:
        with pytest.raises(FileNotFoundError):
            sha256(path)
    for path in set(paths) - set(missing):
        assert sha256(path) == hashlib.sha256(os.path.basename(path).encode()).hexdigest()


def test_a_file_that_cannot_be_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a", b"content")

    def failing(_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(digests, "_hashed", failing)
    ahead([str(path)])
    _wait()
    with pytest.raises(OSError, match="Input/output error"):
        sha256(path)


def test_a_missing_file_is_the_callers_to_explain(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        sha256(tmp_path)


def test_stops_when_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on the caller's own threads do the rest; what was begun is waited for."""
    paths = [written(tmp_path / name, name.encode()) for name in "abc"]
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []
    plain = digests._hashed

    def slowly(path: str | os.PathLike[str]) -> str:
        seen.append(os.path.basename(path))
        begun.set()
        assert go_on.wait(10)
        return plain(path)

    monkeypatch.setattr(digests, "_hashed", slowly)
    ahead([str(path) for path in paths])
    assert begun.wait(10)
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(sha256(paths[0])))
    asking.start()
    while not digests._stop.is_set():
        time.sleep(0.001)
    go_on.set()
    asking.join(10)
    _wait()
    assert found == [hashlib.sha256(b"a").hexdigest()]
    assert seen == ["a"]


def test_many_threads_may_ask(tmp_path: Path) -> None:
    paths = [written(tmp_path / str(n), os.urandom(5000)) for n in range(20)]
    ahead([str(path) for path in paths])
    found: dict[Path, str] = {}
    threads = [
        threading.Thread(target=lambda path=path: found.update({path: sha256(path)}))
        for path in paths
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_loads_nothing_heavy() -> None:
    """It is there to use the time in which the heavy things are loaded."""
    program = "import sys, diwa.weights.digests; print(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.decode().split()}
    assert not loaded & {"numpy", "torch", "msgspec", "tyro", "rich", "safetensors"}
