"""What can go wrong for a user, as one small family.

Every message is one line: what is wrong, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DiwaError(ValueError):
    """Something the user can mend; the message says how.

    Example:
        >>> raise DataError("photos/dog: no images", remedy="add some, or remove the folder")
        Traceback (most recent call last):
        ...
        diwa.errors.DataError: photos/dog: no images; add some, or remove the folder
    """

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)


class DataError(DiwaError):
    """A folder of images is not what it should be."""


class ModelError(DiwaError):
    """A network can't be built or its weights don't fit."""


class SpecError(DiwaError):
    """A setting has a value it can't have."""


class StoreError(DiwaError):
    """A folder of runs can't be read or written."""


class WeightsError(DiwaError):
    """A file of weights can't be read, or does not match the others."""


def guess(name: str, known: Iterable[str]) -> str:
    """The start of a remedy for a name that nobody knows: the nearest one, if any is near.

    Example:
        >>> guess("stpes", ["runs", "steps"]), guess("colour", ["runs", "steps"])
        ("did you mean 'steps'? ", '')
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
