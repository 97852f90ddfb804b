"""Whatever bytes a file has: weights, or one line that says what is wrong with it.

The readers are given files that were cut, changed, spliced and made up. They may open one only if
everything in it can then be looked at; and what is safetensors for us must be the same for the
package of that name.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diwa.errors import WeightsError
from diwa.weights.source import Source, open_source

SAFE, ZIP, LEGACY = "w.safetensors", "zip.pt", "legacy.pt"
INDEX, OLD_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def tensors() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(3)
    held = {
        "conv.weight": torch.randn(4, 3, 2, generator=chance),
        "half": torch.randn(3, generator=chance).to(torch.bfloat16),
        "count": torch.tensor(7),
    }
    return {**held, "turned": held["conv.weight"].transpose(0, 2)}


def _whole(kind: str) -> bytes:
    if kind == SAFE:
        held = {name: tensor.contiguous() for name, tensor in tensors().items()}
        return safetensors.torch.save(held, {"diwa": '{"tied": {"half": "count"}}', "who": "ä"})
    buffer = io.BytesIO()
    held = {"epoch": 3, "lr": np.float64(0.1), "state_dict": tensors()}
    torch.save(held, buffer, _use_new_zipfile_serialization=kind == ZIP)
    return buffer.getvalue()


WHOLE = {kind: _whole(kind) for kind in (SAFE, ZIP, LEGACY)}


@pytest.fixture(scope="module", autouse=True)
def _memory_is_bounded() -> Iterator[None]:
    """A reader that believes a length gets no memory for it, and fails here, not the machine."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (4 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def settle(path: Path) -> Source | None:
    """The source with everything about it looked at, or None for a refusal in one line."""
    try:
        source = open_source(path)
        for name, info in source.tensors.items():
            array = source.array(name)
            assert array.shape == info.shape
            assert array.dtype == info.kind.numpy()
            assert array.nbytes == info.bytes
            array.tobytes()
        assert all(isinstance(text, str) for pair in source.metadata.items() for text in pair)
        assert source.aliases.keys() <= {*source.tensors, *source.metadata}
        assert set(source.aliases.values()) <= source.tensors.keys()
        assert len(source.fingerprint) == 32
    except WeightsError as error:
        said = str(error)
        assert said.startswith(str(path))
        assert "\n" not in said
        assert len(said) < 2000
        said.encode()
        return None
    return source


def settle_bytes(place: Path, kind: str, content: bytes | bytearray) -> Source | None:
    path = place / kind
    path.unlink(missing_ok=True)  # others may still look at the old one
    path.write_bytes(content)
    source = settle(path)
    if kind == SAFE and source is not None:
        theirs = safetensors.torch.load(bytes(content))
        assert theirs.keys() == source.tensors.keys()
        for name, tensor in theirs.items():
            flat = tensor.contiguous().reshape(-1)
            same = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
            assert source.array(name).tobytes() == same
    return source


# -- damage to whole files


@pytest.mark.parametrize("kind", WHOLE)
def test_the_undamaged_ones_are_read(place: Path, kind: str) -> None:
    source = settle_bytes(place, kind, WHOLE[kind])
    assert source is not None
    for name, tensor in tensors().items():
        assert source.array(name).astype(float).tolist() == tensor.double().tolist()


@pytest.mark.parametrize("kind", WHOLE)
def test_cut_anywhere(place: Path, kind: str) -> None:
    """Every place in the first part, where the lengths are, and many after that."""
    length = len(WHOLE[kind])
    for kept in [*range(min(700, length)), *range(700, length, 7)]:
        assert settle_bytes(place, kind, WHOLE[kind][:kept]) is None, kept


@pytest.mark.parametrize(("kind", "every"), [(SAFE, 1), (LEGACY, 2), (ZIP, 4)])
@pytest.mark.parametrize("change", [0x01, 0x15, 0x80, 0xFF])
def test_changed_anywhere(place: Path, kind: str, every: int, change: int) -> None:
    for number in range(change % every, len(WHOLE[kind]), every):
        damaged = bytearray(WHOLE[kind])
        damaged[number] ^= change
        settle_bytes(place, kind, damaged)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("more", [b"\0", b"\n", WHOLE[SAFE], b"PK\x05\x06" + bytes(18)])
def test_something_after_the_end(place: Path, kind: str, more: bytes) -> None:
    found = settle_bytes(place, kind, WHOLE[kind] + more)
    assert kind != SAFE or found is None


#: Numbers that readers fall over: limits of every width, and their neighbours.
ODD = sorted(
    {(1 << n) + more for n in (0, 7, 8, 15, 16, 31, 32, 33, 62, 63) for more in (-1, 0, 1)}
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, head: int = 900) -> bytes:
    """Some bytes set, written over with a number, copied elsewhere, taken out or put in."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(min(len(content), head) - 1, 0)))
        match draw(st.integers(0, 5)):
            case 0:
                content[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                number = draw(st.sampled_from(ODD)) % (1 << 64)
                width = draw(st.sampled_from([1, 2, 4, 8]))
                content[at : at + width] = number.to_bytes(8, "little")[:width]
            case 2:
                start = draw(st.integers(0, len(content)))
                piece = content[start : start + draw(st.integers(1, 40))]
                content[at : at + len(piece)] = piece
            case 3:
                del content[at : at + draw(st.integers(1, 40))]
            case 4:
                content[at:at] = draw(st.binary(max_size=20))
            case _:
                content = content[: draw(st.integers(0, len(content)))]
    return bytes(content)


COMMON = settings(
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@COMMON
@given(data=st.data(), kind=st.sampled_from(sorted(WHOLE)))
def test_damaged_in_several_ways(place: Path, data: st.DataObject, kind: str) -> None:
    settle_bytes(place, kind, data.draw(damaged(WHOLE[kind])))


@COMMON
@given(content=st.binary(max_size=200), kind=st.sampled_from([SAFE, ZIP, "x.bin", "x.ckpt"]))
@example(content=struct.pack("<Q", 2) + b"{}", kind="x.bin")
@example(content=b"PK\x05\x06" + bytes(18), kind=ZIP)
@example(content=pickle.dumps({"w": [1.0]}), kind=ZIP)
@example(content=b"\x80\x02]" + b"]" * 100 + b".", kind=ZIP)
@example(content=b"\x80\x02r\xff\xff\xff\xff.", kind=ZIP)
@example(content=b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.", kind=ZIP)
def test_bytes_from_nowhere(place: Path, content: bytes, kind: str) -> None:
    settle_bytes(place, kind, content)


# -- safetensors with a whole frame and a made-up header

COUNTS = st.one_of(st.integers(-2, 12), st.sampled_from(ODD))
SHAPES = st.lists(COUNTS, max_size=4)
LEAVES = st.one_of(
    st.none(), st.booleans(), COUNTS, st.floats(), st.text(max_size=5), st.sampled_from(ODD)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS_OF = st.sampled_from(
    ["F32", "F64", "BF16", "F8_E4M3", "U8", "I64", "BOOL", "F4", "C64", "f32"]
)
ENTRIES = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {
            "dtype": st.one_of(KINDS_OF, KINDS_OF, ANYTHING),
            "shape": st.one_of(SHAPES, SHAPES, ANYTHING),
            "data_offsets": st.one_of(st.lists(COUNTS, min_size=2, max_size=2), ANYTHING),
        }
    ),
)
HEADERS = st.dictionaries(
    st.one_of(st.text(max_size=5), st.just("__metadata__")), ENTRIES, max_size=4
)


def framed(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@COMMON
@given(header=HEADERS, data=st.binary(max_size=40))
@example(header={"a": {"dtype": "U8", "shape": [0, 2**62], "data_offsets": [0, 0]}}, data=b"")
@example(header={"a": {"dtype": "U8", "shape": [0, 2**63 - 1], "data_offsets": [0, 0]}}, data=b"")
@example(header={"a": {"dtype": "F64", "shape": [2**62, 0], "data_offsets": [0, 0]}}, data=b"")
@example(header={"a": {"dtype": "U8", "shape": [1] * 40, "data_offsets": [0, 1]}}, data=b"1")
@example(header={"a": {"dtype": "x" * 10**6, "shape": [], "data_offsets": [0, 4]}}, data=bytes(4))
@example(header={"a": ["x" * 10**6]}, data=b"")
@example(header={"x" * 10**6: 1}, data=b"")
@example(header={"__metadata__": {"a\ud800": "\ud800"}}, data=b"")
@example(header={"__metadata__": {"diwa": '{"tied": {"a": ["a"]}}'}}, data=b"")
def test_made_up_headers(place: Path, header: dict[str, Any], data: bytes) -> None:
    settle_bytes(place, SAFE, framed(header, data))


@COMMON
@given(
    shapes=st.lists(st.tuples(KINDS_OF, st.lists(st.integers(0, 3), max_size=3)), max_size=4),
    wrong=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(-9, 9))),
)
def test_headers_that_nearly_fit(
    place: Path, shapes: list[tuple[str, list[int]]], wrong: tuple[int, int, int] | None
) -> None:
    """Right but for one offset: they are read if and only if none is wrong."""
    width = {"F32": 4, "F64": 8, "BF16": 2, "I64": 8}
    shapes = [(kind, shape) for kind, shape in shapes if kind in {*width, "U8", "BOOL", "F8_E4M3"}]
    header, at = {}, 0
    for number, (kind, shape) in enumerate(shapes):
        end = at + int(np.prod(shape, dtype=int)) * width.get(kind, 1)
        header[f"t{number}"] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    right = json.dumps(header)
    if wrong and wrong[0] < len(shapes):
        header[f"t{wrong[0]}"]["data_offsets"][wrong[1]] += wrong[2]
    found = settle_bytes(place, SAFE, framed(header, bytes(at)))
    if json.dumps(header) == right:
        assert found is not None
        assert list(found.tensors) == list(header) or 0 in [
            info.bytes for info in found.tensors.values()
        ]
    else:
        assert found is None


# -- sharded folders


def folder_of(place: Path, index: bytes, name: str = INDEX) -> Path:
    folder = place / "folder"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for shard in ("a", "b"):
        if name == INDEX:
            held = {shard: np.ones(2, dtype=np.float32)}
            safetensors.numpy.save_file(held, folder / f"{shard}.safetensors")
        else:
            torch.save({shard: torch.ones(2)}, folder / f"{shard}.bin")
    (folder / name).write_bytes(index)
    return folder


GOOD = {
    INDEX: {"metadata": {"x": "y"}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}},
    OLD_INDEX: {"metadata": {"x": "y"}, "weight_map": {"a": "a.bin", "b": "b.bin"}},
}


@pytest.mark.parametrize("name", GOOD)
def test_the_undamaged_index_is_read(place: Path, name: str) -> None:
    source = settle(folder_of(place, json.dumps(GOOD[name]).encode(), name))
    assert source is not None
    assert set(source.tensors) == {"a", "b"}


@COMMON
@given(data=st.data(), name=st.sampled_from(sorted(GOOD)))
def test_damaged_indices(place: Path, data: st.DataObject, name: str) -> None:
    settle(folder_of(place, data.draw(damaged(json.dumps(GOOD[name]).encode())), name))


@COMMON
@given(
    name=st.sampled_from(sorted(GOOD)),
    index=st.one_of(
        ANYTHING,
        st.fixed_dictionaries(
            {"weight_map": ANYTHING}, optional={"metadata": ANYTHING, "more": ANYTHING}
        ),
        st.fixed_dictionaries(
            {
                "weight_map": st.dictionaries(
                    st.sampled_from(["a", "b", "c"]),
                    st.one_of(st.sampled_from(["a.safetensors", "b.bin", "..", "/"]), ANYTHING),
                )
            }
        ),
    ),
)
@example(name=INDEX, index={"weight_map": {"a": "x\ny"}})
@example(name=INDEX, index={"weight_map": {"a": "\ud800"}})
@example(name=INDEX, index={"weight_map": {"a": "x\0y"}})
@example(name=INDEX, index={"weight_map": {"a": "x" * 100_000}})
@example(name=INDEX, index={"weight_map": {"x" * 100_000: "a.safetensors"}})
@example(name=INDEX, index={"weight_map": {"\ud800": "a.safetensors"}})
@example(name=INDEX, index={"weight_map": {"a": ["x" * 100_000]}})
def test_made_up_indices(place: Path, name: str, index: Any) -> None:
    settle(folder_of(place, json.dumps(index).encode(), name))


# -- pickles in a whole frame


def rezipped(pickled: bytes, records: dict[str, bytes] | None = None) -> bytes:
    """The zip file with another pickle, so that damage is not caught by the frame."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(WHOLE[ZIP])) as old, zipfile.ZipFile(buffer, "w") as new:
        for entry in old.infolist():
            content = pickled if entry.filename.endswith("/data.pkl") else old.read(entry)
            new.writestr(entry.filename, (records or {}).get(entry.filename, content))
    return buffer.getvalue()


with zipfile.ZipFile(io.BytesIO(WHOLE[ZIP])) as _archive:
    PICKLE = _archive.read(next(n for n in _archive.namelist() if n.endswith("/data.pkl")))


def test_a_pickle_in_another_frame_is_read(place: Path) -> None:
    assert settle_bytes(place, ZIP, rezipped(PICKLE)) is not None


@pytest.mark.parametrize("change", [0x01, 0x15, 0x80, 0xFF])
def test_pickles_changed_anywhere(place: Path, change: int) -> None:
    for number in range(len(PICKLE)):
        content = bytearray(PICKLE)
        content[number] ^= change
        settle_bytes(place, ZIP, rezipped(bytes(content)))


@COMMON
@given(content=damaged(PICKLE))
def test_pickles_damaged_in_several_ways(place: Path, content: bytes) -> None:
    settle_bytes(place, ZIP, rezipped(content))


#: Instructions that torch's reader knows, with arguments of the right length.
INSTRUCTIONS = st.one_of(
    st.sampled_from([bytes([code]) for code in b"()]}l.2RbtsuNQaeq\x81\x85\x86\x87\x88\x89"]),
    st.builds(lambda n: b"K" + bytes([n]), st.integers(0, 255)),
    st.builds(lambda n: b"J" + struct.pack("<i", n), st.integers(-(2**31), 2**31 - 1)),
    st.builds(lambda n: b"\x8a\x09" + n.to_bytes(9, "little", signed=True), st.sampled_from(ODD)),
    st.builds(lambda n: b"h" + bytes([n]), st.integers(0, 40)),
    st.builds(lambda n: b"r" + struct.pack("<I", n), st.sampled_from([0, 9, 2**31, 2**32 - 1])),
    st.builds(
        lambda name: b"c" + name.replace(" ", "\n").encode() + b"\n",
        st.sampled_from(
            [
                "torch._utils _rebuild_tensor_v2",
                "torch._utils _rebuild_parameter",
                "torch FloatStorage",
                "torch Size",
                "torch.storage UntypedStorage",
                "torch Tensor",
                "collections OrderedDict",
                "builtins bytearray",
                "numpy dtype",
                "numpy.core.multiarray scalar",
                "argparse Namespace",
                "posix system",
            ]
        ),
    ),
)


@COMMON
@given(
    more=st.lists(INSTRUCTIONS, min_size=1, max_size=12),
    at=st.integers(2, len(PICKLE) - 1),
)
@example(more=[b"h\0", b"s"], at=len(PICKLE) - 1)
def test_pickles_with_more_instructions(place: Path, more: list[bytes], at: int) -> None:
    settle_bytes(place, ZIP, rezipped(PICKLE[:at] + b"".join(more) + PICKLE[at:]))


@pytest.mark.parametrize("depth", [100, 10_000, 100_000])
def test_things_within_things(place: Path, depth: int) -> None:
    """Deeper than Python's own stack."""
    key = b"X\1\0\0\0a"
    lists = b"]" * depth + b"a" * (depth - 1)
    dicts = (b"}" + key) * depth + b"N" + b"s" * depth
    tuples = b")" + b"\x85" * depth
    for inner in (lists, dicts, tuples):
        settle_bytes(place, ZIP, rezipped(b"\x80\x02" + inner + b"."))
        named = b"X\3\0\0\0odd" + inner + b"s."
        settle_bytes(place, ZIP, rezipped(PICKLE[:-1] + named))


def test_pairs_of_pairs_a_hundred_times(place: Path) -> None:
    """Small in memory, where each holds the one before twice; endless for who walks through it."""
    steps = b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(100, 200))
    named = b"X\3\0\0\0odd)" + steps + b"s."
    assert settle_bytes(place, ZIP, rezipped(PICKLE[:-1] + named)) is not None
