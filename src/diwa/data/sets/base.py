"""What is known of a data set: domains, classes, published counts, places, layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diwa.data.layout import Arrangement, arrange
from diwa.data.sources import Sources

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark


@dataclass(frozen=True, kw_only=True)
class Remote:
    """One file that a data set is fetched as.

    Args:
        name: what it is called on disk.
        urls: where it is, in the order to try.
        size: its bytes, if they are known.
        sha256: its digest, if it is known.
        about: its size in words, where only that is known.
        optional: whether the data set can do without it.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    about: str = ""
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Published:
    """Counts that somebody published.

    Args:
        by: whose they are.
        domains: domain -> images.
        classes: domain -> images of each class in order, where that is published too.
    """

    by: str
    domains: Mapping[str, int]
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set that is known by name.

    Args:
        name: its name in seeds and tables.
        folder: its folder's name, as DomainBed has it.
        domains: each domain's folder -> the short name of its environment, in order.
        classes: the names of the classes, sorted.
        domains_also: domain -> other names that its folder goes by.
        classes_also: other names of class folders -> the class.
        published: counts, the usual ones first.
        remotes: the files it is fetched as.
        size: about how much is fetched, for people.
        homepage: where to look when the places are gone.
        built: whether it is computed from what lies in its folder, rather than being that.

    Example:
        >>> from diwa import DATASETS
        >>> pacs = DATASETS.get("PACS")
        >>> pacs.domains["art_painting"], sum(pacs.published[0].domains.values())
        ('A', 9991)
    """

    name: str
    folder: str
    domains: Mapping[str, str]
    classes: tuple[str, ...]
    domains_also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes_also: Mapping[str, str] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    remotes: tuple[Remote, ...] = ()
    size: str = ""
    homepage: str = ""
    built: bool = False

    def arrange(self, sources: Sources, *, duplicates: Path | None = None) -> Arrangement:
        """Which file goes where, in any of the layouts that are known.

        Args:
            sources: what the user has.
            duplicates: a list of images to leave out, for data sets that have one.

        Raises:
            DataError: if nothing in there looks like this data set.
        """
        del duplicates
        return self.arrange_images(sources.images())

    def arrange_images(self, images: Mapping[str, int]) -> Arrangement:
        """The same for images in folders of domains and classes."""
        return arrange(
            images,
            domains={
                domain: (domain, *self.domains_also.get(domain, ())) for domain in self.domains
            },
            classes={**{name: name for name in self.classes}, **self.classes_also},
            expected=self.published[0].domains if self.published else {},
        )

    def lacking(self, arrangement: Arrangement) -> list[str]:
        """The domains that an arrangement has nothing of."""
        return arrangement.missing(self.domains)

    def counts(self, root: Path) -> Mapping[str, Mapping[str, int]]:
        """Domain -> class -> images, of the folder it lies in."""
        from diwa.data.folder import list_folder

        listing = list_folder(root, allow_missing_classes=True, skip_bad_files=True)
        return {
            domain: Counter(listing.classes[file.label] for file in files)
            for domain, files in listing.domains.items()
        }

    def is_there(self, root: Path) -> bool:
        """Whether something lies where it belongs."""
        return root.is_dir()

    def where(self, root: Path) -> Path | None:
        """Where it would be opened from, if it can be."""
        return root if self.is_there(root) else None

    def can_open(self, root: Path) -> bool:
        """Whether `open` finds what it needs."""
        return self.is_there(root)

    def open(self, root: Path, **settings: Any) -> Benchmark:
        """Opens it as a benchmark; takes what `open_folder` takes."""
        from diwa.data.benchmark import open_folder

        benchmark = open_folder(root, **{**settings, "name": settings.get("name") or self.name})
        benchmark.short = dict(self.domains)
        return benchmark


def drive(identity: str) -> str:
    """The address of a file on Google Drive that asks to skip its warning about viruses."""
    return f"https://drive.usercontent.google.com/download?id={identity}&export=download&confirm=t"
