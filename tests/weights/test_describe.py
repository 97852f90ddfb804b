"""What a source holds, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import diwa
from diwa.errors import WeightsError
from diwa.weights.describe import Description, TensorDescription, describe
from diwa.weights.source import open_source

Make = Callable[..., Path]


def test_a_file(make_member: Make) -> None:
    about = {"score": 0.5, "model": {"backbone": "b"}}
    path = make_member(
        "m", about, w=np.ones((2, 3), "f4"), b=torch.ones(4).half(), n=[1, 2], s=torch.ones(())
    )
    told = describe(open_source(path))
    assert told.path == str(path)
    assert told.files == {"m.safetensors": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert {one.name: one for one in told.tensors} == {
        "w": TensorDescription(name="w", kind="F32", shape=(2, 3), bytes=24),
        "b": TensorDescription(name="b", kind="F16", shape=(4,), bytes=8),
        "n": TensorDescription(name="n", kind="I64", shape=(2,), bytes=16),
        "s": TensorDescription(name="s", kind="F32", shape=(), bytes=4),
    }
    # Wide numbers come first in the file.
    assert [one.name for one in told.tensors] == ["n", "s", "w", "b"]
    assert told.kinds == {"I64": 1, "F32": 2, "F16": 1}
    assert (told.parameters, told.bytes) == (13, 52)
    assert told.about == about
    assert told.metadata == {"format": "pt"}
    assert told.aliases == {}


def test_a_folder_of_shards(tmp_path: Path) -> None:
    place = {}
    for number, name in enumerate(("a", "b"), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        metadata = {"format": "pt", "own": name}
        safetensors.torch.save_file({name: torch.ones(number)}, tmp_path / file, metadata)
        place[name] = file
    index = {"metadata": {"total_size": 12, "from": "x"}, "weight_map": place}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    told = describe(open_source(tmp_path))
    assert told.path == str(tmp_path)
    assert told.files == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in place.values()
    }
    assert [(one.name, one.shape) for one in told.tensors] == [("a", (1,)), ("b", (2,))]
    assert told.metadata == {"from": "x", "format": "pt"}


def test_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"epoch": 3, "state_dict": {"module.w": torch.ones(2)}}, path)
    told = describe(open_source(path))
    assert [one.name for one in told.tensors] == ["w"]
    assert told.metadata["epoch"] == "3"
    assert told.files == {"m.pt": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_tied_numbers_count_once(tmp_path: Path) -> None:
    shared = torch.ones(5)
    path = tmp_path / "m.pt"
    torch.save({"embed": shared, "head": shared, "w": torch.ones(2)}, path)
    merged = diwa.uniform([diwa.Member.from_file(path)]).save(tmp_path / "m.safetensors")
    for one in (path, merged):
        told = describe(open_source(one))
        assert told.aliases == {"head": "embed"}
        assert told.parameters == 7
        assert len(told.tensors) == 3


def test_a_copy_that_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"embed": torch.ones(5)}, path, {"head": "embed"})
    told = describe(open_source(path))
    assert told.aliases == {"head": "embed"}
    assert told.parameters == 5


def test_a_merge(make_member: Make, tmp_path: Path) -> None:
    paths = [make_member(name, w=[1.0]) for name in "ab"]
    told = describe(open_source(diwa.merge(paths).save(tmp_path / "m.safetensors")))
    assert told.about["soup"]["method"] == "uniform"
    assert [one["coefficient"] for one in told.about["soup"]["members"]] == [0.5, 0.5]


def test_is_json_and_back(make_member: Make) -> None:
    told = describe(open_source(make_member("m", {"score": 0.5}, w=np.ones((2, 3)))))
    assert json.loads(told.to_json())["tensors"] == [
        {"name": "w", "kind": "F64", "shape": [2, 3], "bytes": 48}
    ]
    assert Description.from_json(told.to_json()) == told


@pytest.mark.parametrize("about", ["no JSON", "[1]", '"text"'])
def test_what_it_says_of_itself_must_be_an_object(tmp_path: Path, about: str) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"w": torch.ones(1)}, path, {"diwa": about})
    with pytest.raises(WeightsError, match=r"m\.safetensors: its metadata is not"):
        describe(open_source(path))


def test_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({}, path)
    told = describe(open_source(path))
    assert (told.tensors, told.parameters, told.bytes, told.kinds) == ([], 0, 0, {})
