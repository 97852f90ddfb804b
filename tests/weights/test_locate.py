"""From names to weights: patterns, folders, stores, links."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diwa.errors import WeightsError
from diwa.weights import locate as module
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import KINDS
from diwa.weights.locate import Located, locate
from diwa.weights.writer import FileWriter


def written(path: Path, value: float = 1.0, name: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileWriter(path, {name: TensorInfo(KINDS["F32"], (1,))}, {}) as writer:
        writer.put(name, 0, np.array([value], dtype=np.float32))
    return path


def values(found: list[Located]) -> list[float]:
    return [one.source.array("w").item() for one in found]


def names(found: list[Located]) -> list[str]:
    return [one.name for one in found]


def refused(texts: list[str | Path], *words: str, **how: Any) -> str:
    with pytest.raises(WeightsError) as caught:
        locate(texts, **how)
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert word in said, said
    return said


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- what is found


def test_files_in_the_order_they_are_named(here: Path) -> None:
    written(here / "b.safetensors", 2)
    written(here / "a.safetensors", 1)
    torch.save({"w": torch.tensor([3.0])}, here / "c.pt")
    found = locate(["c.pt", here / "b.safetensors", "a.safetensors"])
    assert values(found) == [3, 2, 1]
    assert names(found) == ["c.pt", "b.safetensors", "a.safetensors"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.safetensors", [1, 2]),
        ("?.safetensors", [1]),
        ("[ab]*.safetensors", [1, 2]),
        ("sub/*", [3]),
        ("**/*.safetensors", [1, 2, 3, 4]),
    ],
)
def test_patterns_are_sorted(here: Path, pattern: str, expected: list[float]) -> None:
    for number, name in enumerate(["a", "b2", "sub/c", "sub2/d"], 1):
        written(here / f"{name}.safetensors", number)
    written(here / ".hidden.safetensors", 9)
    assert values(locate([pattern])) == expected
    assert values(locate([here / pattern])) == expected


def test_a_file_whose_name_is_a_pattern(here: Path) -> None:
    written(here / "a[1].safetensors", 1)
    written(here / "a1.safetensors", 2)
    assert values(locate(["a[1].safetensors"])) == [1]


def test_folders(here: Path) -> None:
    written(here / "one" / "model.safetensors", 1)
    (here / "one" / "config.json").write_text("{}")
    written(here / "two" / "model.safetensors", 2)
    found = locate(["one", "two/", "."[:0] or str(here / "one" / ".." / "three")][:2])
    assert values(found) == [1, 2]
    assert names(found) == ["one", "two"]
    assert values(locate(["*"])) == [1, 2]


def test_nothing(here: Path) -> None:
    refused([], "no weights given; name ")
    refused(["no*thing"], "no*thing: no file matches; ")
    refused(["none.safetensors"], "none.safetensors: no such file; ")


def test_one_bad_file_among_good_ones_is_named(here: Path) -> None:
    written(here / "a.safetensors")
    (here / "b.safetensors").write_bytes(b"12345678")
    refused(["*.safetensors"], "b.safetensors: not a")


def test_a_loop_of_links(here: Path) -> None:
    (here / "loop.safetensors").symlink_to("loop.safetensors")
    refused(["loop.safetensors"], "loop.safetensors: can't be read (Too many levels")
    refused(["*.safetensors"], "loop.safetensors: can't be read (Too many levels")
    (here / "ring").symlink_to("ring")
    refused(["ring"], "ring: can't be read")


def test_a_folder_that_contains_itself(here: Path) -> None:
    written(here / "sub" / "a.safetensors")
    (here / "sub" / "again").symlink_to("../sub")
    refused(["**/*.safetensors"], "is the same file as")


# -- the same twice


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a.safetensors", "a.safetensors"], ["a.safetensors: is the same file as a.safetensors"]),
        (["a.safetensors", "./sub/../a.safetensors"], ["sub/../a.safetensors: is the same"]),
        (["a.safetensors", "*.safetensors"], ["(found by a.safetensors and *.safetensors)"]),
        (["a.safetensors", "link.safetensors"], ["link.safetensors: is the same file as a."]),
        (["a.safetensors", "hard.safetensors"], ["hard.safetensors: is the same file as a."]),
        (["sub", "sub/model.safetensors"], ["sub/model.safetensors: is the same"]),
        (["sub", "linked"], ["linked/model.safetensors: is the same file as sub/model.s"]),
    ],
)
def test_the_same_file_twice(here: Path, texts: list[str | Path], words: list[str]) -> None:
    written(here / "a.safetensors")
    written(here / "sub" / "model.safetensors")
    (here / "linked").symlink_to("sub")
    if "link." in texts[1].__str__():
        (here / "link.safetensors").symlink_to("a.safetensors")
    if "hard." in texts[1].__str__():
        (here / "hard.safetensors").hardlink_to(here / "a.safetensors")
    refused(texts, *words, "name each once")


def test_a_shard_of_a_folder_that_is_named_too(here: Path) -> None:
    folder = here / "model"
    for number in (1, 2):
        written(folder / f"model-{number}.safetensors", number, f"w{number}")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w1": "model-1.safetensors", "w2": "model-2.safetensors"}}'
    )
    assert names(locate(["model"])) == ["model"]
    refused(["model", "model/model-2.safetensors"], "is the same file as")


def test_a_copy_is_another_file(here: Path) -> None:
    written(here / "a.safetensors")
    (here / "b.safetensors").write_bytes((here / "a.safetensors").read_bytes())
    assert len(locate(["a.safetensors", "b.safetensors"])) == 2


# -- names


def test_names_are_as_short_as_they_can_be(here: Path) -> None:
    for place in ("x/a", "y/a", "y/z/a", "b"):
        written(here / f"{place}.safetensors")
    found = locate(["x/a.safetensors", "y/a.safetensors", "b.safetensors"])
    assert names(found) == ["x/a.safetensors", "y/a.safetensors", "b.safetensors"]
    found = locate(["x/a.safetensors", "b.safetensors"])
    assert names(found) == ["a.safetensors", "b.safetensors"]
    (here / "a.safetensors").write_bytes((here / "b.safetensors").read_bytes())
    found = locate(["a.safetensors", "y/a.safetensors"])
    assert names(found) == [f"{here.name}/a.safetensors", "y/a.safetensors"]


def test_names_of_many_are_all_different(here: Path) -> None:
    for one in "ab":
        for two in "ab":
            for three in "ab":
                written(here / one / two / f"{three}.safetensors")
    found = names(locate(["**/*.safetensors"]))
    assert len(set(found)) == len(found) == 8
    assert all(name.count("/") == 2 for name in found)


# -- folders of another kind


def test_folders_that_somebody_else_knows(here: Path) -> None:
    for key in ("k1", "k2"):
        written(here / "store" / key / "w.safetensors", float(key[1]))
    written(here / "plain" / "model.safetensors", 5)
    asked = []

    def folders(folder: Path) -> list[tuple[Path, Path]] | None:
        asked.append(folder.name)
        if folder.name != "store":
            return None
        return [(one, one / "w.safetensors") for one in sorted(folder.iterdir())]

    found = locate(["store", "plain", "plain/model.safetensors"][:2], folders=folders)
    assert values(found) == [1, 2, 5]
    assert names(found) == ["k1", "k2", "plain"]
    assert asked == ["store", "plain"]
    refused(
        ["store", "store/k2/w.safetensors"],
        "store/k2/w.safetensors: is the same file as store/k2/w.safetensors",
        folders=folders,
    )


# -- the hub


def test_addresses_on_the_hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "hf://some/model": written(here / "cache" / "1" / "model.safetensors", 1).parent,
        "hf://other/model": written(here / "cache" / "2" / "model.safetensors", 2).parent,
        "hf://a/b@v1/x.safetensors": written(here / "cache" / "3" / "x.safetensors", 3),
    }
    monkeypatch.setattr(module, "fetch", places.__getitem__)
    written(here / "some" / "model", 4).rename(here / "some" / "x.safetensors")
    found = locate([*places, "some/x.safetensors"])
    assert values(found) == [1, 2, 3, 4]
    assert names(found) == ["some/model", "other/model", "b@v1/x.safetensors", "some/x.safetensors"]
    refused(["hf://some/model", "hf://some/model"], "is the same file as")


def test_it_is_light() -> None:
    """To merge safetensors in an instant, neither torch nor the hub's package may be imported."""
    code = (
        "import sys, diwa.weights.locate; "
        "sys.exit(bool({'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_arguments_may_be_anything_in_order(make_member: Callable[..., Path]) -> None:
    paths = (make_member("a", w=[1.0]), make_member("b", w=[2.0]))
    assert values(locate(paths)) == [1, 2]
