"""The store: what it refuses and what it remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from diwa.atomic import replacing
from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError, StoreError
from diwa.runs.store import Store
from diwa.sweep.plan import plan
from diwa.sweep.run import run_sweep
from diwa.sweep.spec import SweepSpec


def test_nothing_is_written_before_something_is_started(tmp_path: Path) -> None:
    Store(tmp_path / "store").runs()
    assert not (tmp_path / "store").exists()


def test_a_folder_of_something_else_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="not a store; give the folder of a sweep, or a new"):
        Store(folder)


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    with pytest.raises(StoreError, match="not a store"):
        Store(path)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match=r"store\.json: format 99 is not known"):
        Store(tmp_path)


def test_notes_are_kept(tmp_path: Path) -> None:
    Store(tmp_path / "store").note(data="there")
    Store(tmp_path / "store").note(other=1)
    assert Store(tmp_path / "store").noted("data") == "there"
    assert Store(tmp_path / "store").noted("nothing") is None


def test_a_note_that_is_no_note_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text("[]")
    with pytest.raises(StoreError, match=r"store\.json: is not the note of a store"):
        Store(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/store: can't be written.*choose another --store"):
        Store(tmp_path / "file" / "store").note()


def test_a_kill_as_a_store_begins_leaves_a_place_for_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with replacing(root / "store.json") as part:
        part.write_text('{"for')
        # As seen by a process that starts at this moment, or after a kill at it.
        Store(root).note(data="there")
        assert len(list(root.iterdir())) > 1
        assert Store(root).noted("data") == "there"
        part.write_bytes((root / "store.json").read_bytes())


def test_what_several_note_at_once_is_all_kept(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def note(number: int) -> None:
        store = Store(tmp_path / "store")
        together.wait()
        for each in range(5):
            store.note(sweeps={"main": [f"{number}-{each}"], f"own-{number}": [str(each)]})

    threads = [threading.Thread(target=note, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noted = Store(tmp_path / "store").noted("sweeps")
    assert sorted(noted.pop("main")) == sorted(f"{n}-{each}" for n in range(8) for each in range(5))
    assert noted == {f"own-{n}": list("01234") for n in range(8)}


def test_a_damaged_spec_names_the_file_and_the_field(
    shapes: Benchmark, tiny_sweep: Callable[..., SweepSpec], tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    run = store.start(plan(tiny_sweep(), shapes, device="cpu")[0])
    text = run.paths.spec.read_text().replace('"steps": 5', '"steps": "many"', 1)
    run.paths.spec.write_text(text)
    with pytest.raises(SpecError, match=r"spec\.json: Expected `int`, got `str`.*steps"):
        store.runs()


def test_an_unfinished_run_has_no_result(
    shapes: Benchmark, tiny_sweep: Callable[..., SweepSpec], tmp_path: Path
) -> None:
    run = Store(tmp_path / "store").start(plan(tiny_sweep(), shapes, device="cpu")[0])
    assert not run.finished
    assert run.history == []
    with pytest.raises(StoreError, match="not finished"):
        run.member()


def test_a_member_knows_where_it_comes_from(
    shapes: Benchmark, tiny_sweep: Callable[..., SweepSpec], tmp_path: Path
) -> None:
    first, second = run_sweep(tiny_sweep(steps=2), shapes, tmp_path / "store", device="cpu")
    one, two = first.member(), second.member()
    assert one.name == first.name
    assert one.score == first.result.score
    assert one.split == two.split is not None
    assert one.init == two.init is not None
    assert one.about["model"]["classes"] == ["cat", "dog"]
