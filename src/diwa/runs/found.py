"""Which weights a folder of ours holds: those of a run, or of every finished run of a store."""

from __future__ import annotations

from pathlib import Path

from diwa.errors import StoreError
from diwa.runs.paths import RunPaths, StorePaths


def weights_in(folder: Path) -> list[tuple[Path, Path]] | None:
    """The weights of finished runs, each after the path that names it.

    Args:
        folder: a run, a store, or a store's folder of runs; None comes back for any other.

    Raises:
        StoreError: if it is one of these, and nothing in it has finished.
    """
    run = RunPaths(folder)
    if run.spec.is_file() and (run.result.is_file() or run.state.is_file() or run.all_best()):
        if not run.result.is_file():
            raise StoreError(f"{folder}: not finished", remedy="run the same sweep again")
        return [(folder, run.weights)]
    for store in (StorePaths(folder), StorePaths(folder.parent)):
        if store.about.is_file() and folder in (store.root, store.runs):
            every = sorted(path.parent for path in store.runs.glob(f"*/{run.spec.name}"))
            done = [RunPaths(path) for path in every if RunPaths(path).result.is_file()]
            if not done:
                raise StoreError(
                    f"{folder}: none of its {len(every)} runs is finished",
                    remedy="run diwa sweep first",
                )
            return [(paths.folder, paths.weights) for paths in done]
    return None
