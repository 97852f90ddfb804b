"""Listing a folder: torchvision's order, what is passed over, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from diwa.data.benchmark import open_folder
from diwa.data.folder import IMAGE_ENDINGS, list_folder
from diwa.data.summary import summarise
from diwa.errors import DataError


def image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2)).save(path, format="PNG")
    return path


def laid_out(root: Path, *paths: str) -> Path:
    for path in paths:
        image(root / path)
    return root


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Names whose order is easy to get wrong, some of them deeper down."""
    return laid_out(
        tmp_path / "odd",
        *(
            f"{domain}/{name}/{file}"
            for domain in ("b 2", "B", "a.10", "é")
            for name in ("zebra", "Ant", "10", "9")
            for file in (
                "2.png",
                "10.PNG",
                "B.JPeG",
                "a.jpg",
                "a b.webp",
                "deep/0.png",
                "Deep/1.bmp",
                "deep/er/z.tiff",
                "a.png.ppm",
                *(f"{folder}/0.png" for folder in "zmbAy9"),
            )
        ),
    )


def test_the_order_and_the_labels_are_image_folders(odd: Path) -> None:
    listing = list_folder(odd)
    assert list(listing.domains) == sorted(os.listdir(odd))
    for domain, files in listing.domains.items():
        theirs = ImageFolder(str(odd / domain))
        assert [(str(odd / file.path), file.label) for file in files] == theirs.samples
        assert listing.classes == tuple(theirs.classes)


def test_the_endings_are_torchvisions() -> None:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert set(IMAGE_ENDINGS) == set(IMG_EXTENSIONS)


def test_what_is_known_of_a_file(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "photo/cat/0.png", "photo/dog/0.png")
    path = root / "photo" / "dog" / "0.png"
    os.utime(path, ns=(0, 123_456_789))
    file = list_folder(root).domains["photo"][1]
    assert (file.path, file.label) == ("photo/dog/0.png", 1)
    stat = path.stat()
    assert (file.size, file.changed_ns) == (stat.st_size, (123_456_789, stat.st_ctime_ns))


def test_labels_are_the_same_in_every_domain(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "a/cat/0.png", "a/dog/0.png", "b/dog/0.png", "b/emu/0.png")
    listing = list_folder(root, allow_missing_classes=True)
    assert listing.classes == ("cat", "dog", "emu")
    assert [file.label for file in listing.domains["a"]] == [0, 1]
    assert [file.label for file in listing.domains["b"]] == [1, 2]


@pytest.mark.parametrize("to", [".", "..", "../.."])
def test_links_that_lead_back_up_are_refused(tmp_path: Path, to: str) -> None:
    root = laid_out(tmp_path, *(f"{d}/{c}/1.png" for d in "ab" for c in ("cat", "dog")))
    (root / "a" / "cat" / "again").symlink_to(to)
    with pytest.raises(DataError, match="links lead back to a folder above it; remove the link"):
        list_folder(root)


@pytest.mark.parametrize("above", ["", "deep/"])
def test_a_root_that_is_further_down_is_pointed_to(tmp_path: Path, above: str) -> None:
    images = [f"{above}kfold/{d}/{c}/1.png" for d in "ab" for c in ("cat", "dog")]
    root = laid_out(tmp_path, *images)
    with pytest.raises(DataError) as caught:
        list_folder(root)
    assert str(caught.value) == (
        f"{root}: one domain only, with folders in its class folders and no images; "
        f"if domains are further down, give {root}/{above}kfold"
    )
    assert len(list_folder(root / above / "kfold").domains) == 2


def test_a_single_domain_may_have_folders_in_its_classes(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "photo/cat/day/1.png", "photo/dog/night/1.png")
    assert list_folder(root).classes == ("cat", "dog")
    laid_out(tmp_path, "photo/cat/night/2.png", "photo/dog/day/2.png", "photo/dog/3.png")
    assert list_folder(root).classes == ("cat", "dog")


def _unprintable(parent: Path) -> Path:
    """A folder with a name from before UTF-8, as old archives have them."""
    place = parent / os.fsdecode(b"caf\xe9")
    try:
        place.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    return place


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    _unprintable(laid_out(tmp_path / "d", "a/x/1.png", "b/x/1.png") / "a")
    with pytest.raises(DataError, match=r"d/a: the name of a folder in it is not UTF-8 \('caf"):
        list_folder(tmp_path / "d")


def test_images_may_have_any_name(tmp_path: Path) -> None:
    root = laid_out(tmp_path / "d", "a/x/1.png", "b/x/1.png")
    inside = _unprintable(root / "a" / "x")
    image(inside / "1.png")
    (inside / "2.png").write_text("no image")
    benchmark = open_folder(root, allow_small_domains=True, skip_bad_files=True)
    assert len(benchmark["a"]) == 2
    summary = summarise(benchmark)
    assert summary.skipped == [r"a/x/caf\udce9/2.png"]
    assert summary.to_json()


def test_links_are_followed(tmp_path: Path) -> None:
    root = laid_out(tmp_path / "real", "photo/cat/0.png", "photo/dog/0.png")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "photo").symlink_to(root / "photo")
    (root / "photo" / "cat" / "more").symlink_to(root / "photo" / "dog")
    assert [file.path for file in list_folder(linked).domains["photo"]] == [
        "photo/cat/0.png",
        "photo/cat/more/0.png",
        "photo/dog/0.png",
    ]


class TestPassedOver:
    def test_hidden_files_and_what_systems_leave(self, tmp_path: Path) -> None:
        root = laid_out(
            tmp_path,
            "photo/cat/0.png",
            "photo/cat/._0.png",
            "photo/cat/.hidden.png",
            "photo/cat/.ipynb_checkpoints/0-checkpoint.png",
            "photo/cat/__MACOSX/0.png",
            "photo/.cache/0.png",
            ".thumbnails/cat/0.png",
            "__MACOSX/photo/0.png",
        )
        for junk in (".DS_Store", "Thumbs.db", "desktop.ini", ".git/config"):
            for place in ("", "photo", "photo/cat"):
                path = root / place / junk
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("junk")
        listing = list_folder(root)
        assert [file.path for file in listing.domains["photo"]] == ["photo/cat/0.png"]
        assert listing.classes == ("cat",)
        assert list(listing.domains) == ["photo"]
        assert listing.ignored == ()

    def test_folders_without_images_are_no_domains(self, tmp_path: Path) -> None:
        root = laid_out(tmp_path, "photo/cat/0.png")
        (root / "empty").mkdir()
        (root / "logs" / "today").mkdir(parents=True)
        listing = list_folder(root)
        assert list(listing.domains) == ["photo"]
        assert listing.ignored == ("empty", "logs")

    def test_an_empty_folder_is_no_class(self, tmp_path: Path) -> None:
        root = laid_out(tmp_path, "a/cat/0.png", "b/cat/0.png")
        (root / "a" / "aardvark").mkdir()
        listing = list_folder(root)
        assert listing.classes == ("cat",)
        assert listing.domains["a"][0].label == 0

    def test_loose_files_beside_the_folders(self, tmp_path: Path) -> None:
        root = laid_out(tmp_path, "photo/cat/0.png", "photo/loose.png", "loose.png")
        (root / "README.txt").write_text("about")
        assert [file.path for file in list_folder(root).domains["photo"]] == ["photo/cat/0.png"]


class TestDigest:
    def test_it_names_the_content_wherever_and_whenever(self, odd: Path, tmp_path: Path) -> None:
        before = list_folder(odd).digest
        copied = shutil.copytree(odd, tmp_path / "elsewhere")
        for path in copied.rglob("*.png"):
            os.utime(path, (0, 0))
        assert list_folder(copied).digest == before

    @pytest.mark.parametrize("change", ["grown", "gone", "renamed", "another class", "added"])
    def test_it_changes_with_the_content(self, odd: Path, change: str) -> None:
        before = list_folder(odd).digest
        path = odd / "B" / "Ant" / "2.png"
        if change == "grown":
            path.write_bytes(path.read_bytes() + b" ")
        elif change == "gone":
            path.unlink()
        elif change == "renamed":
            path.rename(path.with_name("3.png"))
        elif change == "another class":
            path.rename(odd / "B" / "zebra" / "3.png")
        else:
            image(path.with_name("3.png"))
        assert list_folder(odd).digest != before


class TestRefused:
    """Each message is one line that names the place and what to do."""

    @staticmethod
    def said(root: Path, **options: bool) -> str:
        with pytest.raises(DataError) as caught:
            list_folder(root, **options)
        text = str(caught.value)
        assert "\n" not in text
        return text

    def test_a_root_that_is_not_there(self, tmp_path: Path) -> None:
        root = tmp_path / "nowhere"
        assert self.said(root) == (
            f"{root}: no such folder; give a folder laid out as domain/class/image"
        )

    def test_a_file_as_root(self, tmp_path: Path) -> None:
        root = image(tmp_path / "a.png")
        assert self.said(root).startswith(f"{root}: no such folder; ")

    def test_an_empty_root(self, tmp_path: Path) -> None:
        assert self.said(tmp_path) == (
            f"{tmp_path}: holds no folders; lay it out as domain/class/image"
        )

    def test_a_root_with_only_files(self, tmp_path: Path) -> None:
        image(tmp_path / "a.png")
        assert "holds no folders" in self.said(tmp_path)

    def test_empty_folders(self, tmp_path: Path) -> None:
        (tmp_path / "photo" / "cat").mkdir(parents=True)
        (tmp_path / "photo" / "v1.0").mkdir()
        (tmp_path / "photo" / ".DS_Store").write_text("junk")
        assert self.said(tmp_path) == (
            f"{tmp_path}: no folders with images; lay it out as domain/class/image"
        )

    def test_a_root_one_level_too_deep(self, tmp_path: Path) -> None:
        laid_out(tmp_path, "cat/0.png", "dog/0.png")
        assert self.said(tmp_path) == (
            f"{tmp_path}: 'cat' holds files but no class folders; lay it out as domain/class/image"
        )

    def test_class_folders_without_images_beside_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "photo" / "cat").mkdir(parents=True)
        (tmp_path / "photo" / "README.txt").write_text("about")
        assert f"{tmp_path}: no folders with images; " in self.said(tmp_path)

    def test_a_text_file_in_a_class_folder(self, tmp_path: Path) -> None:
        laid_out(tmp_path, "photo/cat/0.png")
        path = tmp_path / "photo" / "cat" / "notes.txt"
        path.write_text("a cat")
        assert self.said(tmp_path) == (
            f"{path}: not an image; move it away, or pass --skip-bad-files"
        )
        files = list_folder(tmp_path, skip_bad_files=True).domains["photo"]
        assert [file.path for file in files] == ["photo/cat/0.png"]

    def test_a_class_that_one_domain_lacks(self, tmp_path: Path) -> None:
        laid_out(tmp_path, "a/cat/0.png", "b/cat/0.png", "b/dog/0.png", "b/emu/0.png")
        (tmp_path / "a" / "dog").mkdir()
        assert self.said(tmp_path) == (
            f"{tmp_path / 'a'}: no images of class 'dog' (and 1 more), which 'b' has; "
            "add them, remove the folder, or pass --allow-missing-classes"
        )
        assert len(list_folder(tmp_path, allow_missing_classes=True).domains["a"]) == 1

    def test_just_one_missing_class(self, tmp_path: Path) -> None:
        laid_out(tmp_path, "a/cat/0.png", "b/cat/0.png", "b/dog/0.png")
        assert "no images of class 'dog', which 'b' has; " in self.said(tmp_path)

    @pytest.mark.parametrize("options", [{}, {"skip_bad_files": True}])
    def test_a_link_to_nowhere(self, tmp_path: Path, options: dict[str, bool]) -> None:
        laid_out(tmp_path, "photo/cat/0.png")
        path = tmp_path / "photo" / "cat" / "1.png"
        path.symlink_to(tmp_path / "nowhere.png")
        assert self.said(tmp_path, **options) == (
            f"{path}: can't be read (No such file or directory); mend the link or remove it"
        )

    @pytest.mark.parametrize("locked", ["", "photo", "photo/cat", "photo/cat/deep"])
    def test_a_folder_that_may_not_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str
    ) -> None:
        # Tests may run as root, for whom no folder is locked: say no in the system's place.
        laid_out(tmp_path, "photo/cat/0.png", "photo/cat/deep/0.png")
        place, scandir = str(tmp_path / locked), os.scandir

        def refusing(path: str | os.PathLike[str]) -> object:
            if str(path) == place:
                raise PermissionError(13, "Permission denied", place)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refusing)
        assert self.said(tmp_path) == (
            f"{place}: can't be read (Permission denied); check its permissions"
        )
