"""The base of every specification: typed, frozen, hashable, readable from JSON and TOML.

A specification is at once the Python argument, the command-line flag and the text on disk.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from diwa.errors import SpecError, StoreError

AnySpec = TypeVar("AnySpec", bound="Spec")


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen record of settings.

    Example:
        >>> class Ride(Spec, frozen=True, kw_only=True):
        ...     wheels: int = 2
        >>> Ride.from_json(b'{"wheels": 3}').wheels
        3
        >>> Ride.from_json(b'{"wheel": 3}', where="ride.json")
        Traceback (most recent call last):
        ...
        diwa.errors.SpecError: ride.json: Object contains unknown field `wheel`
    """

    def __post_init__(self) -> None:
        """Checks each value's type, as reading it from a file would.

        Raises:
            SpecError: naming the field.
        """
        for field in msgspec.structs.fields(self):
            try:
                value = msgspec.convert(getattr(self, field.name), field.type)
            except msgspec.ValidationError as error:
                raise SpecError(f"{field.name}: {error}") from error
            # A list where a tuple belongs, or an int for a float, becomes what it should be.
            msgspec.structs.force_setattr(self, field.name, value)

    @property
    def key(self) -> str:
        """Sixteen hex digits that name this specification.

        Only what differs from the defaults is hashed: a field that a later version adds leaves
        the keys of older runs alone. Hence the rule that a default, once released, stays.
        """
        canonical = msgspec.json.encode(_told(self), order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]

    def to_json(self) -> bytes:
        """The specification as indented JSON, every field spelled out."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def from_json(cls: type[AnySpec], text: bytes | str, *, where: str = "JSON") -> AnySpec:
        """Reads a specification.

        Raises:
            SpecError: for a field that is unknown, missing or of the wrong type.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SpecError(f"{where}: {error}") from error

    @classmethod
    def from_file(cls: type[AnySpec], path: Path) -> AnySpec:
        """Reads a specification from a JSON file.

        Raises:
            StoreError: if there is no such file.
            SpecError: if it does not hold such a specification.
        """
        try:
            text = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path}: can't be read ({error.strerror})") from error
        return cls.from_json(text, where=str(path))


def _told(value: Any) -> Any:
    if isinstance(value, Spec):
        fields = msgspec.structs.fields(value)
        pairs = ((field, getattr(value, field.name)) for field in fields)
        return {
            field.encode_name: _told(held)
            for field, held in pairs
            if field.required or held != _default(field)
        }
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    if isinstance(value, dict):
        return {name: _told(item) for name, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        # A 32 in a field of floats is read back from JSON as 32.0: both must give one key.
        return int(value)
    return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
