"""A soup: computed on demand, saved with what went into it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import diwa
from diwa.errors import SpecError, StoreError, WeightsError
from diwa.soup.soup import Soup, Tried
from diwa.weights import files
from diwa.weights.member import Member
from diwa.weights.source import SafetensorsFile

Make = Callable[..., Path]

MODEL = {"backbone": "test_resnet", "size": [32, 32], "channels": 3, "classes": ["a", "b"]}


@pytest.fixture
def members(make_member: Make) -> list[Member]:
    told = [{"score": 0.5, "model": MODEL, "split": "s", "step": 9}, {"score": 0.25}, {}]
    weights = [[1.0, 2.0], [3.0, 3.0], [5.0, 10.0]]
    paths = [
        make_member(f"m{n}", about, w=values, n=[7])
        for n, (about, values) in enumerate(zip(told, weights, strict=True))
    ]
    return [Member.from_file(path) for path in paths]


def test_the_mean_of_its_members(members: list[Member]) -> None:
    soup = Soup("uniform", tuple(members))
    held = list(soup.tensors())
    assert {name: tensor.tolist() for name, tensor in held} == {"n": [7], "w": [3.0, 5.0]}
    assert dict(soup.tensors())["w"].tolist() == [3.0, 5.0], "asked again, it is computed again"


def test_reads_no_tensor_until_it_is_asked(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, name: read.append(name) or plain(self, name)

    for way in ("array", "address"):
        monkeypatch.setattr(SafetensorsFile, way, noted(getattr(SafetensorsFile, way)))
    soup = Soup("restricted", tuple(members[:1]))
    assert soup.infos.keys() == {"n", "w"}
    read.clear()  # a few bytes of each were looked at, to put the members in order
    assert next(iter(soup.arrays()))[0] == "n"
    assert set(read) == {"n", "w"}


def test_says_what_went_into_it(members: list[Member]) -> None:
    trace = (Tried("m0", 0.5, True), Tried("m1", 0.25, False))
    about = Soup("restricted", tuple(members[:2]), trace).about
    assert about == {
        "model": MODEL,
        "soup": {
            "version": diwa.__version__,
            "method": "restricted",
            "blending": "uniform",
            "settings": {},
            "members": about["soup"]["members"],
            "trace": [["m0", 0.5, True], ["m1", 0.25, False]],
        },
    }
    # In the order in which they are added up, which is not that of the arguments.
    assert sorted(about["soup"]["members"], key=lambda member: member["name"]) == [
        {"name": "m0", "score": 0.5, "coefficient": 0.5},
        {"name": "m1", "score": 0.25, "coefficient": 0.5},
    ]


def test_a_saved_soup_is_a_file_like_any_other(members: list[Member], tmp_path: Path) -> None:
    soup = Soup("uniform", tuple(members))
    path = soup.save(str(tmp_path / "deep" / "soup.safetensors"))
    assert path == tmp_path / "deep" / "soup.safetensors"
    again = Member.from_file(path)
    said = copy.deepcopy(dict(again.about))
    for member in said["soup"]["members"]:
        assert member.pop("sha256") == files.digest(
            path.parents[1] / f"{member['name']}.safetensors"
        )
    assert said == soup.about
    # Neither the first member's score nor its split is the soup's.
    assert (again.score, again.split) == (None, None)
    held = sorted(soup.tensors(), key=lambda pair: pair[0])
    for (name, kept), (also, tensor) in zip(held, again.tensors(), strict=True):
        assert name == also
        assert torch.equal(kept, tensor)


def test_saves_the_same_bytes_each_time(members: list[Member], tmp_path: Path) -> None:
    soup = Soup("uniform", tuple(members), (Tried("m0", 1 / 3, True),))
    saved = {soup.save(tmp_path / f"{turn}.safetensors").read_bytes() for turn in range(10)}
    assert len(saved) == 1


def test_never_replaces_one_of_its_members(members: list[Member]) -> None:
    before = members[0].path.read_bytes()
    with pytest.raises(WeightsError, match=r"m0\.safetensors: is one of the members"):
        Soup("uniform", tuple(members)).save(members[0].path)
    assert members[0].path.read_bytes() == before


def test_a_place_that_cannot_be_written(members: list[Member], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="can't be written"):
        Soup("uniform", tuple(members)).save(tmp_path / "file" / "soup.safetensors")


def test_a_soup_that_cannot_be_computed_leaves_the_old_file(
    make_member: Make, tmp_path: Path
) -> None:
    good = Member.from_file(make_member("good", w=[1.0]))
    bad = Member.from_file(make_member("bad", w=[float("nan")]))
    path = Soup("uniform", (good,)).save(tmp_path / "out" / "soup.safetensors")
    before = path.read_bytes()
    with pytest.raises(WeightsError, match=r"bad\.safetensors"):
        Soup("uniform", (good, bad)).save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_what_python_may_get_wrong(members: list[Member], tmp_path: Path) -> None:
    path = str(members[0].path)
    for given, said in [
        ([{"w": torch.ones(1)}] * 2, "a dict is no file of weights; give paths or members; "),
        (path, f"{path}: a single member; give a list of two or more"),
        (members[0], "a single member; give a list of two or more"),
    ]:
        with pytest.raises(WeightsError) as caught:
            diwa.merge(given)  # pyright: ignore[reportArgumentType]
        assert said in str(caught.value)
    for pairs in [(path, "w"), [path], [(path, "w", "n")], [(path, 5)]]:
        with pytest.raises(SpecError, match=r"give a list of pairs: \[\(file, pattern\), \.\.\.\]"):
            diwa.merge(members, take_from=pairs)  # pyright: ignore[reportArgumentType]
    with pytest.raises(WeightsError, match="shard size '2GB'; give a number of bytes"):
        diwa.merge(members).save(tmp_path / "x", shard_size="2GB")  # pyright: ignore
    with pytest.raises(WeightsError, match="a int is no running mean"):
        diwa.RunningMean().merge(3)  # pyright: ignore[reportArgumentType]
