"""How many images there are, against how many were published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diwa.data.sets.base import DataSet, Published
from diwa.spec import Spec


class DomainCount(Spec, frozen=True, kw_only=True):
    """One domain's images."""

    name: str
    """Its folder."""
    short: str
    """What tables call the environment."""
    found: int
    """Images that are there."""
    published: int | None
    """Images that should be there, if that is known."""
    classes: dict[str, int]
    """Images of each class that are there."""
    differing: dict[str, int]
    """The classes whose published number is another one, with that."""


class Count(Spec, frozen=True, kw_only=True):
    """A data set's images, counted."""

    name: str
    """The data set."""
    root: str
    """Where it is."""
    by: str
    """Whose numbers it was compared with; empty if none are known."""
    domains: list[DomainCount]
    """In the order that numbers them."""
    missing_classes: list[str]
    """Classes that it should have and has no image of."""
    other_classes: list[str]
    """Classes that it has and should not."""

    @property
    def as_published(self) -> bool | None:
        """Whether every number is the published one; None if nothing was published."""
        if not self.by:
            return None
        return not self.missing_classes and not self.other_classes and not self.differing

    @property
    def differing(self) -> list[str]:
        """The domains with another number of images in all or in a class."""
        return [one.name for one in self.domains if one.found != one.published or one.differing]


def count(data_set: DataSet, root: Path) -> Count:
    """Counts the images of a data set where it lies, without opening any.

    Raises:
        DataError: if it is not laid out as it should be.
    """
    return compare(data_set, data_set.counts(root), where=root)


def compare(data_set: DataSet, held: Mapping[str, Mapping[str, int]], *, where: Path) -> Count:
    """Puts counts beside the published ones, of which there may be several.

    Args:
        data_set: what it should be.
        held: domain -> class -> images.
        where: the folder.
    """
    choices = [*data_set.published] or [Published(by="", domains={})]
    counts = [_against(one, data_set, held, where) for one in choices]
    return min(counts, key=lambda count: len(count.differing))


def _against(
    published: Published, data_set: DataSet, held: Mapping[str, Mapping[str, int]], where: Path
) -> Count:
    names = [*data_set.domains, *(name for name in held if name not in data_set.domains)]
    seen = {name for classes in held.values() for name, count in classes.items() if count}
    domains = []
    for name in names:
        classes = held.get(name, {})
        expected = dict(zip(data_set.classes, published.classes.get(name, ()), strict=False))
        domains.append(
            DomainCount(
                name=name,
                short=data_set.domains.get(name, ""),
                found=sum(classes.values()),
                published=published.domains.get(name) if published.by else None,
                classes={name: classes.get(name, 0) for name in sorted({*data_set.classes, *seen})},
                differing={
                    name: count for name, count in expected.items() if classes.get(name, 0) != count
                },
            )
        )
    return Count(
        name=data_set.name,
        root=str(where),
        by=published.by,
        domains=domains,
        missing_classes=[name for name in data_set.classes if name not in seen],
        other_classes=sorted(seen - set(data_set.classes)),
    )
