"""The loss on the way from one set of weights to another, and at their mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diwa.analysis.evidence import Landscape, Point, Way
from diwa.data.benchmark import Benchmark
from diwa.data.loaders import Source as ImageSource
from diwa.data.transforms import squash
from diwa.errors import DataError, ModelError, SpecError
from diwa.evaluate.predict import image_of, predict_network
from diwa.models.device import Compute
from diwa.models.network import restore_network
from diwa.progress import QUIET, Progress
from diwa.weights.agree import Named, holdings
from diwa.weights.kinds import widened

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Survey:
    """A network, images, and members to go to and fro between.

    Args:
        members: holding the same tensors.
        about: what the first one's file says; its entry "model" says how to build the network.
        benchmark: the images.
        domains: which of its domains; all by default.
        limit: how many images of each domain, spread evenly over its classes.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".

    Raises:
        DiwaError: if the network can't be built, the weights don't fit it, or the classes or the
            domains are others.
    """

    def __init__(
        self,
        members: Sequence[Named],
        about: Mapping[str, Any],
        benchmark: Benchmark,
        *,
        domains: Sequence[str] = (),
        limit: int = 100,
        device: str = "auto",
    ) -> None:
        if limit < 1:
            raise SpecError(f"limit={limit}", remedy="look at 1 image of each domain or more")
        self._members = {member.name: member for member in members}
        held = holdings([member.source for member in members])
        self._held = dict(zip(self._members, held, strict=True))
        self.domains = list(domains or benchmark.names)
        self.classes = len(benchmark.classes)
        self._image = image_of(about, benchmark)
        self._images = _gathered(benchmark, self.domains, limit, self._image.size)
        # A barrier is a difference of losses that are almost equal: too fine for bfloat16.
        self._compute = Compute.choose(device, "fp32")
        first = members[0]
        try:
            self._network = restore_network(about, self._blended({first.name: 1.0}))
        except ModelError as error:
            raise ModelError(f"{first.source.path}: {error}") from error
        self._network.to(self._compute.device)

    @property
    def names(self) -> list[str]:
        """Of the members."""
        return list(self._members)

    @property
    def images(self) -> int:
        """How many there are."""
        return len(self._images.labels)

    def scored(self, parts: Mapping[str, float]) -> Point:
        """What so much of each member scores."""
        self._network.load_weights(self._blended(parts))
        says = predict_network(self._network, self._images, self._image, self._compute)
        return Point(loss=says.cross_entropy(), accuracy=says.accuracy())

    def mean(self, names: Sequence[str]) -> Point:
        """What the mean of some members scores."""
        return self.scored(dict.fromkeys(names, 1 / len(names)))

    def _blended(self, parts: Mapping[str, float]) -> dict[str, torch.Tensor]:
        """So much of each member; integers as the first one has them."""
        names = list(parts)
        first = self._members[names[0]].source
        blended = {}
        for name, kept in self._held[names[0]].items():
            if not first.tensors[kept].kind.floating:
                blended[name] = torch.from_numpy(np.array(first.array(kept)))
                continue
            total: NDArray[Any] = np.zeros(first.tensors[kept].shape, dtype=np.float64)
            for member, part in parts.items():
                array = self._members[member].source.array(self._held[member][name])
                total += part * widened(array)
            blended[name] = torch.from_numpy(total.astype(np.float32))
        return blended


def survey(ground: Survey, *, points: Sequence[float], progress: Progress = QUIET) -> Landscape:
    """Measures the loss of every member, on the way between any two, and to the mean of all.

    Args:
        ground: the network, the images and the members.
        points: the parts of the way to measure at.
        progress: who hears how it goes.

    Raises:
        SpecError: if a point is not between 0 and 1.
    """
    wrong = [t for t in points if not 0 < t < 1]
    if wrong or not points:
        what = f"points {wrong[0]}" if wrong else "no points"
        raise SpecError(what, remedy="give numbers between 0 and 1, such as 0.5")
    names = ground.names
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    total = len(names) + 1 + (len(pairs) + len(names)) * len(points)
    with progress.task("loss between members", total) as task:

        def scored(parts: Mapping[str, float]) -> Point:
            point = ground.scored(parts)
            task.advance()
            return point

        alone = {name: scored({name: 1.0}) for name in names}
        even = dict.fromkeys(names, 1 / len(names))
        mean = scored(even)

        def way(one: str, other: str, to: Mapping[str, float], end: Point) -> Way:
            found = [scored(_between(one, to, t)) for t in points]
            return Way(
                one=one,
                other=other,
                at=list(points),
                points=found,
                barrier=barrier(alone[one].loss, end.loss, points, [p.loss for p in found]),
            )

        return Landscape(
            images=ground.images,
            domains=ground.domains,
            classes=ground.classes,
            members=alone,
            mean=mean,
            ways=[way(a, b, {b: 1.0}, alone[b]) for a, b in pairs],
            to_mean=[way(name, "mean", even, mean) for name in names],
        )


def barrier(start: float, end: float, at: Sequence[float], losses: Sequence[float]) -> float:
    """How far losses on the way rise above the straight line from the first to the last.

    Example:
        >>> barrier(1.0, 2.0, [0.5], [3.0])
        1.5
    """
    straight = ((1 - t) * start + t * end for t in at)
    return max(0.0, *(loss - line for loss, line in zip(losses, straight, strict=True)))


def _between(one: str, to: Mapping[str, float], t: float) -> dict[str, float]:
    parts = {one: 1 - t}
    for name, part in to.items():
        parts[name] = parts.get(name, 0.0) + t * part
    return parts


class _Pixels:
    """Images in memory, as the network will see them."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, position: int) -> NDArray[np.uint8]:
        return self._pixels[position]

    def original_size(self, position: int) -> tuple[int, int]:
        """Height and width."""
        height, width = self._pixels[position].shape[:2]
        return height, width


def _gathered(
    benchmark: Benchmark, domains: Sequence[str], limit: int, size: tuple[int, int]
) -> ImageSource:
    """Some images of every domain, squashed once, for they are looked at many times."""

    def chosen() -> Iterator[tuple[NDArray[np.uint8], int]]:
        for name in domains:
            domain = benchmark[name]
            # A folder's labels are in the order of the classes: steps of equal length take as
            # large a part of every class.
            for position in np.unique(np.linspace(0, len(domain) - 1, limit).astype(int)):
                yield squash(domain.images[position], size), int(domain.labels[position])

    pixels, labels = zip(*chosen(), strict=True) if domains else ((), ())
    if not pixels:
        raise DataError(f"{benchmark.name}: no images to look at", remedy="name other domains")
    return ImageSource(
        _Pixels(np.stack(pixels)), np.array(labels, dtype=np.int64), np.arange(len(pixels))
    )
