"""Headers: read without trust, and against the safetensors package in both directions."""

from __future__ import annotations

import gc
import json
import struct
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diwa.errors import WeightsError
from diwa.weights.header import Header, TensorInfo, check_name, layout, read_header
from diwa.weights.kinds import KINDS

PLACE = Path("w.safetensors")


def whole(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(
    shape: list[Any] | Any, offsets: list[Any] | Any, dtype: Any = "F32", **more: Any
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.safetensors"


def read(path: Path, content: bytes) -> Header:
    path.write_bytes(content)
    with path.open("rb") as file:
        return read_header(file, path)


def refused(path: Path, content: bytes, *words: str) -> None:
    with pytest.raises(WeightsError) as caught:
        read(path, content)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    for word in words:
        assert word in said, said


# -- reading


def test_what_a_header_says(path: Path) -> None:
    said = {
        "b": one([2, 1], [4, 12]),
        "__metadata__": {"format": "pt", "who": "ä"},
        "a": one([], [0, 4], "I32"),
        "none": one([0, 3], [12, 12], "BF16"),
    }
    header = read(path, whole(said, bytes(12)))
    start = path.stat().st_size - 12
    assert header.metadata == {"format": "pt", "who": "ä"}
    assert list(header.tensors) == ["a", "b", "none"], "in the order of the file"
    starts = {name: header.start(name) for name in header.tensors}
    assert starts == {"a": start, "b": start + 4, "none": start + 12}
    assert header.tensors["b"] == TensorInfo(KINDS["F32"], (2, 1))
    assert [info.size for info in header.tensors.values()] == [1, 2, 0]
    assert [info.bytes for info in header.tensors.values()] == [4, 8, 0]
    assert str(header.tensors["none"]) == "BF16 (0, 3)"


def test_tensors_without_numbers_may_lie_anywhere_in_between(path: Path) -> None:
    said = {
        "x": one([0], [0, 0]),
        "a": one([1], [0, 4]),
        "y": one([0], [4, 4]),
        "b": one([1], [4, 8]),
    }
    assert set(read(path, whole(said, bytes(8))).tensors) == set(said)


def test_nothing_at_all(path: Path) -> None:
    assert read(path, whole({})).tensors == {}
    assert read(path, whole({"__metadata__": {"a": "b"}})).metadata == {"a": "b"}


@pytest.mark.parametrize("size", range(8))
def test_shorter_than_a_length(path: Path, size: int) -> None:
    refused(path, bytes(size), "not a whole safetensors file", f"{size} bytes")


@pytest.mark.parametrize("length", [3, 100, 10**8 + 1, 2**31, 2**32 + 2, 2**63, 2**64 - 1])
def test_a_length_that_lies(path: Path, length: int) -> None:
    """Neither followed past the end of the file nor given memory for."""
    refused(path, whole(b"{}", length=length), f"a header of {length} bytes in 10")


@pytest.mark.parametrize("length", [0, 1])
def test_a_length_that_is_too_short(path: Path, length: int) -> None:
    refused(path, whole(b"{}", length=length), "not a whole safetensors file")


@pytest.mark.parametrize(
    ("entries", "data"),
    [
        ({"a": one([2], [0, 8])}, 4),  # ends after the file
        ({"a": one([2], [0, 8])}, 12),  # leaves bytes that belong to nobody
        ({"a": one([3], [0, 8])}, 8),  # shape and bytes differ
        ({"a": one([2], [8, 0])}, 8),  # ends before it begins
        ({"a": one([2], [4, 12])}, 12),  # starts late
        ({"a": one([2], [0, 8]), "b": one([2], [4, 12])}, 12),  # overlap
        ({"a": one([2], [0, 8]), "b": one([2], [0, 8])}, 8),  # the same place
        ({"a": one([2], [0, 8]), "b": one([2], [16, 24])}, 24),  # a hole
        ({"a": one([2**62, 4], [0, 8])}, 8),  # 2**66 bytes, which is 0 in 64 bits
        ({"a": one([2**64], [0, 0])}, 0),
        ({"a": one([-1, -2], [0, 8])}, 8),
        ({"a": one([-2], [0, -8])}, 8),
        ({"a": one([2], [0, 2**64 + 8])}, 8),
        ({"a": one([2], [0, 8], "F99")}, 8),
        ({"a": one([2], [0, 8], None)}, 8),
        ({"a": one([2], [0, 8], ["F32"])}, 8),
        ({"a": one([2], [0, 8], {})}, 8),
        ({"a": one([2.0], [0, 8])}, 8),
        ({"a": one([True, 2], [0, 8])}, 8),
        ({"a": one(["2"], [0, 8])}, 8),
        ({"a": one([[2]], [0, 8])}, 8),
        ({"a": one(2, [0, 8])}, 8),
        ({"a": one(None, [0, 8])}, 8),
        ({"a": one("2", [0, 8])}, 8),
        ({"a": one({"2": 2}, [0, 8])}, 8),
        ({"a": one([2], [0])}, 8),
        ({"a": one([2], [0, 8, 8])}, 8),
        ({"a": one([2], [0.0, 8.0])}, 8),
        ({"a": one([2], ["0", "8"])}, 8),
        ({"a": one([2], None)}, 8),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8),
        ({"a": [1]}, 8),
        ({"a": None}, 8),
        ({"a": "F32"}, 8),
        ({"__metadata__": {"a": 1}}, 0),
        ({"__metadata__": {"a": None}}, 0),
        ({"__metadata__": {"a": {"b": "c"}}}, 0),
        ({"__metadata__": ["a"]}, 0),
        ({"__metadata__": "a"}, 0),
    ],
)
def test_what_cannot_be(path: Path, entries: dict[str, Any], data: int) -> None:
    refused(path, whole(entries, bytes(data)))
    # Nor does the safetensors package read it.
    with pytest.raises((safetensors.SafetensorError, OverflowError)):
        safetensors.torch.load_file(path)


@pytest.mark.parametrize(
    "entry",
    [
        one([1] * 65, [0, 4]),  # more dimensions than NumPy has
        one([1] * 33, [0, 4]),  # than NumPy had before version 2
        one([1], [0, 4], more=1),  # something that we would not keep
    ],
)
def test_what_only_the_package_reads(path: Path, entry: dict[str, Any]) -> None:
    refused(path, whole({"a": entry}, bytes(4)), "'a' is described as")
    safetensors.torch.load_file(path)


@pytest.mark.parametrize(
    "text",
    [
        b"{]",
        b"{",
        b"",
        b"null",
        b"[1, 2]",
        b"3",
        b'"text"',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"a": NaN}',
        b"{}{}",
        b"{}\0",
    ],
)
def test_headers_that_are_none(path: Path, text: bytes) -> None:
    refused(path, whole(text))


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":%s,"a":%s}',
        b'{"a":%s,"\\u0061":%s}',
        b'{"__metadata__":{"x":"y","x":"z"},"a":%s,"b":%s}',
        b'{"__metadata__":{},"__metadata__":{},"a":%s,"b":%s}',
    ],
)
def test_names_that_are_there_twice(path: Path, text: bytes) -> None:
    first, second = (json.dumps(one([1], [n, n + 4])).encode() for n in (0, 4))
    refused(path, whole(text % (first, second), bytes(8)), "twice")


def test_many_names_one_of_them_twice_take_no_longer_than_reading(path: Path) -> None:
    """With a search for the name per name, this would take minutes."""
    entry = json.dumps(one([0], [0, 0]))
    names = [f'"{n}":{entry}' for n in range(50_000)]
    content = whole(("{" + ",".join([*names, names[-1]]) + "}").encode())
    before = time.process_time()
    refused(path, content, "'49999' twice")
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    "name",
    ["\0", "a\nb", "\x1b[31m", "\x7f", "\x85", "\u200b", "\u202e", "\ufeff", "\ud800", "x" * 5000],
)
def test_hostile_names(path: Path, name: str) -> None:
    refused(path, whole({name: one([1], [0, 4])}, bytes(4)), "name")


@pytest.mark.parametrize("name", ["", "a", "ä", "重み", "a b", "../../x", "'", '"', "a/b\\c", "🙂"])
def test_odd_but_harmless_names(path: Path, name: str) -> None:
    check_name(name, PLACE)
    assert list(read(path, whole({name: one([1], [0, 4])}, bytes(4))).tensors) == [name]


@pytest.mark.parametrize("name", [3, None, b"a", ("a",), "__metadata__"])
def test_names_that_are_none(name: object) -> None:
    with pytest.raises(WeightsError, match=r"w\.safetensors: a tensor is called"):
        check_name(name, PLACE)


def test_a_name_that_is_none_is_told_in_one_line() -> None:
    """What a pickle has for a name may be a whole tensor."""

    class Long:
        def __repr__(self) -> str:
            return "1,\n" * 9

    with pytest.raises(WeightsError) as caught:
        check_name(Long(), PLACE)
    said = f"{PLACE}: a tensor is called by a Long; rename it and save again"
    assert str(caught.value) == said


# -- writing


def made(tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> bytes:
    text, _ = layout(tensors, metadata)
    return text + bytes(sum(info.bytes for info in tensors.values()))


INFOS = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs")), max_size=6).filter(
        lambda name: name != "__metadata__"
    ),
    st.builds(
        TensorInfo,
        st.sampled_from(list(KINDS.values())),
        st.lists(st.integers(0, 4), max_size=4).map(tuple),
    ),
    max_size=8,
)
TEXTS = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    max_size=4,
)


# -- equal headers


@pytest.mark.parametrize("metadata", [{}, {"__metadata__": {"who": "me"}}])
def test_files_with_the_same_tensors_share_their_layout(
    path: Path, metadata: dict[str, Any]
) -> None:
    tensors = {"a": one([1], [0, 4]), "b": one([2], [4, 12])}
    first = read(path, whole({**metadata, **tensors}, bytes(12)))
    again = read(path, whole({**metadata, **tensors}, bytes(12)))
    assert again.layout is first.layout
    assert again == first


def test_metadata_are_each_files_own(path: Path) -> None:
    tensors = {"a": one([1], [0, 4])}
    said = [{"who": "me"}, {"who": "somebody else", "format": "pt"}, {}]
    headers = [read(path, whole({"__metadata__": own, **tensors}, bytes(4))) for own in said]
    assert [header.metadata for header in headers] == said
    assert all(header.layout is headers[0].layout for header in headers)
    for header, own in zip(headers, said, strict=True):
        assert header.start("a") == len(whole({"__metadata__": own, **tensors}))


def test_metadata_behind_the_tensors_are_not_lost(path: Path) -> None:
    tensors = {"a": one([1], [0, 4])}
    for own in ({"who": "me"}, {"who": "you"}):
        header = read(path, whole({**tensors, "__metadata__": own}, bytes(4)))
        assert header.metadata == own
    escaped = whole({**tensors, "?": {"who": "he"}}, bytes(4)).replace(b"?", rb"\u005f_metadata__")
    escaped = struct.pack("<Q", len(escaped) - 12) + escaped[8:]
    for _ in range(2):
        assert read(path, escaped).metadata == {"who": "he"}


def test_a_shared_layout_makes_nobody_trusting(path: Path) -> None:
    """Whatever is refused alone is refused beside an open file with the same tensors."""
    tensors = json.dumps({"a": one([1], [0, 4])})
    plain = f'{{"__metadata__":{{"who":"me"}},{tensors[1:]}'.encode()
    opened = read(path, whole(plain, bytes(4)))
    refused(path, whole(plain, bytes(5)), "its header tells of")
    refused(path, whole(plain.replace(b'"me"', b"1"), bytes(4)), "metadata is not text")
    refused(path, whole(plain.replace(b'"me"', b'"me","who":""'), bytes(4)), "'who' twice")
    refused(path, whole(plain.replace(b'{"who":"me"}', b"[]"), bytes(4)), "metadata is not text")
    refused(path, whole(plain.replace(b'"me"', b'"\\ud800"'), bytes(4)), "not Unicode")
    refused(path, whole(plain.replace(b'"me"', b'"me'), bytes(4)), "no JSON")
    twice = plain.replace(b'"a"', b'"__metadata__":{},"a"')
    refused(path, whole(twice, bytes(4)), "'__metadata__' twice")
    alone = read(path, whole(tensors.encode(), bytes(4)))
    for odd in (
        b'{"__metadata__":{}' + tensors.encode(),
        b'{"__metadata__":{},' + tensors.encode(),
        plain[plain.index(b"},") + 1 :],
        tensors[1:].encode(),
        b"}",
    ):
        refused(path, whole(odd, bytes(4)), "no JSON")
    assert opened.tensors == alone.tensors == {"a": TensorInfo(KINDS["F32"], (1,))}


def test_a_layout_goes_with_its_last_file(path: Path) -> None:
    content = whole({"only here": one([1], [0, 4])}, bytes(4))
    gone = weakref.ref(read(path, content).layout)
    gc.collect()
    assert gone() is None
    assert list(read(path, content).tensors) == ["only here"]


@settings(deadline=None)
@given(infos=INFOS, metadata=TEXTS, chance=st.randoms(use_true_random=False))
def test_what_is_written_is_read_back_and_by_the_package(
    tmp_path_factory: pytest.TempPathFactory,
    infos: dict[str, TensorInfo],
    metadata: dict[str, str],
    chance: Any,
) -> None:
    path = tmp_path_factory.mktemp("layout") / "w.safetensors"
    content = made(infos, metadata)
    _, planned = layout(infos, metadata)
    header = read(path, content)
    assert header == planned
    assert header.tensors == infos
    assert header.metadata == metadata
    for name, info in infos.items():
        if info.size:
            assert header.start(name) % info.kind.bytes == 0, "aligned"
    with safetensors.safe_open(path, framework="pt") as file:
        assert (file.metadata() or {}) == metadata
        assert sorted(file.keys()) == sorted(infos)
        for name, info in infos.items():
            assert tuple(file.get_slice(name).get_shape()) == info.shape
            assert file.get_slice(name).get_dtype() == info.kind.code
    # Whatever order they come in, the bytes are the same.
    shuffled = list(infos.items())
    chance.shuffle(shuffled)
    assert made(dict(shuffled), dict(reversed(metadata.items()))) == content


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.code)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 5), (1, 1, 1)])
def test_every_kind_as_the_package_writes_it(path: Path, kind: Any, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 5).abs().to(getattr(torch, kind.torch))
    held = {"first": torch.ones(3, dtype=torch.uint8), "t": tensor}
    safetensors.torch.save_file(held, path, metadata={"format": "pt"})
    header = read(path, path.read_bytes())
    assert header.tensors["t"] == TensorInfo(kind, shape)
    assert header.metadata == {"format": "pt"}
    start, length = header.start("t"), header.tensors["t"].bytes
    found = np.frombuffer(path.read_bytes()[start : start + length], kind.numpy())
    assert found.astype(np.float64).tolist() == tensor.double().reshape(-1).tolist()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.code)
def test_every_kind_as_the_package_reads_it(path: Path, kind: Any) -> None:
    values = np.arange(6).astype(kind.numpy()).reshape(2, 3)
    infos = {"odd": TensorInfo(KINDS["U8"], (5,)), "t": TensorInfo(kind, (2, 3))}
    text, header = layout(infos, {})
    content = bytearray(text + bytes(sum(info.bytes for info in infos.values())))
    content[header.start("t") : header.start("t") + values.nbytes] = values.tobytes()
    path.write_bytes(content)
    tensor = safetensors.torch.load_file(path)["t"]
    assert str(tensor.dtype) == f"torch.{kind.torch}"
    assert tensor.double().tolist() == values.astype(np.float64).tolist()
