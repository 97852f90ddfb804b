"""The images that a store's runs were trained on, opened as they were for the sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def by_images(
    store: Store, wanted: Callable[[Run], bool], sweeps: Sequence[str] = ()
) -> dict[tuple[str, Images], list[Run]]:
    """The finished runs of a store, by their sweep's name and the images they were trained on.

    Args:
        store: the runs.
        wanted: which of them.
        sweeps: only the sweeps of these names.

    Raises:
        StoreError: if there is none, or no sweep of such a name.
    """
    from diwa.errors import StoreError
    from diwa.sweep.run import by_sweep

    every = store.runs()
    if not every:
        raise StoreError(f"{store.root}: holds no runs", remedy="start with diwa sweep")
    groups: dict[tuple[str, Images], list[Run]] = {}
    for name, runs in by_sweep(store, sweeps).items():
        for run in runs:
            if run.finished and wanted(run):
                task = run.spec.task
                images = Images(task.data, task.digest, task.image.size, task.image.channels)
                groups.setdefault((name, images), []).append(run)
    if not groups:
        raise StoreError(
            f"{store.root}: none of its {len(every)} runs is finished and wanted",
            remedy="finish diwa sweep first, or choose others",
        )
    return groups


def leaves_out(run: Run, target: Sequence[str]) -> bool:
    """Whether a run leaves only such domains unseen, by any of their names; or any, for none."""
    from diwa.data.sets import full_names

    task = run.spec.task
    return not target or full_names(task.data, tuple(target)).issuperset(task.unseen)


def reopened(store: Store, images: Images, data: Path | None, reporting: Progress) -> Benchmark:
    """Opens them.

    Args:
        store: where the runs are; it notes where the images were.
        images: which ones.
        data: where they are now, if elsewhere.
        reporting: who hears how decoding goes.

    Raises:
        StoreError: if nobody says where they are, or they are gone from there.
    """
    from diwa.errors import StoreError

    noted = (store.noted("images") or {}).get(images.digest, {})
    root = data or noted.get("data")
    if root is None:
        raise StoreError(
            f"{store.root}: does not say where the images of {images.name} are",
            remedy="pass --data FOLDER",
        )
    if data is None and Path(root).is_absolute() and not Path(root).exists():
        raise StoreError(
            f"{root}: the images of {images.name} are no longer there",
            remedy="pass --data FOLDER",
        )
    options = msgspec.structs.replace(told(noted.get("options")), name=images.name)
    return open_data(
        Path(root), options, size=images.size, channels=images.channels, progress=reporting
    )
