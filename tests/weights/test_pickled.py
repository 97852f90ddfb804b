"""Files of `torch.save`: the weights are found, and no code is ever run to get at them."""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from diwa.errors import WeightsError
from diwa.weights import unpickle
from diwa.weights.pickled import INDEX, PickledFile, PickledShards, open_pickled
from diwa.weights.source import SafetensorsFile, Source, open_source

Tensors = dict[str, torch.Tensor]


def saved(path: Path, held: Any, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(held, path, **how)
    return path


def weights() -> Tensors:
    chance = torch.Generator().manual_seed(3)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=chance),
        "bn.num_batches_tracked": torch.tensor(7),
        "a": torch.randn(5, dtype=torch.float64, generator=chance),
    }


def holds(source: Source, expected: Tensors) -> bool:
    """Whether a source holds these very tensors, in this order."""
    return list(source.tensors) == list(expected) and all(
        source.tensors[name].shape == tuple(tensor.shape)
        and source.tensors[name].kind.torch == str(tensor.dtype).removeprefix("torch.")
        and source.array(name).dtype == source.tensors[name].kind.numpy()
        and source.array(name).shape == tuple(tensor.shape)
        and source.array(name).tobytes() == raw(tensor)
        for name, tensor in expected.items()
    )


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes, the slow way."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def refused(read: Callable[[Path], Any], path: Path, *words: str) -> str:
    """Asserts that a file is refused in one line that starts with its path and has the words."""
    with pytest.raises(WeightsError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}"), said
    assert "\n" not in said
    for word in words:
        assert word in said, said
    return said


# -- numbers


KINDS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
]


#: Those that torch can't read back itself from files without zip.
ZIP_ONLY = {
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint64,
    torch.uint32,
    torch.uint16,
}


@pytest.mark.parametrize(
    ("dtype", "zipped"),
    [(d, True) for d in KINDS] + [(d, False) for d in KINDS if d not in ZIP_ONLY],
    ids=str,
)
def test_every_kind_and_shape(tmp_path: Path, dtype: torch.dtype, zipped: bool) -> None:
    held = {
        str(shape): (torch.randn(shape) * 3).abs().to(dtype)
        for shape in [(), (0,), (3,), (2, 0, 3), (2, 3, 4, 1)]
    }
    path = saved(tmp_path / "w.pt", held, _use_new_zipfile_serialization=zipped)
    assert holds(PickledFile(path), held)


def test_any_layout_of_memory(tmp_path: Path) -> None:
    whole = torch.arange(48.0).view(2, 3, 2, 4)
    held = {
        "transposed": whole.transpose(0, 2),
        "strided": whole[:, ::2],
        "channels_last": whole.clone().to(memory_format=torch.channels_last),
        "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 5),
        "tail": whole.view(-1)[40:],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "negated": torch.complex(torch.zeros(3), -torch.arange(3.0)).conj().imag,
    }
    assert held["negated"].is_neg()
    source = PickledFile(saved(tmp_path / "w.pt", held))
    assert {n: source.array(n).tolist() for n in source.tensors} == {
        n: t.tolist() for n, t in held.items()
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_arrays_are_not_to_be_written_to(tmp_path: Path, zipped: bool) -> None:
    path = saved(tmp_path / "w.pt", weights(), _use_new_zipfile_serialization=zipped)
    source = PickledFile(path)
    for name in source.tensors:
        with pytest.raises(ValueError, match="read-only"):
            source.array(name)[...] = 0


def test_nothing_is_read_before_it_is_looked_at(tmp_path: Path) -> None:
    """Opening a large file and looking at its end takes little memory."""
    path = saved(tmp_path / "w.pt", {"large": torch.zeros(100_000_000), "small": torch.ones(3)})
    most = "__import__('resource').getrusage(0).ru_maxrss"
    program = f"""
import pathlib, torch, diwa.weights.files
from diwa.weights.pickled import PickledFile
before = {most}
source = PickledFile(pathlib.Path({str(path)!r}))
assert source.array('small').tolist() == [1, 1, 1]
assert source.array('large')[-1] == 0
print({most} - before)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    path.unlink()
    assert int(run.stdout) < 50_000, "kilobytes, of 400,000"


def test_tied_tensors(tmp_path: Path) -> None:
    whole, square = torch.arange(8.0), torch.arange(4.0).view(2, 2)
    held = {
        "tied": whole,
        "again": whole,
        "row": whole.view(1, 8),
        "head": whole[:4],
        "head too": whole[:4],
        "tail": whole[4:],
        "copy": whole.clone(),
        "none": torch.zeros(0),
        "none too": torch.zeros(0),
        "square": square,
        "turned": square.t(),
        "one": torch.tensor([[5.0]]).t(),
    }
    source = PickledFile(saved(tmp_path / "w.pt", held))
    assert source.aliases == {"tied": "again", "head too": "head"}
    assert holds(source, held)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(2, dtype=torch.complex64), ["holds numbers of kind complex64"]),
        (torch.zeros(2).to(torch.float8_e4m3fnuz), ["holds numbers of kind float8_e4m3fnuz"]),
        (torch.eye(2).to_sparse(), ["is not dense (torch.sparse_coo)"]),
        (torch.empty(2, device="meta"), ["meta device"]),
        (torch.ones([1] * 33), ["is of 33 dimensions"]),
        (torch.ones(1).expand(10**12), ["would take 4000000000000 bytes", "mistrust"]),
    ],
)
def test_tensors_that_are_not_plain(tmp_path: Path, tensor: torch.Tensor, words: list[str]) -> None:
    path = saved(tmp_path / "w.pt", {"fine": torch.ones(2), "odd": tensor})
    refused(PickledFile, path, f"{path}: 'odd' ", *words)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors(tmp_path: Path) -> None:
    odd = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    refused(PickledFile, saved(tmp_path / "w.pt", {"odd": odd}), "'odd' is quantised")


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[2J", "\u202e", "x" * 5000, 3, ("a",), "__metadata__"]
)
def test_hostile_names(tmp_path: Path, name: Any) -> None:
    path = saved(tmp_path / "w.pt", {name: torch.ones(1)})
    refused(PickledFile, path, "name", "save again")


# -- wrappings

PLAIN = [
    "state_dict",
    "model_state_dict",
    "model_dict",
    "model",
    "module",
    "net",
    "network",
    "params",
]
AVERAGED = ["state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "params_ema"]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("ending", ["pt", "pth", "bin", "ckpt", "pkl"])
@pytest.mark.parametrize("wrapping", ["", *PLAIN, *AVERAGED])
def test_wrappings(tmp_path: Path, wrapping: str, ending: str, zipped: bool) -> None:
    held: Any = OrderedDict(weights())
    if wrapping:
        held = {"epoch": 3, "optimizer": {"lr": 0.1, "state": {}}, wrapping: held}
    path = saved(tmp_path / f"w.{ending}", held, _use_new_zipfile_serialization=zipped)
    source = open_source(path)
    assert holds(source, weights())
    assert source.metadata.get("unwrapped", "") == wrapping
    assert source.files == {path.name: path}


@pytest.mark.parametrize("averaged", AVERAGED)
def test_the_plain_ones_come_before_their_moving_average(tmp_path: Path, averaged: str) -> None:
    mean = {name: tensor + 1 for name, tensor in weights().items()}
    for held in [{averaged: mean, "model": weights()}, {"model": weights(), averaged: mean}]:
        path = saved(tmp_path / "w.pt", held)
        source = PickledFile(path)
        assert holds(source, weights())
        assert source.metadata == {"unwrapped": "model", "left_out": averaged}
        other = PickledFile(path, wrapping=averaged)
        assert holds(other, mean)
        assert other.metadata == {"unwrapped": averaged, "left_out": "model"}


def test_an_entry_that_is_asked_for_and_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pt", {"model": weights(), "epoch": 3})
    for wrapping in ("model_ema", "epoch"):
        with pytest.raises(WeightsError, match=f"has no dictionary '{wrapping}'; it has model, ep"):
            PickledFile(path, wrapping=wrapping)


def test_wrappings_in_wrappings(tmp_path: Path) -> None:
    held = {"ema": {"model": {"state_dict": weights(), "decay": 0.5}, "updates": 3}}
    source = PickledFile(saved(tmp_path / "w.pt", held))
    assert holds(source, weights())
    assert source.metadata == {"unwrapped": "ema/model/state_dict", "decay": "0.5", "updates": "3"}


def test_a_wrapping_without_tensors_is_none(tmp_path: Path) -> None:
    held = {"state_dict": {}, "model": {"name": "resnet"}, "net": weights()}
    source = PickledFile(saved(tmp_path / "w.pt", held))
    assert holds(source, weights())
    assert source.metadata == {"unwrapped": "net", "model": '{"name": "resnet"}'}


def test_a_tensor_called_like_a_wrapping(tmp_path: Path) -> None:
    held = {"model": torch.ones(2), "model.weight": torch.zeros(1)}
    assert holds(PickledFile(saved(tmp_path / "w.pt", held)), held)


def test_a_wrapping_around_itself(tmp_path: Path) -> None:
    held: dict[str, Any] = {"w": torch.ones(1)}
    held["model"] = held
    refused(PickledFile, saved(tmp_path / "w.pt", held), "'model' is no tensor but holds some")


@pytest.mark.parametrize(
    ("prefixes", "bare", "way"),
    [
        (["module.a", "module.b"], ["a", "b"], "module."),
        (["module.module.a", "module.module.b"], ["a", "b"], "module./module."),
        (["module.module.a", "module.b"], ["module.a", "b"], "module."),
        (["module.a", "b"], ["module.a", "b"], ""),
        (["features.module.a", "b"], ["features.module.a", "b"], ""),
        (["_orig_mod.a", "_orig_mod.b"], ["a", "b"], "_orig_mod."),
        (["_orig_mod.module.a", "_orig_mod.module.b"], ["a", "b"], "_orig_mod./module."),
        (["module._orig_mod.a", "module._orig_mod.b"], ["a", "b"], "_orig_mod./module."),
        (["x._orig_mod.a", "b"], ["x.a", "b"], "_orig_mod."),
        (["x.my_orig_mod.a", "_orig_mod"], ["x.my_orig_mod.a", "_orig_mod"], ""),
        (["_fsdp_wrapped_module.x._fsdp_wrapped_module.a"], ["x.a"], "_fsdp_wrapped_module."),
        (["l._checkpoint_wrapped_module.a"], ["l.a"], "_checkpoint_wrapped_module."),
        (["n_averaged", "module.a", "module.b"], ["a", "b"], "module."),
        (["n_averaged", "a"], ["n_averaged", "a"], ""),
        (["module."], ["module."], ""),
        (["model.a", "model.b"], ["model.a", "model.b"], ""),
    ],
)
def test_prefixes(tmp_path: Path, prefixes: list[str], bare: list[str], way: str) -> None:
    held = {name: torch.tensor(float(number)) for number, name in enumerate(prefixes)}
    source = PickledFile(saved(tmp_path / "w.pt", held))
    kept = [name for name in prefixes if name != "n_averaged" or "n_averaged" in bare]
    assert holds(source, {new: held[old] for new, old in zip(bare, kept, strict=True)})
    assert source.metadata.get("unwrapped", "") == way
    assert source.metadata.get("ignored", "") == ("" if len(kept) == len(held) else "n_averaged")


@pytest.mark.parametrize(
    "names", [["module.w", "w"], ["x._orig_mod.w", "x.w"], ["w", "_fsdp_wrapped_module.w"]]
)
def test_names_that_become_the_same_are_refused(tmp_path: Path, names: list[str]) -> None:
    path = saved(tmp_path / "w.pt", {name: torch.ones(1) for name in names})
    refused(PickledFile, path, "two tensors of one name", "with and without")


@pytest.mark.parametrize(
    ("names", "bare"),
    [
        (["model.a", "model.b"], ["a", "b"]),
        (["net.a", "net.b"], ["a", "b"]),
        (["model._orig_mod.a"], ["a"]),
        (["model.module.a"], ["a"]),
        (["model.model.a"], ["model.a"]),
        (["model.a", "loss.weight"], ["model.a", "loss.weight"]),
        (["encoder.a", "encoder.b"], ["encoder.a", "encoder.b"]),
    ],
)
def test_lightning(tmp_path: Path, names: list[str], bare: list[str]) -> None:
    held = {
        "pytorch-lightning_version": "2.1.0",
        "epoch": 4,
        "hyper_parameters": {"lr": 0.1, "layers": [1, 2], "model": {"deep": 1}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(1)}}}],
        "state_dict": {name: torch.full((1,), float(n)) for n, name in enumerate(names)},
    }
    source = PickledFile(saved(tmp_path / "last.ckpt", held))
    assert holds(
        source, {new: held["state_dict"][old] for new, old in zip(bare, names, strict=True)}
    )
    assert json.loads(source.metadata["hyper_parameters"]) == {"lr": 0.1, "layers": [1, 2]}
    assert source.metadata["pytorch-lightning_version"] == "2.1.0"
    assert source.metadata["left_out"] == "optimizer_states"


def test_real_wrappers(tmp_path: Path) -> None:
    """What torch's own wrappers name things, not what we think they do."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    plain = network.state_dict()
    wrapped = [
        torch.nn.DataParallel(network),
        torch.compile(network),
        torch.optim.swa_utils.AveragedModel(network),
        torch.compile(torch.nn.DataParallel(network)),
    ]
    for one in wrapped:
        assert isinstance(one, torch.nn.Module)
        assert one.state_dict().keys() != plain.keys()
        path = saved(tmp_path / "w.pt", {"model": one.state_dict()})
        assert holds(PickledFile(path), dict(plain))


# -- what is no tensor


def test_what_is_no_tensor_is_ignored_and_told(tmp_path: Path) -> None:
    held = {
        "w": torch.ones(1),
        "epoch": 3,
        "_extra_state": None,
        "note": "hello",
        "sizes": [1, 2],
        "empty": {},
    }
    source = PickledFile(saved(tmp_path / "w.pt", held))
    assert holds(source, {"w": held["w"]})
    assert source.metadata == {
        "ignored": "epoch, _extra_state, note, sizes, empty",
        "epoch": "3",
        "note": "hello",
        "sizes": "[1, 2]",
    }


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([torch.ones(1)], ["holds a list"]),
        (torch.ones(1), ["holds a Tensor"]),
        ("text", ["holds a str"]),
        (None, ["holds a NoneType"]),
        ({}, ["it is empty"]),
        ({"state_dict": {}}, ["it has only state_dict"]),
        ({"w": 1.0}, ["it has only w"]),
        ({str(n): n for n in range(9)}, ["it has only 0, 1, 2, 3, 4 and 4 more"]),
        ({"w": torch.ones(1), "more": {"x": torch.ones(1)}}, ["'more' is no tensor but holds"]),
        ({"student": weights(), "teacher": weights()}, ["'student' is no tensor but holds some"]),
        ({"model": {"layers": [torch.ones(1)]}}, ["'layers' is no tensor but holds some"]),
    ],
)
def test_what_is_no_dictionary_of_tensors(tmp_path: Path, held: Any, words: list[str]) -> None:
    refused(PickledFile, saved(tmp_path / "w.pt", held), *words, "; save ")


def test_what_stands_beside_the_tensors(tmp_path: Path) -> None:
    """NumPy's scalars, paths and arguments, for which torch alone refuses the whole file."""
    held = {
        "state_dict": weights(),
        "args": argparse.Namespace(lr=1e-3, out=pathlib.PurePosixPath("/a/b"), nothing=None),
        "config": {"lr": np.float64(1e-5), "batch": np.int64(32), "on": np.bool_(True)},
        "half": np.float32(0.5),
        "name": np.str_("ärger"),
        "rng": np.random.RandomState(0).get_state(),
        "scores": np.arange(5),
        "best": float("inf"),
        "diwa": '{"score": 1.0}',
        "unwrapped": "a lie",
        "noise\x1b": "x",
        "long": "x" * 5000,
        "lines": "a\nb",
    }
    path = saved(tmp_path / "w.pt", held)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    source = PickledFile(path)
    assert holds(source, weights())
    said = dict(source.metadata)
    assert json.loads(said.pop("config")) == {"lr": 1e-5, "batch": 32, "on": True}
    assert said == {
        "unwrapped": "state_dict",
        "args": '{"lr": 0.001, "out": "/a/b"}',
        "half": "0.5",
        "name": "ärger",
        "best": "Infinity",
    }


def test_no_more_text_than_anybody_reads(tmp_path: Path) -> None:
    held = {"model": weights(), **{f"t{n}": "x" * 4000 for n in range(200)}}
    assert len(PickledFile(saved(tmp_path / "w.pt", held)).metadata) == 65


def test_numpys_own_functions_are_never_allowed(tmp_path: Path) -> None:
    """Neither now nor for who loads the next file."""
    path = saved(tmp_path / "w.pt", {"model": weights(), "lr": np.float64(1)})
    before = set(torch.serialization.get_safe_globals())
    PickledFile(path)
    assert set(torch.serialization.get_safe_globals()) == before
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
@pytest.mark.parametrize(
    "told",
    [
        ("f8", struct.pack("<d", 1.5)),
        ("x", b"12"),
        ("f8", b"1"),
        ("O8", b"12345678"),
        ("f8", "12345678"),
        ("V8", b"12345678"),
        (8, b"12345678"),
        ("f8,f8", b"1" * 16),
        (),
    ],
)
def test_scalars_that_are_none(tmp_path: Path, module: str, told: tuple[Any, ...]) -> None:
    """Of both NumPys, whichever is here; made by hand, since NumPy would not."""

    class Kind:
        def __reduce__(self) -> Any:
            return _named("numpy", "dtype"), told[:1]

    class Scalar:
        def __reduce__(self) -> Any:
            return _named(module, "scalar"), ((Kind(), told[1]) if told else ())

    source = PickledFile(_with_odd(tmp_path / "w.pt", Scalar()))
    assert holds(source, weights())
    known = {"odd": "1.5"} if told[1:] == (struct.pack("<d", 1.5),) else {}
    assert source.metadata == {"unwrapped": "model", **known}


def _named(module: str, name: str) -> Any:
    """Something that pickle takes for a function of that name."""
    return type(name, (), {"__module__": module})


def _with_odd(path: Path, odd: Any) -> Path:
    """A file with one more entry, of names that are not there, which `torch.save` would refuse."""

    class Pickler(pickle._Pickler):
        def save_global(self: Any, obj: Any, name: str | None = None) -> None:
            self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__name__}\n".encode())
            self.memoize(obj)

        dispatch: Any = {**pickle._Pickler.dispatch, type: save_global}  # noqa: RUF012

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(odd)

    def with_odd(name: str, content: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return content
        # Without the last instruction the dictionary is still there: one more entry, then stop.
        key = pickle.BINUNICODE + struct.pack("<I", 3) + b"odd"
        return content[:-1] + key + buffer.getvalue()[2:-1] + pickle.SETITEM + pickle.STOP

    return _zip_again(saved(path, {"model": weights()}), with_odd)


# -- DomainBed


class Featurizer(torch.nn.Module):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network


class Algorithm(torch.nn.Module):
    """As DomainBed's ERM: the same encoder and classifier under two names each."""

    def __init__(
        self, network: torch.nn.Module, classes: int = 3, *, sequence: bool = True
    ) -> None:
        super().__init__()
        self.featurizer = Featurizer(network)
        self.classifier = torch.nn.Linear(2, classes)
        if sequence:
            self.network = torch.nn.Sequential(self.featurizer, self.classifier)


def tiny_resnet() -> torch.nn.Module:
    network = torch.nn.Module()
    network.conv1 = torch.nn.Conv2d(3, 2, 1, bias=False)
    network.layer4 = torch.nn.Sequential(torch.nn.BatchNorm2d(2))
    return network


def domainbed(algorithm: torch.nn.Module | Tensors) -> dict[str, Any]:
    held = algorithm if isinstance(algorithm, dict) else algorithm.state_dict()
    return {
        "args": {"lr": None, "dataset": "PACS", "test_envs": [0], "steps": 5001},
        "model_input_shape": (3, 224, 224),
        "model_num_classes": 3,
        "model_num_domains": 3,
        "model_hparams": {"lr": np.float64(3e-5), "resnet18": False, "batch_size": 32},
        "model_dict": held,
        "results": '{"env0_in_acc": 0.9}',
    }


RESNET = ["conv1.weight"] + [
    f"layer4.0.{name}"
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
]
HEAD = ["fc.weight", "fc.bias"]


@pytest.mark.parametrize("sequence", [True, False])
def test_domainbeds_resnets_get_the_names_of_torchvision_and_timm(
    tmp_path: Path, sequence: bool
) -> None:
    torch.manual_seed(0)
    algorithm = Algorithm(tiny_resnet(), sequence=sequence)
    source = PickledFile(saved(tmp_path / "model.pkl", domainbed(algorithm)))
    assert set(source.tensors) == {*RESNET, *HEAD}
    kernel = algorithm.get_parameter("featurizer.network.conv1.weight")
    assert source.array("conv1.weight").tobytes() == raw(kernel)
    assert source.array("fc.bias").tobytes() == raw(algorithm.classifier.bias)
    assert source.aliases == {}
    first = "network.0.network." if sequence else "featurizer.network."
    assert source.metadata["unwrapped"] == f"model_dict/{first}"
    assert json.loads(source.metadata["model_hparams"]) == {
        "lr": 3e-5,
        "resnet18": False,
        "batch_size": 32,
    }
    assert json.loads(source.metadata["args"])["test_envs"] == [0]
    assert source.metadata["model_input_shape"] == "[3, 224, 224]"
    assert source.metadata["results"] == '{"env0_in_acc": 0.9}'


def test_both_places_saved_apart(tmp_path: Path) -> None:
    """From a GPU each name may have been copied on its own; they are the same all the same."""
    held = {name: t.clone() for name, t in Algorithm(tiny_resnet()).state_dict().items()}
    path = tmp_path / "model.pkl"
    assert set(PickledFile(saved(path, domainbed(held))).tensors) == {*RESNET, *HEAD}
    held["featurizer.network.conv1.weight"] += 1
    assert set(PickledFile(saved(path, domainbed(held))).tensors) == set(held), "both are kept"


def test_diwas_shared_initialisation(tmp_path: Path) -> None:
    algorithm = Algorithm(tiny_resnet())
    source = PickledFile(saved(tmp_path / "init.pth", algorithm.network.state_dict()))
    assert list(source.tensors) == [*RESNET, *HEAD]
    assert source.metadata["unwrapped"] == "0.network."


def test_what_else_an_algorithm_has_keeps_its_name(tmp_path: Path) -> None:
    held = {**Algorithm(tiny_resnet()).state_dict(), "update_count": torch.tensor([3])}
    source = PickledFile(saved(tmp_path / "model.pkl", domainbed(held)))
    assert set(source.tensors) == {*RESNET, *HEAD, "update_count"}


def test_another_encoder_keeps_its_names(tmp_path: Path) -> None:
    algorithm = Algorithm(torch.nn.Linear(2, 2))
    source = PickledFile(saved(tmp_path / "model.pkl", domainbed(algorithm)))
    assert list(source.tensors) == list(algorithm.state_dict())
    assert source.aliases == {
        "network.0.network.weight": "featurizer.network.weight",
        "network.0.network.bias": "featurizer.network.bias",
        "network.1.weight": "classifier.weight",
        "network.1.bias": "classifier.bias",
    }


def test_the_start_of_a_longer_sequence_is_not_domainbeds(tmp_path: Path) -> None:
    held = {
        "0.network.layer4.w": torch.ones(1),
        "1.w": torch.ones(1),
        "2.w": torch.ones(1),
    }
    assert holds(PickledFile(saved(tmp_path / "w.pt", held)), held)


def test_a_bare_name_that_is_taken(tmp_path: Path) -> None:
    held = {
        "network.0.network.layer4.w": torch.ones(1),
        "network.1.w": torch.ones(1),
        "fc.w": torch.zeros(1),
    }
    assert holds(PickledFile(saved(tmp_path / "w.pt", held)), held)


# -- hostile and broken files


class TestNoCode:
    @pytest.mark.parametrize("how", ["zip", "legacy", *range(6)])
    def test_is_run(self, tmp_path: Path, how: str | int) -> None:
        proof = tmp_path / "proof"
        held = {"state_dict": {"w": torch.ones(1), "x": _Calls(Path.touch, proof)}}
        path = tmp_path / "w.pth"
        if isinstance(how, int):
            path.write_bytes(pickle.dumps({"x": _Calls(Path.touch, proof)}, protocol=how))
        else:
            torch.save(held, path, _use_new_zipfile_serialization=how == "zip")
        said = refused(PickledFile, path, "can't be read safely", "safetensors.torch.save_file")
        assert ("touch" in said) or ("getattr" in said)
        assert not proof.exists()
        # The pickle is a real one: read without care, it runs.
        if isinstance(how, int):
            pickle.loads(path.read_bytes())
        else:
            torch.load(path, weights_only=False)
        assert proof.exists()

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize(
        ("function", "named"), [(eval, "eval"), (exec, "exec"), (print, "print")]
    )
    def test_and_the_file_says_what_it_would_have_been(
        self, tmp_path: Path, protocol: int, zipped: bool, function: Any, named: str
    ) -> None:
        held = {"x": _Calls(function, "1"), "w": torch.ones(1)}
        path = saved(
            tmp_path / "w.pt",
            held,
            pickle_protocol=protocol,
            _use_new_zipfile_serialization=zipped,
        )
        refused(PickledFile, path, f"{named})")

    def test_of_a_torchscript_archive(self, tmp_path: Path) -> None:
        path = tmp_path / "w.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("w/data.pkl", pickle.dumps({}))
            archive.writestr("w/constants.pkl", b"")
        refused(PickledFile, path, "TorchScript", "state_dict")

    def test_of_a_whole_module(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "w.pt", torch.nn.Linear(2, 2))
        refused(PickledFile, path, "torch.nn.modules.linear.Linear", "save its state_dict")

    def test_even_where_somebody_turned_the_care_off(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        proof = tmp_path / "proof"
        path = saved(tmp_path / "w.pt", {"x": _Calls(Path.touch, proof)})
        refused(PickledFile, path, "can't be read safely")
        assert not proof.exists()


class _Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


@pytest.mark.parametrize("protocol", range(6))
def test_a_plain_pickle_is_refused_without_a_warning(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"w": [1.0]}, protocol=protocol))
    refused(PickledFile, tmp_path / "w.pkl", "can't be read safely")


def test_a_pickled_state_dict_that_torch_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(weights()))
    refused(PickledFile, tmp_path / "w.pkl", "not as torch.save writes it", "save its state_dict")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"\0", []),
        (b"PK\x03\x04", ["not a whole zip file"]),
        (b"hello", ["not what torch.save writes"]),
        (b"\x80\x02", []),
        (b"0" * 99, []),
        (b"<!DOCTYPE html><html>", ["a web page", "download the file itself"]),
        (b"\n  <html>", ["a web page"]),
        (b"version https://git-lfs.github.com/spec/v1\noid", ["Git LFS pointer", "git lfs pull"]),
        (b"\x89HDF\r\n\x1a\n", ["HDF5"]),
        (b"GGUF\3\0\0\0", ["GGUF"]),
        (b"\x1f\x8b\x08", ["gzip", "unpack"]),
    ],
)
def test_what_is_no_pickle(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    refused(PickledFile, tmp_path / "w.pt", *words)
    refused(open_pickled, tmp_path / "w.pt", *words)


@pytest.mark.parametrize("kind", ["zip", "legacy"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, kind: str, part: float) -> None:
    path = saved(tmp_path / "w.pt", weights(), _use_new_zipfile_serialization=kind == "zip")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    refused(PickledFile, path, "copy or download it again" if kind == "zip" else "")


def test_a_missing_file_a_folder_a_pipe_and_a_loop(tmp_path: Path) -> None:
    import os

    refused(PickledFile, tmp_path / "none.pt", "no such file")
    (tmp_path / "folder.pt").mkdir()
    refused(PickledFile, tmp_path / "folder.pt", "not a file")
    os.mkfifo(tmp_path / "pipe.pt")
    refused(PickledFile, tmp_path / "pipe.pt", "not a file")
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    refused(PickledFile, tmp_path / "loop.pt", "can't be read")


def _zip_again(path: Path, change: Callable[[str, bytes], bytes | None], method: int = 0) -> Path:
    with zipfile.ZipFile(path) as old:
        content = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", method) as new:
        for name, text in content.items():
            changed = change(name, text)
            if changed is not None:
                new.writestr(name, changed)
    return path


def test_a_zip_file_that_another_program_wrote(tmp_path: Path) -> None:
    """Without compression and with records at odd places, it is read as before."""
    path = _zip_again(saved(tmp_path / "w.pt", weights()), lambda _, text: text)
    assert holds(PickledFile(path), weights())


def test_compressed_records_do_not_pass_for_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pt", {"w": torch.zeros(1000)})
    _zip_again(path, lambda _, text: text, zipfile.ZIP_DEFLATED)
    refused(PickledFile, path, "compressed", "without compression")


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w/data.pkl", bytes(50_000_000))
    assert path.stat().st_size < 100_000
    refused(PickledFile, path, "compressed")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, t: None if n.endswith("data.pkl") else t, ["torch.save did not write"]),
        (lambda n, t: None if n.endswith("data/1") else t, ["can't be read safely"]),
        (lambda n, t: t[:-1] if n.endswith("data/0") else t, ["other lengths than its records"]),
        (lambda n, t: t + b"\0" if n.endswith("data/0") else t, ["other lengths than its records"]),
    ],
)
def test_records_that_are_not_what_the_pickle_says(
    tmp_path: Path, change: Callable[[str, bytes], bytes | None], words: list[str]
) -> None:
    path = saved(tmp_path / "w.pt", {"a": torch.ones(30), "b": torch.ones(20)})
    refused(PickledFile, _zip_again(path, change), *words)


def test_a_pickle_that_lies_about_a_length(tmp_path: Path) -> None:
    """Torch, mapping the file, would give the next record's bytes as numbers."""
    path = saved(tmp_path / "w.pt", {"a": torch.ones(1000), "b": torch.zeros(1000)})
    claim = b"M" + struct.pack("<H", 1000)
    content = path.read_bytes()
    start = content.index(claim)
    for lie in (999, 1001, 2000, 60000):
        changed = bytearray(content)
        changed[start : start + 3] = b"M" + struct.pack("<H", lie)
        path.write_bytes(changed)
        refused(PickledFile, path)


def test_records_that_nobody_uses_do_no_harm(tmp_path: Path) -> None:
    """As when a tool takes the optimiser out of the pickle alone."""
    path = saved(tmp_path / "w.pt", {"a": torch.ones(30), "b": torch.zeros(20)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("w/data/7", bytes(12))
    assert set(PickledFile(path).tensors) == {"a", "b"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_record_that_is_there_twice(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pt", {"a": torch.ones(30)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("w/data/0", bytes(120))
    refused(PickledFile, path, "holds 'w/data/0' twice")


def test_a_safetensors_file_by_another_name(tmp_path: Path) -> None:
    held = {"w": torch.ones(2)}
    safetensors.torch.save_file(held, tmp_path / "w.pt")
    source = open_pickled(tmp_path / "w.pt")
    assert isinstance(source, SafetensorsFile)
    assert holds(source, held)
    refused(PickledFile, tmp_path / "w.pt", "a safetensors file by another name", ".safetensors")
    assert isinstance(open_pickled(saved(tmp_path / "x.pt", held)), PickledFile)


def test_errors_that_torch_changes_its_mind_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises becomes one line."""
    path = saved(tmp_path / "w.pt", weights())
    for error in [RuntimeError("a\nb\n"), RuntimeError(""), MemoryError(), KeyError("x\ny")]:

        def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(torch, "load", broken)
        refused(PickledFile, path, "can't be read safely (")


def test_importing_the_reader_does_not_import_torch() -> None:
    code = "import sys, diwa.weights.pickled; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_threads_at_once(tmp_path: Path) -> None:
    """Torch's list of allowed names is one for all: who leaves must not take from who is in."""
    from concurrent.futures import ThreadPoolExecutor

    held = {"model": weights(), "hp": {f"x{n}": np.float64(n) for n in range(30)}}
    paths = [saved(tmp_path / f"{n}.pt", held) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for source in pool.map(PickledFile, paths * 4):
            assert holds(source, weights())


# -- shards


def sharded(folder: Path, **shards: Tensors) -> Path:
    place = {}
    for shard, tensors in shards.items():
        saved(folder / f"{shard}.bin", tensors)
        place.update(dict.fromkeys(tensors, f"{shard}.bin"))
    index = {"metadata": {"total_size": 3, "format": "pt"}, "weight_map": place}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def opened(folder: Path) -> PickledShards:
    return PickledShards(folder, folder / INDEX)


def test_shards(tmp_path: Path) -> None:
    first, second = {"model.a": torch.ones(2), "tied": torch.zeros(3)}, {"module.b": torch.eye(2)}
    first["other"] = first["tied"]
    source = opened(sharded(tmp_path, x=first, y=second))
    assert holds(source, {**first, **second})
    assert source.metadata == {"format": "pt"}
    assert source.aliases == {"tied": "other"}
    assert source.files == {"x.bin": tmp_path / "x.bin", "y.bin": tmp_path / "y.bin"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "x.bin").unlink(), ["x.bin: no such file", "names it"]),
        (lambda f: saved(f / "x.bin", {}), ["x.bin: lacks 'a'"]),
        (
            lambda f: saved(f / "x.bin", {"a": torch.ones(1), "c": torch.ones(1)}),
            ["x.bin: holds 'c'"],
        ),
        (lambda f: saved(f / "x.bin", {"a": [1]}), ["x.bin: 'a' is a list"]),
        (lambda f: saved(f / "x.bin", [1]), ["x.bin: lacks 'a'"]),
        (lambda f: saved(f / "x.bin", {"a": _Calls(eval, "1")}), ["x.bin: can't", "eval"]),
        (lambda f: (f / "x.bin").write_bytes(b"zzz"), ["x.bin: can't be read safely"]),
        (lambda f: (f / INDEX).write_text("{"), ["not an index"]),
        (lambda f: (f / INDEX).write_text('{"weight_map": {"a": "../x.bin"}}'), ["'../x.bin'"]),
    ],
)
def test_shards_that_do_not_fit_together(
    tmp_path: Path, change: Callable[[Path], Any], words: list[str]
) -> None:
    folder = sharded(tmp_path, x={"a": torch.ones(1)}, y={"b": torch.ones(1)})
    change(folder)
    refused(opened, folder, *words)


def test_the_lock_is_let_go_after_an_error(tmp_path: Path) -> None:
    refused(PickledFile, saved(tmp_path / "w.pt", {"x": _Calls(eval, "1")}))
    assert not unpickle._ALONE.locked()
