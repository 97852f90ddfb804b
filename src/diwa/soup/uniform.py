"""DiWA-uniform: the average of all members."""

from __future__ import annotations

from collections.abc import Sequence

from diwa.errors import DiwaError
from diwa.soup.soup import Soup
from diwa.weights.member import Member


def uniform(members: Sequence[Member]) -> Soup:
    """All members, equally.

    Raises:
        DiwaError: if there are none.
        WeightsError: if their tensors differ in names or shapes.

    Example:
        >>> import diwa
        >>> soup = diwa.uniform([diwa.Member.from_file(path) for path in example_members])
        >>> {name: tensor.tolist() for name, tensor in soup.tensors()}
        {'w': [2.0, 3.0]}
    """
    if not members:
        raise DiwaError("no members to average", remedy="finish at least one run")
    return Soup("uniform", tuple(members))
