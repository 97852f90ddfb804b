"""Writing safetensors piece by piece, in any order, from several threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from diwa.errors import WeightsError
from diwa.weights import writer as module
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import KINDS, kind_of
from diwa.weights.source import open_source
from diwa.weights.writer import FileWriter


def infos(arrays: dict[str, NDArray]) -> dict[str, TensorInfo]:
    found = {}
    for name, array in arrays.items():
        kind = kind_of(array.dtype)
        assert kind is not None
        found[name] = TensorInfo(kind, array.shape)
    return found


def every_kind() -> dict[str, NDArray]:
    chance = np.random.default_rng(0)
    return {
        f"of {code}": chance.integers(0, 2, size=(3, 5)).astype(kind.numpy())
        for code, kind in KINDS.items()
    }


def test_every_kind_as_the_safetensors_package_reads_it(tmp_path: Path) -> None:
    arrays = every_kind()
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos(arrays), {"format": "pt", "é": "ü\n"}) as writer:
        for name, array in arrays.items():
            writer.put(name, 0, array)
    held = safetensors.torch.load_file(path)
    assert held.keys() == arrays.keys()
    for name, tensor in held.items():
        code = name.removeprefix("of ")
        assert tensor.dtype == getattr(torch, KINDS[code].torch)
        assert tensor.float().tolist() == arrays[name].astype(float).tolist()
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "é": "ü\n"}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_pieces_in_any_order_from_several_threads(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=5))
    codes = data.draw(
        st.lists(st.sampled_from(["F64", "F32", "BF16", "I8"]), min_size=5, max_size=5)
    )
    chance = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = {
        f"t{n}": chance.integers(-99, 99, size).astype(KINDS[codes[n]].numpy())
        for n, size in enumerate(sizes)
    }
    step = data.draw(st.integers(1, 100))
    pieces = [(n, at) for n, array in arrays.items() for at in range(0, array.size, step)]
    path = tmp_path_factory.mktemp("w") / "m.safetensors"
    with FileWriter(path, infos(arrays), {}) as writer, ThreadPoolExecutor(4) as pool:
        shuffled = data.draw(st.permutations(pieces))
        done = [pool.submit(writer.put, n, at, arrays[n][at : at + step]) for n, at in shuffled]
        for one in done:
            one.result()
    source = open_source(path)
    assert {n: source.array(n).tobytes() for n in source.tensors} == {
        n: array.tobytes() for n, array in arrays.items()
    }


def test_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    arrays = every_kind()
    saved = []
    for turn, names in enumerate((list(arrays), list(arrays)[::-1])):
        path = tmp_path / str(turn)
        given = {name: infos(arrays)[name] for name in names}
        metadata = dict(sorted({"a": "1", "b": "2"}.items(), reverse=bool(turn)))
        with FileWriter(path, given, metadata) as writer:
            for name in names[::-1]:
                writer.put(name, 0, arrays[name])
        saved.append(path.read_bytes())
    assert saved[0] == saved[1]


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    arrays = {f"{'x' * n}{code}": np.ones(3, kind.numpy())
              for n, (code, kind) in enumerate(KINDS.items())}  # fmt: skip
    writer = FileWriter(tmp_path / "m", infos(arrays), {"odd": "lengths"})
    for name, array in arrays.items():
        assert writer._header.start(name) % array.itemsize == 0


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1, 1), (2, 3, 4)])
def test_odd_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype=np.float32)
    path = tmp_path / "m.safetensors"
    # Also as the last tensor, of which nothing may ever be written.
    with FileWriter(path, infos({"a": np.ones(2), "z": array}), {}) as writer:
        writer.put("a", 0, np.ones(2))
        writer.put("z", 0, array)
    assert safetensors.numpy.load_file(path)["z"].shape == shape
    assert safetensors.numpy.load_file(path)["z"].tolist() == array.tolist()


def test_no_tensors_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with FileWriter(path, {}, {"a": "b"}):
        pass
    with safetensors.safe_open(path, "np") as file:
        assert (list(file.keys()), file.metadata()) == ([], {"a": "b"})


def test_arrays_that_lie_in_memory_in_another_way(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    held = {"turned": array.T, "every other": array[:, ::2], "backwards": array[::-1]}
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos(held), {}) as writer:
        for name, one in held.items():
            writer.put(name, 0, one)
    source = open_source(path)
    for name, one in held.items():
        assert source.array(name).tolist() == one.tolist()


def test_what_is_never_written_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\xff" * 10_000)  # what was there before does not shine through
    with FileWriter(path, infos({"w": np.ones(4)}), {}) as writer:
        writer.put("w", 1, np.array([5.0], np.float64))
    assert open_source(path).array("w").tolist() == [0, 5, 0, 0]


@pytest.fixture(params=["without a name", "with a name"])
def _while_written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to write, for not every file system can do the first."""
    if request.param == "with a name":
        monkeypatch.setattr(module, "_NAMELESS", 0)


@pytest.mark.usefixtures("_while_written")
def test_until_the_end_it_is_no_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos({"w": np.ones(4)}), {}) as writer:
        writer.put("w", 0, np.ones(4))
        with pytest.raises(WeightsError, match=r"not a whole safetensors file|no such file"):
            open_source(path)
    assert open_source(path).array("w").tolist() == [1, 1, 1, 1]
    assert path.stat().st_mode & 0o777 == _mode_of_a_new_file(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("_while_written")
def test_an_error_on_the_way_leaves_no_header(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(KeyError), FileWriter(path, infos({"w": np.ones(4)}), {}) as writer:
        writer.put("v", 0, np.ones(4))
    with pytest.raises(WeightsError, match=r"not a whole safetensors file|no such file"):
        open_source(path)
    assert writer._file == -1


@pytest.mark.usefixtures("_while_written")
def test_what_was_there_before_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for number in (1.0, 2.0):
        with FileWriter(path, infos({"w": np.ones(1)}), {}) as writer:
            writer.put("w", 0, np.array([number]))
        assert open_source(path).array("w").tolist() == [number]


def test_a_kill_leaves_nothing(tmp_path: Path) -> None:
    if not _is_nameless(tmp_path):
        pytest.skip("this file system names a file at once")
    code = (
        "import os, pathlib, signal, sys, numpy as np;"
        "from diwa.weights.header import TensorInfo; from diwa.weights.kinds import KINDS;"
        "from diwa.weights.writer import FileWriter;"
        "info = {'w': TensorInfo(KINDS['F64'], (1000,))};"
        "writer = FileWriter(pathlib.Path(sys.argv[1]), info, {}).__enter__();"
        "writer.put('w', 0, np.ones(500)); print('half', flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "m.safetensors")]
    killed = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "half\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_while_written")
def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "none" / "m.safetensors", {}, {})
    with pytest.raises(FileNotFoundError), writer:
        pass


def _is_nameless(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_RDWR | module._NAMELESS))
    except OSError:
        return False
    return True


def _mode_of_a_new_file(folder: Path) -> int:
    new = folder / "new"
    new.touch()
    mode = new.stat().st_mode & 0o777
    new.unlink()
    return mode


# -- metadata that is known at the end


def test_describes_itself_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos({"w": np.ones(2)}), {"sha": "0" * 64}) as writer:
        writer.put("w", 0, np.ones(2))
        writer.describe({"sha": "abcd" * 16})
    source = open_source(path)
    assert source.metadata == {"sha": "abcd" * 16}
    assert source.array("w").tolist() == [1, 1]


def test_a_description_of_another_length_is_a_mistake_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos({"w": np.ones(2)}), {"sha": "0" * 64}) as writer:
        writer.put("w", 0, np.ones(2))
        with pytest.raises(AssertionError, match="tensors would have to move"):
            writer.describe({"sha": "abcd" * 19})
    assert open_source(path).metadata == {"sha": "0" * 64}


def test_numbers_of_another_kind_are_a_mistake_of_ours(tmp_path: Path) -> None:
    given = infos({"w": np.ones(2)})
    with FileWriter(tmp_path / "m", given, {}) as writer, pytest.raises(AssertionError):
        writer.put("w", 0, np.ones(2, dtype=np.float32))


# -- what the system does with it


def test_large_tensors_go_in_several_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 64)
    sizes: list[int] = []
    plain = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda f, c, at: sizes.append(len(c)) or plain(f, c, at))
    array = np.arange(1000.0)
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos({"w": array}), {}) as writer:
        writer.put("w", 0, array)
    assert max(sizes) == 64
    assert open_source(path).array("w").tolist() == array.tolist()


def test_a_system_that_writes_less_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda f, c, at: plain(f, c[: max(1, len(c) // 3)], at))
    array = np.arange(100.0)
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos({"w": array}), {"a": "b"}) as writer:
        writer.put("w", 50, array[50:])
        writer.put("w", 0, array[:50])
    assert safetensors.numpy.load_file(path)["w"].tolist() == array.tolist()


def test_a_system_that_cannot_write_at_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pwrite")
    array = np.arange(3000.0)
    path = tmp_path / "m.safetensors"
    with FileWriter(path, infos({"w": array}), {}) as writer, ThreadPoolExecutor(4) as pool:
        for at in range(0, 3000, 7):
            pool.submit(writer.put, "w", at, array[at : at + 7])
    assert open_source(path).array("w").tolist() == array.tolist()


def test_a_full_disk_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    path = tmp_path / "m.safetensors"
    with (
        pytest.raises(OSError, match="No space left"),
        FileWriter(path, infos({"w": np.ones(2)}), {}) as writer,
    ):
        writer.put("w", 0, np.ones(2))
    assert writer._file == -1
    # Also when only the header finds no room.
    with (
        pytest.raises(OSError, match="No space left"),
        FileWriter(path, infos({"w": np.ones(2)}), {}) as writer,
    ):
        pass
    assert writer._file == -1


def test_no_file_stays_open_if_it_cannot_be_made_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("open files can't be counted here")

    def too_large(*_: Any) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "ftruncate", too_large)
    before = len(os.listdir("/proc/self/fd"))
    writer = FileWriter(tmp_path / "m", infos({"w": np.ones(2)}), {})
    with pytest.raises(OSError, match="File too large"), writer:
        pass
    assert len(os.listdir("/proc/self/fd")) == before
