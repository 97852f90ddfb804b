"""A benchmark in numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import diwa
from diwa.data.benchmark import Benchmark, Domain
from diwa.data.summary import Summary, summarise
from diwa.errors import DataError


@pytest.fixture
def uneven(folder: Path) -> Path:
    """The small folder with a class that one domain lacks, a bad file and an empty folder."""
    Image.new("RGB", (9, 9)).save(folder / "photo" / "dog" / "more.png")
    (folder / "photo" / "emu").mkdir()
    Image.new("RGB", (9, 9)).save(folder / "photo" / "emu" / "0.png")
    (folder / "sketch" / "cat" / "0.png").write_text("no image")
    (folder / "logs").mkdir()
    return folder


def test_everything_is_counted(uneven: Path, tmp_path: Path) -> None:
    opened = diwa.open_folder(
        uneven,
        name="shapes",
        size=(20, 20),
        cache_dir=tmp_path / "cache",
        allow_missing_classes=True,
        skip_bad_files=True,
    )
    told = summarise(opened)
    assert (told.name, told.digest) == ("shapes", opened.digest)
    assert told.classes == ["cat", "dog", "emu"]
    assert [(domain.name, domain.classes) for domain in told.domains] == [
        ("cartoon", {"cat": 6, "dog": 6, "emu": 0}),
        ("photo", {"cat": 6, "dog": 7, "emu": 1}),
        ("sketch", {"cat": 5, "dog": 6, "emu": 0}),
    ]
    assert told.ignored == ["logs"]
    assert told.skipped == ["sketch/cat/0.png"]
    assert (told.cache_dir, told.cache_side) == (str(tmp_path / "cache"), 28)
    # Short sides of 40 are kept at 28, those of 9 as they are.
    sizes = {domain.name: domain.cached_bytes for domain in told.domains}
    assert sizes == {
        "cartoon": 12 * 28 * 28 * 3,
        "photo": 12 * 28 * 28 * 3 + 2 * 9 * 9 * 3,
        "sketch": 11 * 28 * 28 * 3,
    }


def test_counting_alone_opens_no_image(folder: Path, tmp_path: Path) -> None:
    (folder / "photo" / "dog" / "0.png").write_text("no image")
    opened = diwa.open_folder(folder, cache_dir=tmp_path / "cache")
    told = summarise(opened, decode=False)
    assert [sum(domain.classes.values()) for domain in told.domains] == [12, 12, 12]
    assert [domain.cached_bytes for domain in told.domains] == [0, 0, 0]
    assert not (tmp_path / "cache").exists()


def test_a_bad_file_is_found(folder: Path) -> None:
    path = folder / "photo" / "dog" / "0.png"
    path.write_text("no image")
    with pytest.raises(DataError, match=f"{path}: can't be decoded"):
        summarise(diwa.open_folder(folder))


def test_it_is_json_there_and_back(folder: Path) -> None:
    told = summarise(diwa.open_folder(folder))
    assert Summary.from_json(told.to_json()) == told


def test_images_that_are_not_cached() -> None:
    class Blank:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, position: int) -> np.ndarray:
            return np.full((8, 8, 1), position, np.uint8)

        def original_size(self, position: int) -> tuple[int, int]:
            del position
            return (8, 8)

    domain = Domain("x", np.array([1, 1]), lambda: (Blank(), np.arange(2)))
    told = summarise(Benchmark("blank", ("a", "b"), [domain], digest="0", channels=1))
    assert told.domains[0].classes == {"a": 0, "b": 2}
    assert told.domains[0].cached_bytes == 0
    assert (told.cache_dir, told.cache_side, told.skipped) == ("", 0, [])


def test_the_real_pacs(pacs: Path) -> None:
    told = summarise(diwa.open_folder(pacs, name="PACS"), decode=False)
    counts = {domain.name: domain.classes for domain in told.domains}
    assert {name: sum(classes.values()) for name, classes in counts.items()} == {
        "art_painting": 2048,
        "cartoon": 2344,
        "photo": 1670,
        "sketch": 3929,
    }
    assert counts["photo"]["person"] == 432
    assert counts["sketch"]["house"] == 80
