"""Opening a folder: what comes out, and what is said of a folder that is not right."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import diwa
from diwa.data.benchmark import Benchmark, Domain
from diwa.data.folder import list_folder
from diwa.data.summary import summarise
from diwa.errors import DataError
from diwa.seeding import seed_hash

Build = Callable[[dict[str, int]], Path]

PACS_COUNTS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def paint(path: Path, colour: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (colour, 0, 0)).save(path)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes domains of two classes of that many images; cats are red 100, dogs 200."""

    def made(counts: dict[str, int]) -> Path:
        for domain, count in counts.items():
            for number in range(count):
                for name, colour in (("cat", 100), ("dog", 200)):
                    paint(tmp_path / "pets" / domain / name / f"{number}.png", colour)
        return tmp_path / "pets"

    return made


def said(root: Path | str, **options: Any) -> str:
    """What is said of a folder, be it when it is opened or when it is looked at."""
    with pytest.raises(DataError) as caught:
        summarise(diwa.open_folder(root, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestOpened:
    def test_domains_classes_and_labels(self, build: Build) -> None:
        opened = diwa.open_folder(build({"b": 3, "a": 4}))
        assert (opened.name, opened.names, opened.classes) == ("pets", ["a", "b"], ("cat", "dog"))
        assert len(opened) == 2
        assert [domain.name for domain in opened] == ["a", "b"]
        assert [len(domain) for domain in opened] == [8, 6]
        assert opened["a"].labels.tolist() == [0] * 4 + [1] * 4
        assert opened["a"].labels.dtype == np.int64
        assert (opened.index("a"), opened.index("b")) == (0, 1)
        assert (opened.channels, opened.ignored) == (3, ())
        assert opened.digest == list_folder(build({})).digest

    def test_labels_belong_to_their_images(self, build: Build) -> None:
        domain = diwa.open_folder(build({"a": 4}))["a"]
        for position, label in enumerate(domain.labels):
            assert (domain.images[position][:, :, 0] == (100, 200)[label]).all()
        assert domain.images is domain.images  # one look decodes, the others find it

    def test_no_image_is_read_before_it_is_looked_at(self, build: Build, tmp_path: Path) -> None:
        root = build({"a": 4, "b": 4})
        (root / "b" / "cat" / "0.png").write_text("no image")
        opened = diwa.open_folder(root, cache_dir=tmp_path / "cache")
        assert not (tmp_path / "cache").exists()
        assert len(opened["b"]) == 8
        opened.split("b", trial=0)
        assert len(opened["a"].images) == 8
        with pytest.raises(DataError):
            _ = opened["b"].images

    def test_its_name_is_the_folders_unless_told(
        self, build: Build, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = build({"a": 4})
        monkeypatch.chdir(root)
        assert diwa.open_folder(".").name == "pets"
        assert diwa.open_folder(str(root) + "/").name == "pets"
        assert diwa.open_folder(root, name="PACS").name == "PACS"

    @pytest.mark.parametrize("channels", [1, 2, 3])
    def test_channels(self, build: Build, channels: int) -> None:
        opened = diwa.open_folder(build({"a": 4}), channels=channels)
        assert opened.channels == channels
        assert opened["a"].images[0].shape == (10, 12, channels)

    def test_where_and_how_large_images_are_cached(self, folder: Path, tmp_path: Path) -> None:
        opened = diwa.open_folder(folder, size=(10, 20), cache_dir=tmp_path / "mine")
        assert opened.cache is not None
        assert opened.cache.side == 28  # 1.4 times the larger
        assert opened["photo"].images[0].shape == (28, 28, 3)
        assert opened["photo"].images.original_size(0) == (40, 40)
        assert len(list((tmp_path / "mine").glob("photo-*"))) == 1
        other = diwa.open_folder(folder, size=(10, 20), cache_side=30)
        assert other["photo"].images[0].shape == (30, 30, 3)

    def test_folders_without_images_are_told(self, folder: Path) -> None:
        (folder / "logs").mkdir()
        assert diwa.open_folder(folder).ignored == ("logs",)

    def test_a_benchmark_of_anything_else(self) -> None:
        class Blank:
            def __len__(self) -> int:
                return 3

            def __getitem__(self, position: int) -> np.ndarray:
                return np.full((8, 8, 1), position, np.uint8)

            def original_size(self, position: int) -> tuple[int, int]:
                del position
                return (8, 8)

        labels = np.array([0, 1, 0])
        domains = [Domain("x", labels, lambda: (Blank(), np.array([0, 2])), certain=False)]
        held = Benchmark("blank", ("a", "b"), domains, digest="0", channels=1)
        assert held["x"].labels.tolist() == [0, 0]
        assert held.cache is None


class TestSplits:
    def test_a_split_is_drawn_with_the_domains_number(self, build: Build) -> None:
        opened = diwa.open_folder(build({"a": 10, "b": 10}))
        for number, name in enumerate(("a", "b")):
            for trial in range(3):
                keys = list(range(20))
                np.random.RandomState(seed_hash(trial, number)).shuffle(keys)
                made = opened.split(name, trial=trial)
                assert made.outer.tolist() == keys[:4]
                assert made.inner.tolist() == keys[4:]
        assert len(opened.split("a", trial=0, holdout=0.5).outer) == 10

    def test_the_number_does_not_depend_on_which_domain_is_unseen(self, pacs: Path) -> None:
        opened = diwa.open_folder(pacs)
        assert [opened.index(name) for name in PACS_COUNTS] == [0, 1, 2, 3]

    def test_the_real_pacs(self, pacs: Path) -> None:
        opened = diwa.open_folder(pacs, name="PACS")
        assert {domain.name: len(domain) for domain in opened} == PACS_COUNTS
        assert opened.classes == PACS_CLASSES
        assert sum(map(len, opened)) == 9991
        for domain in opened:
            assert set(domain.labels.tolist()) == set(range(7))
            for trial in range(3):
                made = opened.split(domain.name, trial=trial)
                assert len(made.outer) == PACS_COUNTS[domain.name] // 5
                assert len(made.inner) + len(made.outer) == len(domain)
        assert len(opened.split("sketch", trial=0).outer) == 785
        assert opened.split("art_painting", trial=0).outer[:3].tolist() == [548, 677, 1997]

    def test_the_real_pacs_is_in_torchvisions_order(self, pacs: Path) -> None:
        from torchvision.datasets import ImageFolder

        for domain, files in list_folder(pacs).domains.items():
            theirs = ImageFolder(str(pacs / domain))
            assert [(str(pacs / file.path), file.label) for file in files] == theirs.samples


class TestUnknownDomain:
    @pytest.mark.parametrize(
        ("name", "guess"), [("skech", "did you mean 'sketch'? "), ("xyzzy", "")]
    )
    def test_it_gets_a_suggestion_and_the_list(self, folder: Path, name: str, guess: str) -> None:
        opened = diwa.open_folder(folder, name="shapes")
        for asked in (
            lambda: opened[name],
            lambda: opened.index(name),
            lambda: opened.split(name, trial=0),
        ):
            with pytest.raises(DataError) as caught:
                asked()
            assert str(caught.value) == (
                f"shapes: has no domain {name!r}; {guess}it has cartoon, photo, sketch"
            )


class TestSkippingBadFiles:
    @pytest.fixture
    def bad(self, build: Build) -> Path:
        root = build({"a": 4, "b": 4})
        whole = (root / "a" / "cat" / "0.png").read_bytes()
        (root / "a" / "cat" / "1.png").write_bytes(whole[:45])
        (root / "a" / "dog" / "2.png").write_text("no image")
        (root / "a" / "dog" / "notes.txt").write_text("a dog")
        return root

    def test_without_it_the_file_and_the_option_are_named(self, bad: Path) -> None:
        assert said(bad) == (
            f"{bad}/a/dog/notes.txt: not an image; move it away, or pass --skip-bad-files"
        )
        (bad / "a" / "dog" / "notes.txt").unlink()
        text = said(bad)
        assert text.startswith(f"{bad}/a/cat/1.png: can't be decoded (")
        assert text.endswith(") (and 1 more files); replace or remove it, or pass --skip-bad-files")

    def test_a_single_bad_file(self, build: Build) -> None:
        root = build({"a": 4})
        path = root / "a" / "cat" / "1.png"
        path.write_bytes(path.read_bytes()[:45])
        assert said(root).startswith(f"{path}: can't be decoded (")
        assert "more files" not in said(root)

    def test_a_truncated_jpeg(self, build: Build) -> None:
        root = build({"a": 4})
        path = root / "a" / "cat" / "9.jpg"
        noise = np.random.RandomState(0).randint(0, 256, size=(60, 60, 3)).astype(np.uint8)
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        text = said(root)
        assert text.startswith(f"{path}: can't be decoded (")
        assert "truncated" in text
        assert text.endswith("; replace or remove it, or pass --skip-bad-files")
        assert len(diwa.open_folder(root, skip_bad_files=True)["a"]) == 8

    def test_with_it_labels_still_belong_to_their_images(self, bad: Path) -> None:
        domain = diwa.open_folder(bad, skip_bad_files=True)["a"]
        assert domain.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert len(domain) == len(domain.images) == 6
        for position, label in enumerate(domain.labels):
            assert (domain.images[position][:, :, 0] == (100, 200)[label]).all()

    def test_the_split_is_that_of_the_images_which_are_left(self, bad: Path) -> None:
        made = diwa.open_folder(bad, skip_bad_files=True).split("a", trial=0)
        assert sorted([*made.inner, *made.outer]) == list(range(6))

    def test_too_few_may_be_left(self, build: Build) -> None:
        root = build({"a": 3})
        for number in range(2):
            (root / "a" / "cat" / f"{number}.png").write_text("no image")
        assert said(root, skip_bad_files=True) == (
            f"{root}/a: 4 images, too few to hold out 20 % for validation; "
            "add images, remove the folder, or pass --allow-small-domains"
        )
        opened = diwa.open_folder(root, skip_bad_files=True, allow_small_domains=True)
        assert len(opened["a"]) == 4

    def test_none_may_be_left(self, build: Build) -> None:
        root = build({"a": 3, "b": 3})
        for path in (root / "b").rglob("*.png"):
            path.write_text("no image")
        for small in (False, True):
            assert said(root, skip_bad_files=True, allow_small_domains=small) == (
                f"{root}/b: none of its files is an image; add images, or remove the folder"
            )


class TestRefused:
    def test_a_missing_root_and_a_file_as_root(self, tmp_path: Path) -> None:
        paint(tmp_path / "a.png", 0)
        for root in (tmp_path / "nowhere", tmp_path / "a.png"):
            assert said(root).startswith(f"{root}: no such folder; give a folder laid out as")

    def test_an_empty_root(self, tmp_path: Path) -> None:
        assert said(tmp_path).startswith(f"{tmp_path}: holds no folders; lay it out as")

    def test_a_domain_with_one_image(self, build: Build) -> None:
        root = build({"a": 4, "b": 1})
        shutil.rmtree(root / "b" / "dog")
        assert said(root, allow_missing_classes=True) == (
            f"{root}/b: 1 image, too few to hold out 20 % for validation; "
            "add images, remove the folder, or pass --allow-small-domains"
        )
        opened = diwa.open_folder(root, allow_missing_classes=True, allow_small_domains=True)
        assert len(opened["b"].images) == 1
        assert len(opened.split("b", trial=0).outer) == 0

    @pytest.mark.parametrize(("count", "enough"), [(4, False), (5, True)])
    def test_five_images_are_enough(self, tmp_path: Path, count: int, enough: bool) -> None:
        for number in range(count):
            paint(tmp_path / "a" / "cat" / f"{number}.png", 0)
        if enough:
            assert len(diwa.open_folder(tmp_path)["a"]) == 5
            return
        with pytest.raises(DataError, match=f"{tmp_path}/a: 4 images, too few"):
            diwa.open_folder(tmp_path)  # before any image is decoded

    def test_a_class_that_one_domain_lacks(self, build: Build) -> None:
        root = build({"a": 4, "b": 6})
        shutil.rmtree(root / "b" / "dog")
        assert said(root) == (
            f"{root}/b: no images of class 'dog', which 'a' has; "
            "add them, remove the folder, or pass --allow-missing-classes"
        )
        opened = diwa.open_folder(root, allow_missing_classes=True)
        assert set(opened["b"].labels.tolist()) == {0}
        assert opened.classes == ("cat", "dog")

    def test_a_cache_that_can_not_be_written(self, build: Build, tmp_path: Path) -> None:
        place = tmp_path / "cache"
        place.write_text("in the way")
        text = said(build({"a": 4}), cache_dir=place)
        assert text.startswith(f"{place}: the cache can't be written (")
        assert text.endswith("with --cache-dir")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"channels": 4}, "channels=4; images have 1, 2 or 3 of them here"),
            ({"channels": 0}, "channels=0; images have 1, 2 or 3 of them here"),
            ({"cache_side": 0}, "cache_side=0; store at least 8 pixels"),
            ({"cache_side": -224}, "cache_side=-224; store at least 8 pixels"),
        ],
    )
    def test_a_setting_that_makes_no_sense(
        self, folder: Path, options: dict[str, int], says: str
    ) -> None:
        assert said(folder, **options) == says


@pytest.mark.parametrize(
    "option", ["cache_dir", "allow_missing_classes", "allow_small_domains", "skip_bad_files"]
)
def test_every_option_that_a_message_names_exists(option: str) -> None:
    from diwa.cli.options import DataOptions

    assert option in DataOptions.__struct_fields__
    assert option in inspect.signature(diwa.open_folder).parameters
