"""Which weights a folder of runs stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from diwa.errors import StoreError
from diwa.runs.found import weights_in
from diwa.runs.paths import RunPaths, StorePaths


def run(paths: RunPaths, *, finished: bool = True, begun: bool = True) -> RunPaths:
    paths.folder.mkdir(parents=True)
    paths.spec.write_text("{}")
    if finished:
        paths.weights.write_bytes(b"")
        paths.result.write_text("{}")
    elif begun:
        paths.best(3).write_bytes(b"")
    return paths


@pytest.fixture
def store(tmp_path: Path) -> StorePaths:
    paths = StorePaths(tmp_path / "store")
    for key in ("k2", "k1"):
        run(paths.run(key))
    run(paths.run("k3"), finished=False)
    run(paths.run("k4"), finished=False, begun=False)
    paths.about.write_text("{}")
    return paths


def test_a_store_stands_for_its_finished_runs(
    store: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [(store.run(key).folder, store.run(key).weights) for key in ("k1", "k2")]
    assert weights_in(store.root) == expected
    assert weights_in(store.runs) == expected
    monkeypatch.chdir(store.root)
    for place in (Path(), Path("runs")):
        found = weights_in(place)
        assert found is not None
        assert [folder.name for folder, _ in found] == ["k1", "k2"]


def test_a_run_stands_for_itself_wherever_it_is(store: StorePaths, tmp_path: Path) -> None:
    folder = store.run("k1").folder
    assert weights_in(folder) == [(folder, folder / "weights.safetensors")]
    moved = folder.rename(tmp_path / "kept")
    assert weights_in(moved) == [(moved, moved / "weights.safetensors")]


def test_an_unfinished_run(store: StorePaths) -> None:
    with pytest.raises(StoreError, match="k3: not finished; "):
        weights_in(store.run("k3").folder)


def test_a_store_where_nothing_has_finished(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    paths.about.write_text("{}")
    for place in (paths.root, paths.runs):
        with pytest.raises(StoreError, match="none of its 0 runs is finished; run "):
            weights_in(place)
    run(paths.run("k"), finished=False)
    with pytest.raises(StoreError, match="none of its 1 runs is finished"):
        weights_in(tmp_path)


def test_any_other_folder(store: StorePaths, tmp_path: Path) -> None:
    init = store.init("i").folder
    init.mkdir(parents=True)
    (init / "spec.json").write_text("{}")
    (init / "weights.safetensors").write_bytes(b"")
    (tmp_path / "runs").mkdir()
    for folder in (init, tmp_path, tmp_path / "runs", tmp_path / "none", store.inits):
        assert weights_in(folder) is None
