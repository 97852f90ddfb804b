"""Sources: files and folders, opened and read the way other programs wrote them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from diwa.errors import WeightsError
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import KINDS
from diwa.weights.pickled import PickledFile, PickledShards
from diwa.weights.source import SafetensorsFile, ShardedFolder, Source, digest, open_source
from diwa.weights.writer import FileWriter

INDEX, OLD_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
Tensors = dict[str, torch.Tensor]


def tensors(seed: int = 3) -> Tensors:
    chance = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=chance),
        "half": torch.randn(7, generator=chance).to(torch.bfloat16),
        "bytes": torch.randint(0, 255, (3,), generator=chance, dtype=torch.uint8),
        "count": torch.tensor(7),
        "none": torch.zeros(0, 3),
    }


def saved(path: Path, held: Tensors, metadata: dict[str, str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(held, path, metadata=metadata)
    return path


def holds(source: Source, expected: Tensors) -> bool:
    return source.tensors.keys() == expected.keys() and all(
        source.array(name).shape == tuple(tensor.shape)
        and source.array(name).dtype == source.tensors[name].kind.numpy()
        and source.array(name).astype(np.float64).tolist() == tensor.double().tolist()
        for name, tensor in expected.items()
    )


def refused(read: Callable[[Path], Any], path: Path, *words: str) -> None:
    with pytest.raises(WeightsError) as caught:
        read(path)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(str(path)), said
    for word in words:
        assert word in said, said


def sharded(folder: Path, metadata: dict[str, Any] | None = None, **shards: Tensors) -> Path:
    place = {}
    for shard, held in shards.items():
        saved(folder / f"{shard}.safetensors", held, {"format": "pt", "shard": shard})
        place.update(dict.fromkeys(held, f"{shard}.safetensors"))
    (folder / INDEX).write_text(json.dumps({"metadata": metadata or {}, "weight_map": place}))
    return folder


# -- one file


def test_a_file_of_the_safetensors_package(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", tensors(), {"format": "pt", "who": "ä\nb"})
    source = open_source(path)
    assert isinstance(source, SafetensorsFile)
    assert holds(source, tensors())
    assert source.metadata == {"format": "pt", "who": "ä\nb"}
    assert source.files == {"w.safetensors": path}
    assert source.aliases == {}
    assert holds(open_source(str(path)), tensors())


def test_arrays_are_not_to_be_written_to(tmp_path: Path) -> None:
    source = open_source(saved(tmp_path / "w.safetensors", tensors()))
    with pytest.raises(ValueError, match="read-only"):
        source.array("half")[0] = 0


@pytest.mark.parametrize("padding", range(8))
def test_tensors_that_are_not_aligned(tmp_path: Path, padding: int) -> None:
    text = (
        json.dumps({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}) + " " * padding
    )
    values = np.array([1.5, -2.0])
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + values.tobytes())
    assert open_source(path).array("a").tolist() == [1.5, -2.0]


def test_whatever_its_ending(tmp_path: Path) -> None:
    """Without one it knows, a file is safetensors or nothing."""
    path = saved(tmp_path / "weights", tensors())
    assert holds(open_source(path), tensors())
    pickled = tmp_path / "w.ckpt"
    torch.save(tensors(), pickled)
    assert isinstance(open_source(pickled), PickledFile)
    refused(open_source, pickled.rename(tmp_path / "w.weights"), "let its name end in .pt")


def test_a_file_without_tensors(tmp_path: Path) -> None:
    assert open_source(saved(tmp_path / "w.safetensors", {})).tensors == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer, not the weights"),
        (b"<!DOCTYPE html><html>", "a web page, not weights"),
        (b"PK\x03\x04" + b"\0" * 99, "a zip file, as torch.save writes it; let its name end"),
        (b"\x80\x02}q\0.", "a pickle; let its name end in .pkl"),
    ],
)
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=re.escape(f"{path}: {said}")):
        open_source(path)


@pytest.mark.parametrize("length", [ord("<"), 0x1F + 0x8B * 256])
def test_a_header_whose_length_looks_like_something_else(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    header = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.ljust(length)
    path.write_bytes(length.to_bytes(8, "little") + header + b"\7")
    assert open_source(path).array("w").tolist() == [7]


def test_a_pickle_with_its_ending_in_capitals(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "W.PT")
    assert open_source(tmp_path / "W.PT").array("w").tolist() == [1, 1]


def test_what_is_no_file(tmp_path: Path) -> None:
    refused(open_source, tmp_path / "none.safetensors", "no such file", "give the path")
    refused(open_source, tmp_path / "none.pt", "no such file")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    refused(open_source, tmp_path / "loop.safetensors", "can't be read (Too many levels")
    refused(open_source, tmp_path / "w" / ".." / "loop.safetensors")
    (tmp_path / "file").write_bytes(b"")
    refused(open_source, tmp_path / "file" / "w.safetensors", "can't be read (Not a directory)")
    refused(open_source, tmp_path / ("x" * 5000), "can't be read (File name too long)")


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"w.{ending}")
    refused(open_source, tmp_path / f"w.{ending}", "not a file", "give the path")
    refused(digest, tmp_path / f"w.{ending}", "not a file")


@pytest.mark.parametrize("index", [INDEX, OLD_INDEX])
def test_nor_is_one_in_a_folder(tmp_path: Path, index: str) -> None:
    os.mkfifo(tmp_path / index)
    refused(open_source, tmp_path, f"{index}: not a file")
    (tmp_path / index).unlink()
    os.mkfifo(tmp_path / "a.bin")
    (tmp_path / index).write_text('{"weight_map": {"x": "a.bin"}}')
    refused(open_source, tmp_path, "a.bin: no such file", "names it")


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", tensors())
    path.chmod(0)
    refused(open_source, path, "can't be read (Permission denied)")


# -- tied tensors


def test_what_save_model_left_out(tmp_path: Path) -> None:
    """The safetensors package notes names that it left out in the metadata."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(3, 2)
            self.head = torch.nn.Linear(2, 3, bias=False)
            self.head.weight = self.embed.weight

    path = tmp_path / "w.safetensors"
    safetensors.torch.save_model(Tied(), str(path))
    source = open_source(path)
    assert list(source.tensors) == ["embed.weight"]
    assert source.aliases == {"head.weight": "embed.weight"}


@pytest.mark.parametrize(
    ("said", "aliases"),
    [
        ('{"tied": {"b": "a"}}', {"b": "a"}),
        ('{"tied": {"b": "none"}}', {}),
        ('{"tied": {"none": "a"}}', {}),
        ('{"tied": {"b": ["a"]}}', {}),
        ('{"tied": {"b": {"a": 1}}}', {}),
        ('{"tied": {"b": null}}', {}),
        ('{"tied": {"b": 3}}', {}),
        ('{"tied": ["b", "a"]}', {}),
        ('{"tied": null}', {}),
        ("[]", {}),
        ("null", {}),
        ("{", {}),
        ("[" * 100_000, {}),
    ],
)
def test_what_a_merge_noted(tmp_path: Path, said: str, aliases: dict[str, str]) -> None:
    held = {"a": torch.ones(2), "b": torch.ones(2)}
    source = open_source(saved(tmp_path / "w.safetensors", held, {"diwa": said}))
    assert source.aliases == aliases
    assert holds(source, held)


# -- digests


def test_digests(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", tensors())
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    assert open_source(path).digest == expected
    assert open_source(path).digests == {"w.safetensors": expected}


def test_the_digest_of_several_files_is_that_of_what_sha256sum_prints(tmp_path: Path) -> None:
    folder = sharded(tmp_path, b={"x": torch.ones(2)}, a={"y": torch.ones(3)})
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    listing = subprocess.run(["sha256sum", *files], cwd=folder, capture_output=True, check=True)
    assert open_source(folder).digest == hashlib.sha256(listing.stdout).hexdigest()


def test_fingerprints_tell_sources_apart(tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{n}.safetensors", tensors(n)) for n in range(3)]
    changed = {**tensors(0), "count": torch.tensor(8)}
    paths.append(saved(tmp_path / "changed.safetensors", changed))
    renamed = {f"x{name}": tensor for name, tensor in tensors(0).items()}
    paths.append(saved(tmp_path / "renamed.safetensors", renamed))
    assert len({open_source(path).fingerprint for path in paths}) == len(paths)


def test_equal_weights_have_one_fingerprint_in_whatever_file(tmp_path: Path) -> None:
    held = tensors()
    one = saved(tmp_path / "w.safetensors", held, {"some": "text"})
    torch.save(held, tmp_path / "w.pt")
    parts = list(held.items())
    folder = sharded(tmp_path / "folder", a=dict(parts[:2]), b=dict(parts[2:]))
    found = {open_source(path).fingerprint for path in (one, tmp_path / "w.pt", folder)}
    assert len(found) == 1


# -- folders


def test_a_sharded_folder(tmp_path: Path) -> None:
    held = tensors()
    parts = list(held.items())
    folder = sharded(
        tmp_path, {"total_size": 99, "note": "n"}, a=dict(parts[:2]), b=dict(parts[2:])
    )
    (folder / "config.json").write_text("{}")
    (folder / "other.safetensors").write_bytes(b"nobody asks for it")
    source = open_source(folder)
    assert isinstance(source, ShardedFolder)
    assert holds(source, held)
    assert source.metadata == {"format": "pt", "note": "n"}
    assert source.files == {f"{n}.safetensors": folder / f"{n}.safetensors" for n in "ab"}


def test_aliases_of_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path, a={"w": torch.ones(1), "v": torch.ones(1)})
    saved(
        folder / "a.safetensors",
        {"w": torch.ones(1), "v": torch.ones(1)},
        {"diwa": '{"tied": {"v": "w"}}'},
    )
    assert open_source(folder).aliases == {"v": "w"}


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    saved(tmp_path / "x" / "model.safetensors", tensors())
    (tmp_path / "x" / ".hidden.safetensors").write_bytes(b"")
    (tmp_path / "x" / "pytorch_model.bin").write_bytes(b"the older copy")
    assert holds(open_source(tmp_path / "x"), tensors())
    (tmp_path / "y").mkdir()
    torch.save(tensors(), tmp_path / "y" / "pytorch_model.bin")
    assert holds(open_source(tmp_path / "y"), tensors())
    saved(tmp_path / "z" / "pytorch_model.bin", tensors())
    assert isinstance(open_source(tmp_path / "z"), SafetensorsFile), "by another name"


def test_an_old_sharded_folder(tmp_path: Path) -> None:
    held = {"a": torch.ones(1), "b": torch.zeros(2)}
    for name, tensor in held.items():
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{name}.bin")
    place = {name: f"pytorch_model-{name}.bin" for name in held}
    (tmp_path / OLD_INDEX).write_text(json.dumps({"weight_map": place}))
    source = open_source(tmp_path)
    assert isinstance(source, PickledShards)
    assert holds(source, held)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["a.safetensors", "b.safetensors"],
        ["x.pt"],
        [INDEX, f"x.{INDEX}"],
        ["pytorch_model.bin", OLD_INDEX],
    ],
)
def test_folders_that_are_no_one_set_of_weights(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    refused(open_source, tmp_path, "no one set of weights", "name one file")


def _place(folder: Path, **changes: Any) -> None:
    said = json.loads((folder / INDEX).read_text())
    said["weight_map"].update(changes)
    said["weight_map"] = {k: v for k, v in said["weight_map"].items() if v != "gone"}
    (folder / INDEX).write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "b.safetensors").unlink(), ["b.safetensors: no such file", "names it"]),
        (lambda f: _place(f, z="a.safetensors"), ["a.safetensors: has no tensor 'z'"]),
        (lambda f: _place(f, x="b.safetensors"), ["b.safetensors: has no tensor 'x'"]),
        (lambda f: _place(f, y="gone"), []),
        (lambda f: _place(f, y2="gone"), ["b.safetensors: holds 'y2'", "does not place there"]),
        (lambda f: _place(f, z="../a.safetensors"), ["'../a.safetensors'", "not a file beside"]),
        (lambda f: _place(f, z="/etc/passwd"), ["'/etc/passwd'", "not a file beside"]),
        (lambda f: _place(f, z=".."), ["'..'"]),
        (lambda f: _place(f, z="."), ["'.'"]),
        (lambda f: _place(f, z=""), ["''"]),
        (lambda f: _place(f, z=3), ["the shard 3"]),
        (lambda f: _place(f, z=None), ["the shard None"]),
        (lambda f: _place(f, z=["a"]), ["the shard ['a']"]),
        (lambda f: _place(f, z="a\nb"), []),
        (lambda f: _place(f, z="a\x1b[2J"), []),
        (lambda f: _place(f, z="a\0b"), []),
        (lambda f: _place(f, z="\ud800"), []),
        (lambda f: _place(f, z="x" * 5000), []),
        (lambda f: (f / INDEX).write_text("{"), ["not an index"]),
        (lambda f: (f / INDEX).write_text("[]"), ["not an index"]),
        (lambda f: (f / INDEX).write_text("{}"), ["not an index"]),
        (lambda f: (f / INDEX).write_text("null"), ["not an index"]),
        (lambda f: (f / INDEX).write_text("[" * 100_000), ["not an index"]),
        (lambda f: (f / INDEX).write_bytes(b"\xff\xfe"), ["not an index"]),
        (lambda f: (f / INDEX).write_text('{"weight_map": {}}'), ["places no tensors"]),
        (lambda f: (f / INDEX).write_text('{"weight_map": ["a"]}'), ["places no tensors"]),
        (
            lambda f: (f / "b.safetensors").write_bytes(b"12345678901"),
            ["b.safetensors: not a whole"],
        ),
        (lambda f: _loop(f / "b.safetensors"), ["b.safetensors"]),
        (lambda f: _loop(f / INDEX), ["can't be read (Too many levels"]),
        (lambda f: _folder(f / "b.safetensors"), ["b.safetensors"]),
        (lambda f: _folder(f / INDEX), ["can't be read (Is a directory)"]),
    ],
)
def test_shards_that_do_not_fit_together(
    tmp_path: Path, change: Callable[[Path], Any], words: list[str]
) -> None:
    shards = {"a": {"x": torch.ones(1)}, "b": {"y": torch.ones(2), "y2": torch.ones(2)}}
    folder = sharded(tmp_path, **shards)
    change(folder)
    refused(open_source, folder, *words)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_an_index_that_is_a_good_one_in_odd_ways(tmp_path: Path) -> None:
    folder = sharded(tmp_path, a={"x": torch.ones(1)})
    said = json.loads((folder / INDEX).read_text())
    for metadata in (None, [], "text", {"size": 3, "by": "me"}):
        (folder / INDEX).write_text(json.dumps({**said, "metadata": metadata, "more": 1}))
        by = {"by": "me"} if isinstance(metadata, dict) else {}
        assert open_source(folder).metadata == {"format": "pt", "shard": "a", **by}


# -- what it costs


def test_opening_is_light() -> None:
    """Merging safetensors must not pay for torch."""
    code = "import sys, diwa.weights.source as s; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_what_is_looked_at_is_read(tmp_path: Path) -> None:
    """A file with a hole of 4 GiB opens at once and shows its ends."""
    path = tmp_path / "w.safetensors"
    infos = {"large": TensorInfo(KINDS["F32"], (1 << 30,)), "small": TensorInfo(KINDS["U8"], (1,))}
    with FileWriter(path, infos, {}) as writer:
        writer.put("large", (1 << 30) - 1, np.ones(1, dtype=np.float32))
        writer.put("small", 0, np.full(1, 7, dtype=np.uint8))
    source = open_source(path)
    assert source.array("large")[-1] == 1
    assert source.array("large")[0] == 0
    assert source.array("small").tolist() == [7]
    path.unlink()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize(("most", "said"), [(1000, ""), (60, "beside so many others")])
def test_more_files_than_may_be_open(tmp_path: Path, most: int, said: str) -> None:
    """The limit is raised as far as the system allows, and named where that is not enough."""
    path = saved(tmp_path / "w.safetensors", {"w": torch.ones(3)})
    program = (
        "import resource, sys\n"
        "import diwa\n"
        f"opened = [diwa.open_source({str(path)!r})]\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (50, {most}))\n"
        "try:\n"
        f"    opened += [diwa.open_source({str(path)!r}) for _ in range(100)]\n"
        "except diwa.DiwaError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print(len(opened))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    told = run.stdout.decode()
    if said:
        assert told.startswith(f"{path}: can't be opened beside so many others (")
        assert told.endswith(
            "; raise the limit (ulimit -n), or merge fewer files or larger shards\n"
        )
    else:
        assert told == "101\n"
