"""Files of tensors: what is written comes back, and nothing that is not tensors gets in."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.errors import StoreError, WeightsError
from diwa.weights import files

Tensors = dict[str, torch.Tensor]

READERS: list[Callable[[Path], Any]] = [
    files.about,
    files.shapes,
    lambda path: list(files.stream(path)),
    files.read,
]


def tensors() -> Tensors:
    chance = torch.Generator().manual_seed(3)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=chance),
        "bn.num_batches_tracked": torch.tensor(7),
        "a": torch.randn(5, dtype=torch.float64, generator=chance),
    }


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def refused(read: Callable[[Path], Any], path: Path, *words: str) -> str:
    """Asserts that a file is refused in one line that starts with its path and has the words."""
    with pytest.raises(WeightsError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    for word in words:
        assert word in said
    return said


def safetensors_file(
    path: Path, header: dict[str, Any] | bytes, data: bytes, length: int = -1
) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length < 0 else length) + text + data)
    return path


class TestWriting:
    @pytest.mark.parametrize(
        "dtype",
        [
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.uint8,
            torch.bool,
        ],
    )
    @pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4, 1)])
    def test_comes_back_as_it_was(
        self, tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        held = {"t": (torch.randn(shape) * 3).to(dtype)}
        files.write(tmp_path / "w.safetensors", held, {})
        assert same(files.read(tmp_path / "w.safetensors"), held)

    def test_any_layout_of_memory(self, tmp_path: Path) -> None:
        whole = torch.arange(24.0).view(2, 3, 4)
        held = {
            "transposed": whole.transpose(0, 2),
            "strided": whole[:, ::2],
            "channels_last": torch.arange(48.0)
            .view(2, 3, 2, 4)
            .to(memory_format=torch.channels_last),
            "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 5),
            "parameter": torch.nn.Parameter(torch.ones(2)),
        }
        files.write(tmp_path / "w.safetensors", held, {})
        read = files.read(tmp_path / "w.safetensors")
        assert {name: tensor.tolist() for name, tensor in read.items()} == {
            name: tensor.tolist() for name, tensor in held.items()
        }

    def test_names_that_share_memory_each_get_their_own(self, tmp_path: Path) -> None:
        whole = torch.arange(6.0)
        held = {"tied": whole, "again": whole, "head": whole[:4], "tail": whole[2:]}
        files.write(tmp_path / "w.safetensors", held, {})
        assert same(files.read(tmp_path / "w.safetensors"), held)

    def test_does_not_change_what_it_is_given(self, tmp_path: Path) -> None:
        whole = torch.arange(6.0).requires_grad_()
        held = {"tied": whole, "again": whole}
        files.write(tmp_path / "w.safetensors", held, {})
        assert held["tied"] is held["again"] is whole
        assert whole.requires_grad

    def test_other_programs_read_it(self, tmp_path: Path) -> None:
        files.write(tmp_path / "w.safetensors", tensors(), {"score": 0.5})
        assert same(safetensors.torch.load_file(tmp_path / "w.safetensors"), tensors())

    def test_the_same_weights_give_the_same_bytes(self, tmp_path: Path) -> None:
        """The digest of an initialisation names it: it must not depend on a hash's order."""
        about = {"b": [1, None, {"y": 1, "x": 2}], "a": "ä"}
        path, written = tmp_path / "w.safetensors", set()
        for turn in range(30):
            items = list(tensors().items())
            ordered = dict(items if turn % 2 else reversed(items))
            told = dict(about.items() if turn % 3 else reversed(list(about.items())))
            files.write(path, ordered, told)
            written.add(path.read_bytes())
        assert len(written) == 1

    def test_other_weights_and_other_metadata_give_other_bytes(self, tmp_path: Path) -> None:
        changed = tensors()
        changed["a"][4] += 1e-9
        written = set()
        for held, about in [(tensors(), {}), (changed, {}), (tensors(), {"score": 1})]:
            files.write(tmp_path / "w.safetensors", held, about)
            written.add((tmp_path / "w.safetensors").read_bytes())
        assert len(written) == 3

    def test_replaces_what_was_there(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folder" / "w.safetensors"
        files.write(path, {"old": torch.ones(2)}, {"old": True})
        files.write(path, tensors(), {"new": True})
        assert same(files.read(path), tensors())
        assert files.about(path) == {"new": True}
        assert [file.name for file in path.parent.iterdir()] == ["w.safetensors"]

    @pytest.mark.parametrize("broken", [{"when": object()}, {"who": {1, 2}}])
    def test_what_json_cannot_hold_leaves_the_old_file(
        self, tmp_path: Path, broken: dict[str, Any]
    ) -> None:
        path = tmp_path / "w.safetensors"
        files.write(path, tensors(), {"kept": True})
        with pytest.raises(TypeError):
            files.write(path, {"other": torch.ones(1)}, broken)
        assert files.about(path) == {"kept": True}
        assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StoreError, match=r"file/w\.safetensors: can't be written"):
            files.write(tmp_path / "file" / "w.safetensors", tensors(), {})
        assert [file.name for file in tmp_path.iterdir()] == ["file"]


class TestReadingSafetensors:
    @pytest.mark.parametrize(
        "about", [{}, {"score": 0.1, "model": {"classes": ["ä", "b"]}, "none": None, "n": [1, 2]}]
    )
    def test_what_it_says_of_itself(self, tmp_path: Path, about: dict[str, Any]) -> None:
        files.write(tmp_path / "w.safetensors", tensors(), about)
        assert files.about(tmp_path / "w.safetensors") == about

    @pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"author": "someone"}])
    def test_a_file_from_elsewhere_says_nothing(
        self, tmp_path: Path, metadata: dict[str, str] | None
    ) -> None:
        path = tmp_path / "w.safetensors"
        safetensors.torch.save_file(tensors(), path, metadata=metadata)
        assert files.about(path) == {}
        assert same(files.read(path), tensors())

    @pytest.mark.parametrize(
        ("text", "word"),
        [("{", "not JSON"), ("[1]", "not a JSON object"), ("3", "not a JSON object")],
    )
    def test_metadata_that_is_no_object(self, tmp_path: Path, text: str, word: str) -> None:
        path = tmp_path / "w.safetensors"
        safetensors.torch.save_file(tensors(), path, metadata={files.METADATA_KEY: text})
        refused(files.about, path, "metadata", word)

    def test_metadata_nested_too_deep_to_parse(self, tmp_path: Path) -> None:
        path = tmp_path / "w.safetensors"
        deep = "[" * 200_000 + "]" * 200_000
        safetensors.torch.save_file(tensors(), path, metadata={files.METADATA_KEY: deep})
        refused(files.about, path, "metadata")

    def test_shapes(self, tmp_path: Path) -> None:
        files.write(tmp_path / "w.safetensors", {**tensors(), "none": torch.zeros(0, 3)}, {})
        assert files.shapes(tmp_path / "w.safetensors") == {
            "conv.weight": (4, 3, 2, 2),
            "bn.num_batches_tracked": (),
            "a": (5,),
            "none": (0, 3),
        }

    def test_streams_by_name(self, tmp_path: Path) -> None:
        files.write(tmp_path / "w.safetensors", tensors(), {})
        streamed = list(files.stream(tmp_path / "w.safetensors"))
        assert [name for name, _ in streamed] == sorted(tensors())
        assert same(dict(streamed), tensors())

    @pytest.mark.parametrize("read", READERS)
    @pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 40, -1])
    def test_a_truncated_file(self, tmp_path: Path, read: Callable[[Path], Any], kept: int) -> None:
        path = tmp_path / "w.safetensors"
        files.write(path, tensors(), {"score": 1})
        path.write_bytes(path.read_bytes()[:kept])
        refused(read, path, "not a whole safetensors file", "; copy or make it again")

    @pytest.mark.parametrize("read", READERS)
    @pytest.mark.parametrize(
        ("entries", "data"),
        [
            ({"a": ("F32", [2], [0, 8])}, 4),  # ends after the file
            ({"a": ("F32", [2], [0, 8])}, 12),  # leaves bytes that belong to nobody
            ({"a": ("F32", [3], [0, 8])}, 8),  # shape and bytes differ
            ({"a": ("F32", [2], [8, 0])}, 8),  # ends before it begins
            ({"a": ("F32", [2], [0, 8]), "b": ("F32", [2], [4, 12])}, 12),  # overlap
            ({"a": ("F32", [2], [0, 8]), "b": ("F32", [2], [16, 24])}, 24),  # a hole
            ({"a": ("F32", [2**62, 4], [0, 8])}, 8),  # overflows when multiplied
        ],
    )
    def test_a_header_that_lies(
        self,
        tmp_path: Path,
        read: Callable[[Path], Any],
        entries: dict[str, tuple[str, list[int], list[int]]],
        data: int,
    ) -> None:
        header = {
            name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            for name, (dtype, shape, offsets) in entries.items()
        }
        path = safetensors_file(tmp_path / "w.safetensors", header, bytes(data))
        refused(read, path, "not a whole safetensors file")

    @pytest.mark.parametrize("read", READERS)
    @pytest.mark.parametrize(
        ("header", "length"),
        [(b"{}", 2**63), (b"{}", 200), (b"{]", -1), (b"\xff\xfe", -1), (b"[1, 2]", -1)],
    )
    def test_a_header_that_is_none(
        self, tmp_path: Path, read: Callable[[Path], Any], header: bytes, length: int
    ) -> None:
        path = safetensors_file(tmp_path / "w.safetensors", header, b"", length)
        refused(read, path, "not a whole safetensors file")

    @pytest.mark.parametrize("kind", ["F6_E2M3", "F99"])
    def test_a_kind_of_numbers_that_is_not_known(self, tmp_path: Path, kind: str) -> None:
        header = {"odd": {"dtype": kind, "shape": [4], "data_offsets": [0, 3]}}
        path = safetensors_file(tmp_path / "w.safetensors", header, bytes(3))
        refused(files.read, path, "'odd'", repr(kind), "known are BOOL, U8")

    @pytest.mark.parametrize("read", [*READERS, files.digest])
    @pytest.mark.parametrize("ending", ["safetensors", "pt", "pth"])
    def test_a_missing_file_and_a_folder(
        self, tmp_path: Path, read: Callable[[Path], Any], ending: str
    ) -> None:
        refused(read, tmp_path / f"missing.{ending}")
        (tmp_path / f"folder.{ending}").mkdir()
        refused(read, tmp_path / f"folder.{ending}")


class TestReadingPickles:
    @pytest.mark.parametrize("ending", ["pt", "pth", "bin", "ckpt", "pkl"])
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize(
        "wrapping", [None, "state_dict", "model_state_dict", "model_dict", "model"]
    )
    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_every_wrapping(
        self, tmp_path: Path, ending: str, zipped: bool, wrapping: str | None, prefix: str
    ) -> None:
        held: Any = OrderedDict((prefix + name, tensor) for name, tensor in tensors().items())
        if wrapping:
            # The optimiser and the epoch are what makes a checkpoint more than weights.
            held = {"epoch": 3, "optimizer": {"lr": 0.1, "state": {}}, wrapping: held}
        path = tmp_path / f"w.{ending}"
        torch.save(held, path, _use_new_zipfile_serialization=zipped)
        assert same(files.read(path), tensors())

    def test_parameters_are_tensors(self, tmp_path: Path) -> None:
        torch.save({"w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "w.pt")
        assert files.read(tmp_path / "w.pt")["w"].tolist() == [1.0, 1.0]

    def test_a_tensor_called_like_a_wrapping(self, tmp_path: Path) -> None:
        held = {"model": torch.ones(2), "model.weight": torch.zeros(1)}
        torch.save(held, tmp_path / "w.pt")
        assert same(files.read(tmp_path / "w.pt"), held)

    def test_only_the_outer_module_is_unwrapped(self, tmp_path: Path) -> None:
        """And only where every name has it: one of a part that is called so stays."""
        path = tmp_path / "w.pt"
        torch.save({"module.module.w": torch.ones(1), "module.a.module.b": torch.ones(2)}, path)
        assert files.read(path).keys() == {"module.w", "a.module.b"}
        torch.save({"module.module.w": torch.ones(1), "a.module.b": torch.ones(2)}, path)
        assert files.read(path).keys() == {"module.module.w", "a.module.b"}

    def test_names_that_become_the_same_are_refused(self, tmp_path: Path) -> None:
        torch.save({"module.w": torch.ones(1), "w": torch.zeros(1)}, tmp_path / "w.pt")
        refused(files.read, tmp_path / "w.pt", "two tensors of one name")

    @pytest.mark.parametrize(
        ("held", "words"),
        [
            ([torch.ones(1)], ["holds a list"]),
            (torch.ones(1), ["holds a Tensor"]),
            ({}, ["it is empty"]),
            ({"state_dict": {}}, ["it has only state_dict"]),
            ({"epoch": 3}, ["it has only epoch"]),
            ({"w": torch.ones(1), "more": [torch.ones(1)]}, ["'more' is no tensor"]),
            (
                {"state_dict": {"w": torch.ones(1), "extra": {"x": torch.ones(1)}}},
                ["'extra' is no tensor"],
            ),
        ],
    )
    def test_what_is_no_dictionary_of_tensors(
        self, tmp_path: Path, held: Any, words: list[str]
    ) -> None:
        torch.save(held, tmp_path / "w.pt")
        refused(files.read, tmp_path / "w.pt", *words)

    @pytest.mark.parametrize(
        "held",
        [
            {"w": torch.ones(1), "epoch": 3},
            {"state_dict": {"w": torch.ones(1), "extra": [1]}},
        ],
    )
    def test_what_is_no_tensor_does_not_get_in(self, tmp_path: Path, held: Any) -> None:
        torch.save(held, tmp_path / "w.pt")
        assert same(files.read(tmp_path / "w.pt"), {"w": torch.ones(1)})

    @pytest.mark.parametrize("zipped", [True, False, None])
    def test_a_pickle_that_would_run_code_does_not(
        self, tmp_path: Path, zipped: bool | None
    ) -> None:
        proof = tmp_path / "proof"

        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (proof,)

        held = {"state_dict": {"w": torch.ones(1), "x": Evil()}}
        path = tmp_path / "w.pth"
        if zipped is None:
            path.write_bytes(pickle.dumps(held))
        else:
            torch.save(held, path, _use_new_zipfile_serialization=zipped)
        refused(files.read, path, "can't be read safely", "safetensors.torch.save_file")
        assert not proof.exists()
        # The pickle is a real one: read without care, it runs.
        torch.load(path, weights_only=False) if zipped is not None else pickle.loads(
            path.read_bytes()
        )
        assert proof.exists()

    @pytest.mark.parametrize("protocol", range(6))
    def test_a_plain_pickle_is_refused_without_a_warning(
        self, tmp_path: Path, protocol: int
    ) -> None:
        (tmp_path / "w.pkl").write_bytes(pickle.dumps({"w": [1.0]}, protocol=protocol))
        refused(files.read, tmp_path / "w.pkl")

    @pytest.mark.parametrize(
        ("content", "word"),
        [
            (b"", "empty"),
            (b"\0", "can't be read safely"),
            (b"PK\x03\x04", "not a whole zip file"),
            (b"hello", "can't be read safely"),
            (b"\x80\x02", "can't be read safely"),
            (b"0" * 99, "can't be read safely"),
        ],
    )
    def test_garbage(self, tmp_path: Path, content: bytes, word: str) -> None:
        (tmp_path / "w.pt").write_bytes(content)
        refused(files.read, tmp_path / "w.pt", word)


def _whole(kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w"
        if kind == "safetensors":
            files.write(path, tensors(), {"score": 0.5})
        else:
            torch.save(
                {"state_dict": tensors()}, path, _use_new_zipfile_serialization=kind == "zip"
            )
        return path.read_bytes()


WHOLE = {kind: _whole(kind) for kind in ("safetensors", "zip", "legacy")}


def read_or_refused(path: Path) -> None:
    """Tensors or a `WeightsError`, never anything else."""
    try:
        held = files.read(path)
    except WeightsError as error:
        held, said = {}, str(error)
    else:
        said = f"{path}: "
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert all(isinstance(tensor, torch.Tensor) for tensor in held.values())


@pytest.mark.parametrize(("kind", "every"), [("safetensors", 2), ("legacy", 1), ("zip", 4)])
def test_damage_from_the_first_byte_to_the_last(tmp_path: Path, kind: str, every: int) -> None:
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pt")
    for place in range(0, len(WHOLE[kind]), every):
        damaged = bytearray(WHOLE[kind])
        damaged[place] ^= 0x15
        path.write_bytes(damaged)
        read_or_refused(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(WHOLE)))
def test_whatever_is_damaged_is_read_or_refused(data: st.DataObject, kind: str) -> None:
    """Bytes changed or cut anywhere."""
    content = bytearray(WHOLE[kind])
    at = st.integers(0, min(len(content), 800) - 1)
    for place, value in data.draw(st.lists(st.tuples(at, st.integers(0, 255)), max_size=3)):
        content[place] = value
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("w.safetensors" if kind == "safetensors" else "w.pt")
        path.write_bytes(content)
        read_or_refused(path)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=80))
def test_no_bytes_pass_for_a_pickle(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.pt"
        path.write_bytes(content)
        with pytest.raises(WeightsError):
            files.read(path)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) * 2 + 5])
def test_digest(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    (tmp_path / "w").write_bytes(content)
    assert files.digest(tmp_path / "w") == hashlib.sha256(content).hexdigest()
