"""The images that a store's runs were trained on, opened as they were for the sweep."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from diwa.cli.options import open_data, told

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark
    from diwa.progress import Progress
    from diwa.runs.store import Run, Store


class Images(NamedTuple):
    """Which images runs were trained on, and how they were opened."""

    name: str
    digest: str
    size: tuple[int, int]
    channels: int


def by_images(runs: Iterable[Run]) -> dict[Images, list[Run]]:
    """Runs by the images that they were trained on."""
    groups: dict[Images, list[Run]] = {}
    for run in runs:
        task = run.spec.task
        images = Images(task.data, task.digest, task.image.size, task.image.channels)
        groups.setdefault(images, []).append(run)
    return groups


def reopened(store: Store, images: Images, data: Path | None, reporting: Progress) -> Benchmark:
    """Opens them.

    Args:
        store: where the runs are; it notes where the images were.
        images: which ones.
        data: where they are now, if elsewhere.
        reporting: who hears how decoding goes.

    Raises:
        StoreError: if nobody says where they are.
    """
    from diwa.errors import StoreError

    noted = (store.noted("images") or {}).get(images.digest, {})
    root = data or noted.get("data")
    if root is None:
        raise StoreError(
            f"{store.root}: does not say where the images of {images.name} are",
            remedy="pass --data FOLDER",
        )
    options = msgspec.structs.replace(told(noted.get("options")), name=images.name)
    return open_data(
        Path(root), options, size=images.size, channels=images.channels, progress=reporting
    )
