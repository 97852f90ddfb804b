"""What a merge writes: the same bytes each time, for everybody to load, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diwa
from diwa.errors import DiwaError, StoreError, WeightsError
from diwa.soup import engine
from diwa.weights.source import METADATA_KEY, open_source
from diwa.weights.writer import FileWriter

Make = Callable[..., Path]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def alone(path: Path) -> diwa.Soup:
    return diwa.uniform([diwa.Member.from_file(path)])


def manifest(path: Path) -> dict[str, Any]:
    return json.loads(open_source(path).metadata[METADATA_KEY])


def sharded(folder: Path, *shards: Mapping[str, torch.Tensor], **beside: str) -> Path:
    """A folder as transformers writes it."""
    folder.mkdir(parents=True)
    place = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors.torch.save_file(dict(tensors), folder / name, {"format": "pt"})
        place.update(dict.fromkeys(tensors, name))
    index = {"metadata": {"total_size": 0}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, text in beside.items():
        (folder / name.replace("_json", ".json")).write_text(text)
    return folder


@pytest.fixture
def three(make_member: Make) -> list[Path]:
    chance = np.random.default_rng(0)
    return [
        make_member(
            f"m{n}",
            conv=chance.normal(size=(40, 30)),
            half=torch.from_numpy(chance.normal(size=50)).half(),
            scale=chance.normal(),
            count=[n],
            none=torch.zeros(0, 3),
        )
        for n in range(3)
    ]


# -- the same bytes


def test_the_same_bytes_each_time_and_in_any_order(three: list[Path], tmp_path: Path) -> None:
    """But for the integers that differ, which are the first's."""
    saved = set()
    for order in [*itertools.permutations(three), *[three] * 3]:
        soup = diwa.merge(order, skip="count", take_from=[(three[0], "count")])
        saved.add(soup.save(tmp_path / "out" / "soup.safetensors").read_bytes())
    assert len(saved) == 1


def test_the_same_bytes_with_weights_that_go_along(three: list[Path], tmp_path: Path) -> None:
    weights = (0.5, 0.3, 0.2)
    saved = set()
    for order in itertools.permutations(range(3)):
        soup = diwa.merge(
            [three[n] for n in order],
            method="weighted",
            weights=[weights[n] for n in order],
            take_from=[(three[0], "count")],
        )
        saved.add(soup.save(tmp_path / "out.safetensors").read_bytes())
    assert len(saved) == 1


def test_the_same_bytes_with_statistics_that_go_along(
    three: list[Path], make_member: Make, tmp_path: Path
) -> None:
    names = [name for name in open_source(three[0]).tensors if name != "count"]
    shapes = open_source(three[0]).tensors
    files = [
        str(make_member(f"f{n}", **{k: torch.full(shapes[k].shape, n + 1.0) for k in names}))
        for n in range(3)
    ]
    saved = set()
    for order in itertools.permutations(range(3)):
        soup = diwa.merge(
            [three[n] for n in order],
            method="fisher",
            statistics_files=[files[n] for n in order],
            take_from=[(three[0], "count")],
        )
        saved.add(soup.save(tmp_path / "out.safetensors").read_bytes())
    assert len(saved) == 1


def test_the_same_bytes_of_members_with_the_same_content(make_member: Make, tmp_path: Path) -> None:
    alike = [make_member(name, w=[1.0, 2.0]) for name in ("b", "a", "c")]
    other = make_member("d", w=[5.0, 6.0])
    saved = {
        diwa.merge(order).save(tmp_path / "out.safetensors").read_bytes()
        for order in itertools.permutations([*alike, other])
    }
    assert len(saved) == 1


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_folder_of_shards_has_the_same_bytes_too(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    limit = data.draw(st.integers(1, 400))
    order = data.draw(st.permutations(range(3)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = []
        for n in range(3):
            held = {f"t{k}": torch.arange(size) * float(n) for k, size in enumerate(sizes)}
            paths.append(folder / f"m{n}.safetensors")
            safetensors.torch.save_file(held, paths[-1])
        one = diwa.merge(paths).save(folder / "one", shard_size=limit)
        two = diwa.merge([paths[n] for n in order]).save(folder / "two", shard_size=limit)
        assert names(one) == names(two)
        for file in names(one):
            assert (one / file).read_bytes() == (two / file).read_bytes()
        for path in one.glob("*.safetensors"):
            held = safetensors.torch.load_file(path)
            assert sum(4 * tensor.numel() for tensor in held.values()) <= limit or len(held) == 1
        whole = {n: array.tolist() for n, array in diwa.merge(paths).arrays()}
        again = open_source(one)
        assert {n: again.array(n).tolist() for n in again.tensors} == whole


# -- the manifest


def test_the_manifest(three: list[Path], make_member: Make, tmp_path: Path) -> None:
    head = make_member("head", conv=np.ones((40, 30)))
    base = make_member("base", conv=np.zeros((40, 30)))
    soup = diwa.merge(
        three, method="arithmetic", scale=0.5, base=base, take_from=[(head, "conv")], dtype="bf16"
    )
    path = soup.save(tmp_path / "out.safetensors")
    said = manifest(path)["soup"]
    sha = {one.stem: hashlib.sha256(one.read_bytes()).hexdigest() for one in [*three, head, base]}
    assert said["version"] == diwa.__version__
    assert (said["method"], said["blending"]) == ("arithmetic", "arithmetic")
    assert said["settings"] == {"scale": 0.5}
    assert {one["name"]: one["sha256"] for one in said["members"]} == {
        f"m{n}": sha[f"m{n}"] for n in range(3)
    }
    assert said["base"] == {"name": "base", "sha256": sha["base"]}
    assert said["taken"] == [{"name": "head", "sha256": sha["head"], "pattern": "conv"}]
    assert said["dtype"] == "bf16"
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"


def test_the_manifest_of_a_weighted_merge(three: list[Path], tmp_path: Path) -> None:
    soup = diwa.merge(three, method="weighted", weights=(1, 2, 5))
    said = manifest(soup.save(tmp_path / "out.safetensors"))["soup"]
    shares = {one["name"]: one["coefficient"] for one in said["members"]}
    assert shares == {"m0": 0.125, "m1": 0.25, "m2": 0.625}


def test_the_manifest_tells_the_statistics(three: list[Path], make_member: Make) -> None:
    files = [make_member(f"f{n}", conv=np.full((40, 30), n + 1.0)) for n in range(3)]
    soup = diwa.merge(
        three, method="fisher", only="conv", statistics_files=[str(path) for path in files]
    )
    said = manifest(soup.save(three[0].with_name("out.safetensors")))["soup"]
    for member, statistics in zip(said["members"], said["statistics"], strict=True):
        path = files[int(member["name"].removeprefix("m"))]
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        assert statistics == {"name": path.stem, "sha256": sha}
    # Where the files lie says nothing, and would be other bytes on another machine.
    assert said["settings"] == {"floor": 1e-6}


def test_the_digest_of_a_folder_is_that_of_its_listing(tmp_path: Path) -> None:
    folders = [
        sharded(tmp_path / n, {"a": torch.ones(3)}, {"b": torch.ones(2) * k})
        for k, n in enumerate(("one", "two"))
    ]
    said = manifest(diwa.merge(folders).save(tmp_path / "out.safetensors"))["soup"]
    for one in said["members"]:
        folder = tmp_path / one["name"]
        listing = "".join(
            f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
            for name in names(folder)
            if name.endswith(".safetensors")
        )
        assert one["sha256"] == hashlib.sha256(listing.encode()).hexdigest()


def test_a_soup_of_soups_says_what_its_members_were(three: list[Path], tmp_path: Path) -> None:
    inner = diwa.merge(three[:2]).save(tmp_path / "inner.safetensors")
    outer = diwa.merge([inner, three[2]]).save(tmp_path / "outer.safetensors")
    digests = {one["name"]: one["sha256"] for one in manifest(outer)["soup"]["members"]}
    assert digests["inner"] == hashlib.sha256(inner.read_bytes()).hexdigest()


# -- shards and what lies beside


def test_shards_and_their_index(three: list[Path], tmp_path: Path) -> None:
    out = diwa.merge(three).save(tmp_path / "out", shard_size=1000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert count > 1
    expected = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    assert files == expected
    assert names(out) == [*files, "model.safetensors.index.json"]
    whole: dict[str, torch.Tensor] = {}
    for file in files:
        held = safetensors.torch.load_file(out / file)
        assert {name for name, where in index["weight_map"].items() if where == file} == set(held)
        whole.update(held)
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
    assert index["metadata"]["total_size"] == size
    for name, array in diwa.merge(three).arrays():
        assert whole[name].numpy().tobytes() == array.tobytes()
    assert manifest(out)["soup"]["method"] == "uniform"


def test_one_file_in_a_folder_has_no_index(three: list[Path], tmp_path: Path) -> None:
    for size in (None, 10**9):
        out = diwa.merge(three).save(tmp_path / "out", shard_size=size)
        assert names(out) == ["model.safetensors"]


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(make_member: Make, tmp_path: Path) -> None:
    path = make_member("m", a=np.ones(100), b=[1.0], c=[1.0])
    out = alone(path).save(tmp_path / "out", shard_size=10)
    held = [set(safetensors.torch.load_file(file)) for file in sorted(out.glob("*.safetensors"))]
    assert held == [{"a"}, {"b", "c"}]


def _kept(folder: Path) -> dict[str, str]:
    return {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.suffix not in (".safetensors",) and not path.name.endswith(".index.json")
    }


@pytest.mark.parametrize("kind", ["sharded folder", "folder with one file", "file", "bin"])
def test_what_lies_beside_the_firsts_weights_is_kept(tmp_path: Path, kind: str) -> None:
    members = []
    for n in range(2):
        folder = tmp_path / f"m{n}"
        tensors = {"a": torch.ones(3) * n, "b": torch.ones(2)}
        if kind == "sharded folder":
            sharded(folder, {"a": tensors["a"]}, {"b": tensors["b"]})
        else:
            folder.mkdir()
            if kind == "bin":
                torch.save(tensors, folder / "pytorch_model.bin")
            else:
                safetensors.torch.save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(f'{{"of": {n}}}')
        (folder / "tokenizer.json").write_text("{}")
        (folder / "vocab.txt").write_text("a\nb\n")
        (folder / ".hidden").write_text("x")
        for left in ("old.pt", "old.h5", "tf_model.msgpack", "other.bin.index.json"):
            if kind == "sharded folder":
                (folder / left).write_text("x")
        (folder / "sub").mkdir()
        members.append(folder / "model.safetensors" if kind == "file" else folder)
    out = diwa.merge(members).save(tmp_path / "out")
    kept = {"config.json": '{"of": 0}', "tokenizer.json": "{}", "vocab.txt": "a\nb\n"}
    if kind == "file":
        assert _kept(out)["config.json"] == kept["config.json"]
    else:
        assert _kept(out) == kept
    assert open_source(out).array("a").tolist() == [0.5] * 3
    assert open_source(out).array("b").tolist() == [1.0] * 2


def test_of_a_folder_of_several_models_only_the_configuration_is_kept(
    make_member: Make, tmp_path: Path
) -> None:
    """The rest may be anything: a project, with all its images."""
    members = [make_member(name, w=[1.0]) for name in "ab"]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "images.zip").write_text("x")
    out = diwa.merge(members).save(tmp_path / "out")
    assert names(out) == ["config.json", "model.safetensors"]


def test_a_folder_of_weights_alone_has_nothing_to_keep(make_member: Make, tmp_path: Path) -> None:
    """Files lie among all sorts of things; without a configuration, these are none of a model's."""
    (tmp_path / "diary.txt").write_text("x")
    out = alone(make_member("a", w=[1.0])).save(tmp_path / "out")
    assert names(out) == ["model.safetensors"]


# -- who loads it


def test_the_safetensors_package_loads_it(three: list[Path], tmp_path: Path) -> None:
    for dtype in ("", "fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
        soup = diwa.merge(three, dtype=dtype)
        held = safetensors.torch.load_file(soup.save(tmp_path / "out.safetensors"))
        for name, tensor in soup.tensors():
            assert held[name].dtype == tensor.dtype
            assert held[name].shape == tensor.shape
            assert held[name].float().tolist() == tensor.float().tolist()


def test_timm_loads_it(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        network = timm.create_model("test_resnet", num_classes=5)
        states.append(network.state_dict())
    paths = [tmp_path / "a.pt", tmp_path / "b.safetensors"]
    torch.save({"state_dict": {f"module.{n}": t for n, t in states[0].items()}}, paths[0])
    safetensors.torch.save_file(states[1], paths[1])
    path = diwa.merge(paths).save(tmp_path / "out.safetensors")
    loaded = timm.create_model("test_resnet", num_classes=5, checkpoint_path=str(path))
    for name, tensor in loaded.state_dict().items():
        mean = (states[0][name].double() + states[1][name].double()) / 2
        assert torch.equal(tensor, mean.to(tensor.dtype)), name


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, list[Path]]]:
    """The class, and two tiny models saved in each of several ways."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
    )
    root = tmp_path_factory.mktemp("bert")
    saved: dict[str, list[Path]] = {"whole": [], "shards": [], "bin": []}
    for seed in range(2):
        torch.manual_seed(seed)
        model = transformers.BertForMaskedLM(config)
        model.save_pretrained(root / f"whole{seed}")
        model.save_pretrained(root / f"shards{seed}", max_shard_size="5KB")
        (root / f"bin{seed}").mkdir()
        torch.save(model.state_dict(), root / f"bin{seed}" / "pytorch_model.bin")
        config.save_pretrained(root / f"bin{seed}")
        for way, paths in saved.items():
            paths.append(root / f"{way}{seed}")
    assert len(list((root / "shards0").glob("*.safetensors"))) > 2
    return transformers.BertForMaskedLM, saved


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_loads_it_in_the_kind_that_was_asked_for(
    bert: tuple[Any, dict[str, list[Path]]], tmp_path: Path
) -> None:
    """Its configuration tells of a kind, too, which `from_pretrained` would turn the weights to."""
    network, saved = bert
    for kind in (torch.float64, torch.bfloat16):
        name = {torch.float64: "fp64", torch.bfloat16: "bf16"}[kind]
        soup = diwa.merge(saved["whole"], dtype=name)
        out = soup.save(tmp_path / name)
        assert network.from_pretrained(out, dtype="auto").dtype == kind
        soup.save(out)  # which is still known as ours
    # It can't compute with one byte a number; it turns them to what the configuration tells.
    out = diwa.merge(saved["whole"], dtype="fp8_e5m2").save(tmp_path / "fp8")
    assert network.from_pretrained(out, dtype="auto").dtype == torch.float32
    told = json.loads((saved["whole"][0] / "config.json").read_text())
    kept = json.loads((tmp_path / "bf16" / "config.json").read_text())
    assert kept == {**told, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"torch_dtype": "float32", "n": 1}', '{\n  "torch_dtype": "float16",\n  "n": 1\n}\n'),
        ('{"inner": {"dtype": "float32"}}', '{\n  "inner": {\n    "dtype": "float16"\n  }\n}\n'),
        ('{"n":  1}', '{"n":  1}'),
        ('{"dtype":  null}', '{"dtype":  null}'),
        ("no JSON", "no JSON"),
    ],
)
def test_a_configuration_that_tells_of_a_kind(tmp_path: Path, text: str, kept: str) -> None:
    members = [
        sharded(tmp_path / f"m{n}", {"a": torch.ones(3) * n}, config_json=text) for n in range(2)
    ]
    out = diwa.merge(members, dtype="fp16").save(tmp_path / "out")
    assert (out / "config.json").read_text() == kept
    plain = diwa.merge(members).save(tmp_path / "plain")
    assert (plain / "config.json").read_text() == text


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "ways",
    [("whole", "whole"), ("shards", "shards"), ("whole", "shards"), ("bin", "whole"),
     ("whole", "bin"), ("bin", "bin"), ("shards", "bin")],
    ids="-".join,
)  # fmt: skip
@pytest.mark.parametrize("shard_size", [None, 6000])
def test_transformers_loads_it(
    bert: tuple[Any, dict[str, list[Path]]],
    tmp_path: Path,
    ways: tuple[str, str],
    shard_size: int | None,
) -> None:
    network, saved = bert
    members = [saved[way][n] for n, way in enumerate(ways)]
    out = diwa.merge(members).save(tmp_path / "out", shard_size=shard_size)
    assert (out / "config.json").is_file()
    loaded, told = network.from_pretrained(out, output_loading_info=True)
    for wrong in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not told.get(wrong), told
    one, two = (network.from_pretrained(saved["whole"][n]).state_dict() for n in range(2))
    found = loaded.state_dict()
    assert found.keys() == one.keys()
    for name, tensor in found.items():
        mean = (one[name].double() + two[name].double()) / 2
        assert torch.equal(tensor, mean.to(tensor.dtype)), name
    decoder, embedding = loaded.get_output_embeddings(), loaded.get_input_embeddings()
    assert decoder.weight is embedding.weight


# -- tensors that share their numbers


class Tied(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3, bias=False)
        torch.nn.init.constant_(self.embed.weight, value)
        self.head.weight = self.embed.weight


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    paths = []
    for n in range(2):
        paths.append(tmp_path / f"m{n}.pt")
        torch.save(Tied(float(n)).state_dict(), paths[-1])
    path = diwa.merge(paths).save(tmp_path / "out.safetensors")
    held = safetensors.torch.load_file(path)
    for name in ("embed.weight", "head.weight"):
        assert held[name].tolist() == [[0.5, 0.5]] * 3
    assert open_source(path).aliases == {"head.weight": "embed.weight"}
    # So does a merge of merges, and one of a merge and a member.
    again = diwa.merge([path, paths[1]]).save(tmp_path / "again.safetensors")
    assert open_source(again).aliases == {"head.weight": "embed.weight"}
    assert open_source(again).array("head.weight").tolist() == [[0.75, 0.75]] * 3


def test_tied_tensors_stay_tied_in_shards(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save(Tied(1.0).state_dict(), path)
    out = alone(path).save(tmp_path / "out", shard_size=1)
    assert len(list(out.glob("*.safetensors"))) == 2
    assert open_source(out).aliases == {"head.weight": "embed.weight"}


def test_tied_tensors_that_safetensors_left_out(tmp_path: Path) -> None:
    paths = []
    for n in range(2):
        paths.append(str(tmp_path / f"m{n}.safetensors"))
        safetensors.torch.save_model(Tied(float(n)), paths[-1])
    path = diwa.merge(paths).save(tmp_path / "out.safetensors")
    held = safetensors.torch.load_file(path)
    assert len(held) == 1
    network = Tied(9.0)
    safetensors.torch.load_model(network, str(path))
    assert network.head.weight.tolist() == [[0.5, 0.5]] * 3
    # Together with one that has both.
    torch.save(Tied(3.0).state_dict(), tmp_path / "both.pt")
    mixed = [*paths, tmp_path / "both.pt"]
    path = diwa.merge(mixed).save(tmp_path / "out.safetensors")
    network = Tied(9.0)
    safetensors.torch.load_model(network, str(path))
    assert network.head.weight.flatten().tolist() == pytest.approx([4 / 3] * 6)
    # As in the first, here with both.
    path = diwa.merge(mixed[::-1]).save(tmp_path / "out.safetensors")
    network.load_state_dict(safetensors.torch.load_file(path))
    assert network.head.weight.flatten().tolist() == pytest.approx([4 / 3] * 6)
    assert open_source(path).aliases == {"head.weight": "embed.weight"}


def test_no_tensor_left_out_hides_the_format(tmp_path: Path) -> None:
    """Without it transformers does not load a file."""
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2)}, path, {"format": "w"})
    out = alone(path).save(tmp_path / "out.safetensors")
    assert open_source(out).metadata["format"] == "pt"


@pytest.mark.parametrize(
    "tied",
    [
        {"w": "w"},
        {"v": "w", "w": "v"},
        {"v": "w", "w": "u", "u": "v"},
        {"v": "w", "w": "u"},
        {"v": "other"},  # of another shape
        {"v": "n"},  # of another kind
        {"v": "u"},  # of other numbers
        {"v": []},
        {"v": None},
        [],
        "v",
    ],
)
def test_a_file_that_lies_about_what_is_tied(tmp_path: Path, tied: Any) -> None:
    """No tensor is lost or replaced by another one."""
    tensors = {
        "u": torch.ones(2) * 3,
        "v": torch.ones(2),
        "w": torch.ones(2),
        "other": torch.ones(3),
        "n": torch.ones(2, dtype=torch.int64),
    }
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tensors, path, {METADATA_KEY: json.dumps({"tied": tied})})
    try:
        out = alone(path).save(tmp_path / "out.safetensors")
    except WeightsError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 - either is right
    else:
        held = safetensors.torch.load_file(out)
        assert {n: t.tolist() for n, t in held.items()} == {
            n: t.tolist() for n, t in tensors.items()
        }


# -- whole or not at all


class Full:
    """A disk that has no room left after so many writes."""

    def __init__(self, writes: int) -> None:
        self._left = writes
        self._plain = os.pwrite

    def __call__(self, file: int, content: Any, at: int) -> int:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._plain(file, content, at)


@pytest.mark.parametrize(
    ("name", "writes"),
    # After 27 there is only room missing for headers: one, or two of shards.
    [*itertools.product(["out.safetensors", "out"], [0, 1, 5, 27]), ("out", 28)],
)
def test_a_full_disk_leaves_what_was_there(
    three: list[Path], tmp_path: Path, name: str, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRETCH", 50)
    soup = diwa.merge(three)
    size = None if name.endswith("safetensors") else 2000
    place = tmp_path / "there"
    full = f"{place / name}: can't be written (No space left on device); free some space"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Full(writes))
        with pytest.raises(StoreError) as caught:
            soup.save(place / name, shard_size=size)
    assert str(caught.value).startswith(full)
    assert not place.exists() or names(place) == []
    soup.save(place / name, shard_size=size)
    before = _content(place)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Full(writes))
        with pytest.raises(StoreError):
            diwa.merge(three[:2]).save(place / name, shard_size=size)
    assert _content(place) == before


def _content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        done = False
    if not done:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], capture_output=True, check=True)


def test_a_disk_that_is_really_full(make_member: Make, small_disk: Path) -> None:
    large = [make_member(f"m{n}", w=np.ones(100_000) * n) for n in range(2)]
    for name in ("out.safetensors", "out"):
        with pytest.raises(StoreError, match=r"can't be written \(No space left on device\)"):
            diwa.merge(large).save(small_disk / name)
        assert names(small_disk) == []
    small = [make_member(f"s{n}", w=np.ones(1000) * n) for n in range(2)]
    old = diwa.merge(small).save(small_disk / "out.safetensors").read_bytes()
    with pytest.raises(StoreError):
        diwa.merge(large).save(small_disk / "out.safetensors")
    assert names(small_disk) == ["out.safetensors"]
    assert (small_disk / "out.safetensors").read_bytes() == old


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing is killed like that here")
@pytest.mark.parametrize("name", ["out.safetensors", "out"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_kill_on_the_way_leaves_what_was_there(
    three: list[Path], tmp_path: Path, name: str, earlier: bool
) -> None:
    place = tmp_path / "there"
    size = None if name.endswith("safetensors") else 2000
    if earlier:
        diwa.merge(three[:2]).save(place / name, shard_size=size)
    before = _content(place) if earlier else {}
    program = (
        "import os, signal, diwa\n"
        "plain, count = os.pwrite, iter(range(4))\n"
        "def killing(*arguments):\n"
        "    if next(count, None) is None:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return plain(*arguments)\n"
        "os.pwrite = killing\n"
        f"diwa.merge({[str(path) for path in three]}).save({str(place / name)!r}, "
        f"shard_size={size})\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL
    left = {path for path in _content(place) if not path.startswith(".")}
    assert left == before.keys()
    assert {path: _content(place)[path] for path in left} == before
    # What is left over half-way is in nobody's way.
    done = diwa.merge(three).save(place / name, shard_size=size)
    assert open_source(done).tensors.keys() == {"conv", "half", "scale", "count", "none"}


class _Heard:
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.total = self.done = 0

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[_Heard]:
        self.total = total
        yield self

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        self.done += amount

    def say(self, text: str) -> None:
        pass


@pytest.mark.parametrize("shard_size", [None, 100])
def test_progress_adds_up_and_the_disk_takes_in_what_was_made_meanwhile(
    three: list[Path], tmp_path: Path, shard_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Path]] = []
    put, flush = FileWriter.put, FileWriter.flush

    def noted_put(self: FileWriter, *what: Any) -> None:
        put(self, *what)
        done.append(("put", self._path))

    def noted_flush(self: FileWriter) -> None:
        flush(self)
        done.append(("flush", self._path))

    monkeypatch.setattr(FileWriter, "put", noted_put)
    monkeypatch.setattr(FileWriter, "flush", noted_flush)
    heard = _Heard()
    out = tmp_path / ("out.safetensors" if shard_size is None else "out")
    diwa.merge(three).save(out, shard_size=shard_size, progress=heard)
    assert heard.done == heard.total > 0
    flushed = [path for what, path in done if what == "flush"]
    assert {path for _, path in done} == set(flushed)
    assert len(set(flushed)) == len(flushed) == (1 if shard_size is None else len(flushed))
    assert [what for what, _ in done[-len(flushed) :]] == ["flush"] * len(flushed)


@pytest.mark.parametrize("trouble", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_flush_that_fails_leaves_what_was_there(
    three: list[Path], tmp_path: Path, trouble: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = diwa.merge(three[:2]).save(tmp_path / "out.safetensors")
    before = out.read_bytes()

    def fails(self: FileWriter) -> None:
        raise trouble

    monkeypatch.setattr(FileWriter, "flush", fails)
    with pytest.raises((StoreError, KeyboardInterrupt)):
        diwa.merge(three).save(out)
    assert out.read_bytes() == before
    assert names(tmp_path) == ["m0.safetensors", "m1.safetensors", "m2.safetensors", out.name]


def test_a_member_that_cannot_be_merged_leaves_what_was_there(
    three: list[Path], make_member: Make, tmp_path: Path
) -> None:
    wrong = make_member("wrong", **{
        name: tensor * float("nan") if tensor.is_floating_point() else tensor
        for name, tensor in safetensors.torch.load_file(three[0]).items()
    })  # fmt: skip
    for name in ("out.safetensors", "out"):
        out = diwa.merge(three).save(tmp_path / "there" / name)
        before = _content(tmp_path / "there")
        with pytest.raises(WeightsError, match=r"wrong\.safetensors: .* holds NaN or infinity"):
            diwa.merge([*three, wrong]).save(out)
        assert _content(tmp_path / "there") == before


# -- where to


def test_never_replaces_what_it_reads(make_member: Make, tmp_path: Path) -> None:
    a, b, base, head = (make_member(name, w=[1.0]) for name in ("a", "b", "base", "head"))
    link = tmp_path / "link.safetensors"
    link.symlink_to(b)
    soup = diwa.merge([a, b], method="ties", base=base, take_from=[(head, "w")])
    before = _content(tmp_path)
    odd = tmp_path / "sub" / ".." / "a.safetensors"
    for path in (a, b, base, head, odd, link):
        with pytest.raises(WeightsError, match="; choose another place"):
            soup.save(path)
    assert _content(tmp_path) == before


def test_never_replaces_the_statistics_it_reads(make_member: Make) -> None:
    paths = [make_member(name, w=[1.0]) for name in ("a", "b", "fa", "fb")]
    files = [str(path) for path in paths[2:]]
    with pytest.raises(WeightsError, match="; choose another place"):
        diwa.merge(paths[:2], method="fisher", statistics_files=files).save(paths[3])
    assert open_source(paths[3]).metadata[METADATA_KEY] == "{}"


@pytest.mark.parametrize("named", ["folder", "file"])
def test_never_replaces_a_folder_that_holds_a_member(
    three: list[Path], tmp_path: Path, named: str
) -> None:
    """Even one that an earlier merge made."""
    earlier = diwa.merge(three[:2]).save(tmp_path / "earlier")
    member = earlier if named == "folder" else earlier / "model.safetensors"
    before = _content(earlier)
    with pytest.raises(DiwaError, match="choose another place"):
        diwa.merge([member, three[2]]).save(earlier)
    shards = diwa.merge(three[:2]).save(tmp_path / "shards", shard_size=1000)
    with pytest.raises(DiwaError, match="choose another place"):
        diwa.merge([three[2], shards]).save(shards)
    assert _content(earlier) == before


def test_an_earlier_folder_of_ours_is_replaced(three: list[Path], tmp_path: Path) -> None:
    out = diwa.merge(three).save(tmp_path / "out", shard_size=1000)
    many = names(out)
    assert len(many) > 2
    diwa.merge(three[:2]).save(out)
    assert names(out) == ["model.safetensors"]
    assert len(manifest(out)["soup"]["members"]) == 2
    diwa.merge(three).save(out, shard_size=1000)
    assert names(out) == many
    assert names(tmp_path) == ["m0.safetensors", "m1.safetensors", "m2.safetensors", "out"]


@pytest.mark.parametrize("what", ["a file", "a folder", "other weights"])
def test_what_somebody_put_into_a_folder_of_ours_is_not_lost(
    three: list[Path], tmp_path: Path, what: str
) -> None:
    """A folder with a single soup in it may be somebody's whole project."""
    place = tmp_path / "project"
    place.mkdir()
    if what == "a folder":
        (place / "thesis").mkdir()
        (place / "thesis" / "text.tex").write_text("years of work")
    elif what == "a file":
        (place / "train.py").write_text("years of work")
    else:
        torch.save({"w": torch.ones(1)}, place / "years_of_work.pt")
    diwa.merge(three).save(place / "soup.safetensors")
    before = _content(place)
    with pytest.raises(StoreError, match="; choose a new place"):
        diwa.merge(three[:2]).save(place)
    assert _content(place) == before


def test_a_configuration_that_somebody_changed_is_not_lost(tmp_path: Path) -> None:
    members = []
    for n in range(2):
        members.append(sharded(tmp_path / f"m{n}", {"a": torch.ones(3)}, config_json=f"of {n}"))
    out = diwa.merge(members).save(tmp_path / "out")
    # It is nothing to be missed if it is there again.
    diwa.merge(members).save(out, shard_size=1)
    alone(members[0]).save(out)
    before = _content(out)
    with pytest.raises(StoreError, match="; choose a new place"):
        diwa.merge(members[::-1]).save(out)
    assert _content(out) == before
    (out / "config.json").write_text("mine")
    with pytest.raises(StoreError, match="; choose a new place"):
        diwa.merge(members).save(out)
    assert (out / "config.json").read_text() == "mine"


@pytest.mark.parametrize("name", ["soup.safetensors", "model-1-of-2.safetensors"])
def test_a_soup_under_a_name_of_somebodys_own_is_not_lost(
    three: list[Path], tmp_path: Path, name: str
) -> None:
    path = diwa.merge(three).save(tmp_path / "mine" / name)
    with pytest.raises(StoreError, match="; choose a new place"):
        diwa.merge(three).save(path.parent)
    assert names(path.parent) == [name]


def test_never_replaces_a_folder_of_links_to_what_it_reads(
    three: list[Path], tmp_path: Path
) -> None:
    """As a cache of downloads is one."""
    held = diwa.merge(three).save(tmp_path / "blobs" / "0123.safetensors")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(held)
    with pytest.raises(WeightsError, match="snapshot: holds one of the members; choose another"):
        alone(folder).save(folder)
    assert (folder / "model.safetensors").is_symlink()


def test_a_foreign_folder_is_not_replaced(three: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    diwa.merge(three).save(place)  # an empty one may be used
    assert names(place) == ["model.safetensors"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for content in (b"text", three[0].read_bytes()):
        (foreign / "model.safetensors").write_bytes(content)
        with pytest.raises(StoreError) as caught:
            diwa.merge(three).save(foreign)
        assert str(caught.value) == (
            f"{foreign}: is a folder with other things in it; choose a new place"
        )
        assert _content(foreign) == {"model.safetensors": content}


def test_a_link_to_a_folder(three: list[Path], tmp_path: Path) -> None:
    out = diwa.merge(three).save(tmp_path / "real")
    (tmp_path / "place").mkdir()
    link = tmp_path / "place" / "link"
    link.symlink_to(out)
    try:
        diwa.merge(three[:2]).save(link)
    except DiwaError:
        assert len(manifest(out)["soup"]["members"]) == 3
    else:
        assert len(manifest(link)["soup"]["members"]) == 2
    assert names(tmp_path / "place") == ["link"]


@pytest.mark.parametrize("name", ["out.pt", "out.bin", "out.ckpt", "out.pth", "out.pkl", "out.h5"])
def test_a_name_that_means_something_else(three: list[Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError) as caught:
        diwa.merge(three).save(tmp_path / name)
    assert str(caught.value) == (
        f"{tmp_path / name}: not the name of a safetensors file or a new folder; "
        "let it end in .safetensors"
    )
    assert not (tmp_path / name).exists()


def test_a_file_where_the_folder_should_be(three: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(WeightsError, match=r"out: not the name of .*; let it end in .safetensors"):
        diwa.merge(three).save(tmp_path / "out")
    (tmp_path / "deep").write_text("mine")
    for name in ("deep/out.safetensors", "deep/out"):
        with pytest.raises(StoreError, match=r"deep/out.*can't be written"):
            diwa.merge(three).save(tmp_path / name)


def test_a_folder_where_the_file_should_be(three: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out.safetensors").mkdir()
    with pytest.raises(WeightsError, match=r"out\.safetensors: is a folder; choose another name"):
        diwa.merge(three).save(tmp_path / "out.safetensors")


@pytest.mark.parametrize("place", [".", "", "..", "/"])
def test_the_folder_one_is_in(
    three: list[Path], tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    soup = diwa.merge(three)
    try:
        soup.save(place)
    except DiwaError as error:
        assert "; " in str(error)  # noqa: PT017 - either is right
        assert names(inside) == []
    else:
        assert names(inside) == ["model.safetensors"]
    assert inside.is_dir()


@pytest.mark.parametrize("size", [0, -1])
def test_a_shard_size_that_is_none(three: list[Path], tmp_path: Path, size: int) -> None:
    with pytest.raises(WeightsError, match=rf"shard size {size}; give a number of bytes"):
        diwa.merge(three).save(tmp_path / "out", shard_size=size)


def test_shards_of_a_file(three: list[Path], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"shards need a folder; leave .safetensors off"):
        diwa.merge(three).save(tmp_path / "out.safetensors", shard_size=1000)


def test_permissions_are_those_of_any_new_file(three: list[Path], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    out = diwa.merge(three).save(tmp_path / "out.safetensors")
    assert out.stat().st_mode == plain.stat().st_mode
    (tmp_path / "new").mkdir()
    folder = diwa.merge(three).save(tmp_path / "folder")
    assert folder.stat().st_mode == (tmp_path / "new").stat().st_mode
