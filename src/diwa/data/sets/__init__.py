"""The data sets that are known by name; a new one is a file here and a line in this list."""

from __future__ import annotations

import difflib
from functools import cache

from diwa.data.layout import plain
from diwa.data.sets.base import DataSet
from diwa.errors import SpecError
from diwa.registry import Registry

#: Name -> where its description lives; other packages add theirs in the group.
DATASETS = Registry(
    "data set",
    {
        "PACS": "diwa.data.sets.pacs:PACS",
        "VLCS": "diwa.data.sets.vlcs:VLCS",
        "OfficeHome": "diwa.data.sets.office_home:OFFICE_HOME",
        "TerraIncognita": "diwa.data.sets.terra_incognita:TERRA_INCOGNITA",
        "DomainNet": "diwa.data.sets.domain_net:DOMAIN_NET",
        "ColoredMNIST": "diwa.data.sets.colored_mnist:COLORED_MNIST",
        "RotatedMNIST": "diwa.data.sets.rotated_mnist:ROTATED_MNIST",
    },
    group="diwa.datasets",
)


def find(name: str) -> DataSet | None:
    """The data set of that name, in whatever case, or of that folder's name; none if unknown.

    Example:
        >>> find("office_home").name, find("vlcs").name, find("photos")
        ('OfficeHome', 'VLCS', None)
    """
    every: list[DataSet] = [DATASETS.get(known) for known in DATASETS.names()]
    for wanted in (lambda held: held.name, lambda held: held.folder):
        for held in every:
            if plain(wanted(held)) == plain(name):
                return held
    return None


def known(name: str) -> DataSet:
    """The data set of that name.

    Raises:
        SpecError: if nobody registered it; it suggests the nearest.
    """
    held = find(name)
    if held is None:
        near = nearest(name)
        raise SpecError(
            f"no data set is called {name!r}",
            remedy=f"{f'did you mean {near!r}? ' if near else ''}known: "
            f"{', '.join(DATASETS.names())}",
        )
    return held


def nearest(name: str) -> str | None:
    """The data set whose name is most like that, in whatever case; none if none is.

    Example:
        >>> nearest("pcas"), nearest("ofice-home"), nearest("photos")
        ('PACS', 'OfficeHome', None)
    """
    called = {plain(known): known for known in DATASETS.names()}
    near = difflib.get_close_matches(plain(name), called, n=1)
    return called[near[0]] if near else None


@cache
def full_names(data: str, names: tuple[str, ...]) -> frozenset[str]:
    """Domains of a data set by their folders' names, where they may be given by the short ones.

    Example:
        >>> sorted(full_names("PACS", ("A", "sketch"))), sorted(full_names("photos", ("A",)))
        (['art_painting', 'sketch'], ['A'])
    """
    held = find(data)
    folder = {short: name for name, short in held.domains.items()} if held else {}
    return frozenset(
        name if held and name in held.domains else folder.get(name, name) for name in names
    )


def alike(domains: list[str], classes: tuple[str, ...]) -> DataSet | None:
    """The data set with exactly these domains and classes, wherever its folder lies."""
    for name in DATASETS.names():
        held: DataSet = DATASETS.get(name)
        if list(held.domains) == domains and sorted(held.classes) == sorted(classes):
            return held
    return None
