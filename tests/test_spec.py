"""Specifications: their keys, their text, and what is said of one that is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diwa.errors import SpecError, StoreError
from diwa.spec import Spec


class Engine(Spec, frozen=True, kw_only=True):
    power: float = 1.5


class Ride(Spec, frozen=True, kw_only=True):
    name: str
    wheels: int = 2
    engine: Engine = Engine()
    colours: tuple[str, ...] = ()
    parts: dict[str, float] = msgspec.field(default_factory=dict)
    spare: Engine | None = None

    def __post_init__(self) -> None:
        if self.wheels < 1:
            raise SpecError(f"wheels={self.wheels}", remedy="give 1 or more")


rides = st.builds(
    Ride,
    name=st.text(max_size=5),
    wheels=st.integers(1, 9),
    engine=st.builds(Engine, power=st.floats(allow_nan=False, allow_infinity=False)),
    colours=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    parts=st.dictionaries(
        st.text(max_size=3),
        st.one_of(st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False)),
        max_size=3,
    ),
    spare=st.none() | st.builds(Engine),
)


@given(rides)
def test_a_specification_survives_the_disk_with_its_key(ride: Ride) -> None:
    back = Ride.from_json(ride.to_json())
    assert back == ride
    assert back.key == ride.key


@given(rides, rides)
def test_keys_differ_where_specifications_do(one: Ride, other: Ride) -> None:
    assert (one.key == other.key) == (one == other)


def test_a_whole_number_has_one_key_however_it_is_written() -> None:
    # JSON gives 32.0 back for the 32 of a field of floats.
    whole = Ride(name="a", parts={"batch_size": 32}, engine=Engine(power=2))
    broken = Ride(name="a", parts={"batch_size": 32.0}, engine=Engine(power=2.0))
    assert whole == broken
    assert whole.key == broken.key
    assert whole.key != Ride(name="a", parts={"batch_size": 32.5}, engine=Engine(power=2)).key


def test_keys_stay_what_they_are() -> None:
    # Folders on users' disks have these names: a change here orphans them.
    assert Ride(name="a").key == hashlib.sha256(b'{"name":"a"}').hexdigest()[:16]
    full = Ride(
        name="é", wheels=3, engine=Engine(power=1e-5), colours=("red",), parts={"b": 1.0, "a": 0.1}
    )
    text = (
        '{"colours":["red"],"engine":{"power":0.00001},"name":"é",'
        '"parts":{"a":0.1,"b":1},"wheels":3}'
    )
    assert full.key == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_default_that_is_spelled_out_does_not_change_the_key() -> None:
    spelled = Ride(name="a", wheels=2, engine=Engine(power=1.5), colours=(), parts={}, spare=None)
    assert spelled.key == Ride(name="a").key


def test_a_field_that_a_later_version_adds_leaves_old_keys_alone() -> None:
    class Old(Spec, frozen=True, kw_only=True):
        name: str

    class New(Spec, frozen=True, kw_only=True):
        name: str
        count: int = 0
        part: Engine = Engine()
        options: dict[str, int] = msgspec.field(default_factory=lambda: {"a": 1})

    old = Old(name="a").key
    assert New(name="a").key == old
    assert New(name="a", options={"a": 1}).key == old
    assert New(name="a", options={}).key != old
    assert New(name="a", count=1).key != old


def test_the_order_of_a_dicts_names_does_not_change_the_key() -> None:
    assert (
        Ride(name="a", parts={"x": 1.0, "y": 2.0}).key
        == Ride(name="a", parts={"y": 2.0, "x": 1.0}).key
    )


def test_the_order_of_a_sequence_does() -> None:
    assert Ride(name="a", colours=("x", "y")).key != Ride(name="a", colours=("y", "x")).key


def test_a_nested_specification_at_its_defaults_is_not_none() -> None:
    assert Ride(name="a", spare=Engine()).key != Ride(name="a").key


def test_the_text_spells_out_every_field() -> None:
    told = msgspec.json.decode(Ride(name="a").to_json())
    assert told == {
        "name": "a",
        "wheels": 2,
        "engine": {"power": 1.5},
        "colours": [],
        "parts": {},
        "spare": None,
    }
    assert Ride(name="a").to_json().endswith(b"}\n")
    assert b'\n  "wheels": 2' in Ride(name="a").to_json()


def test_a_specification_is_frozen_and_named_by_keyword() -> None:
    ride = Ride(name="a")
    with pytest.raises(AttributeError):
        ride.wheels = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Ride("a")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"name": "a", "wheel": 3}', "unknown field `wheel`"),
        (b'{"wheels": 3}', "missing required field `name`"),
        (b'{"name": "a", "wheels": "3"}', r"got `str` - at `\$.wheels`"),
        (b'{"name": "a", "wheels": 3.5}', r"got `float` - at `\$.wheels`"),
        (b'{"name": "a", "engine": {"power": null}}', r"got `null` - at `\$.engine.power`"),
        (b'{"name": "a", "engine": {"volts": 1}}', r"unknown field `volts` - at `\$.engine`"),
        (b'{"name": "a", "wheels": 0}', "wheels=0; give 1 or more"),
        (b'{"name": "a"', "truncated"),
        (b"", "truncated"),
        (b"[]", "got `array`"),
        (b'{"name": "\xff"}', "utf-8"),
        (b"\x89PNG\r\n", "malformed"),
    ],
)
def test_wrong_text_is_refused_with_the_place_and_the_field(
    text: bytes, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "ride.json"
    path.write_bytes(text)
    with pytest.raises(SpecError, match=says) as caught:
        Ride.from_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(SpecError, match=says) as caught:
        Ride.from_json(text, where="the plan")
    assert str(caught.value).startswith("the plan: ")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ride.json"
    ride = Ride(name="a", wheels=4)
    path.write_bytes(ride.to_json())
    assert Ride.from_file(path) == ride


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    with pytest.raises(StoreError) as caught:
        Ride.from_file(path)
    assert str(caught.value) == f"{path}: can't be read (No such file or directory)"
