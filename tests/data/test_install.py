"""Adding data sets: every known layout, and nothing lost whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import diwa
from diwa.data import install, sources
from diwa.data.home import MARK, data_home
from diwa.errors import DataError, SpecError

Grow = Callable[[Path, Mapping[str, int]], Path]


def tree(root: Path) -> dict[str, bytes]:
    """Every visible file, by name."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def counts(root: Path) -> dict[str, int]:
    """Images of every domain and class."""
    found: dict[str, int] = {}
    for name in tree(root):
        folder = name.rpartition("/")[0]
        found[folder] = found.get(folder, 0) + 1
    return found


@pytest.fixture
def mine(tmp_path: Path, grow: Grow, small_pacs: dict[str, int]) -> Path:
    """A small PACS of the user's."""
    return grow(tmp_path / "mine", small_pacs)


@pytest.fixture
def root() -> Path:
    """Where PACS goes."""
    return data_home() / "PACS"


class TestPacs:
    @pytest.mark.parametrize("prefix", ["", "kfold/", "PACS/pacs_data/"])
    @pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
    def test_any_depth_and_any_wrapping(
        self,
        tmp_path: Path,
        mine: Path,
        root: Path,
        pack: Callable[..., Path],
        small_pacs: dict[str, int],
        prefix: str,
        kind: str,
    ) -> None:
        given = tmp_path / f"given.{kind}"
        if kind == "folder":
            shutil.copytree(mine, given / prefix)
        elif kind == "zip":
            pack(mine, given, prefix)
        else:
            with tarfile.open(given, "w:gz") as out:
                out.add(mine, prefix.rstrip("/") or ".")
        added = diwa.add_data("PACS", given)
        assert added.new
        assert tree(root) == tree(mine)
        assert counts(root) == small_pacs
        assert {d.name: d.found for d in added.count.domains} == {
            domain: sum(n for folder, n in small_pacs.items() if folder.startswith(domain + "/"))
            for domain in ("art_painting", "cartoon", "photo", "sketch")
        }
        assert added.count.differing == ["art_painting", "cartoon", "photo", "sketch"]
        assert not list(root.parent.glob(".PACS.part"))

    def test_it_is_then_found_by_name(self, mine: Path) -> None:
        diwa.add_data("pacs", mine)
        opened = diwa.open_data("PACS", allow_small_domains=True)
        assert (opened.name, opened["S"].name, opened.index("S")) == ("PACS", "sketch", 3)
        assert opened.digest == diwa.open_folder(mine).digest
        assert len(opened["photo"].images) == len(opened["photo"])

    def test_bytes_are_shared_unless_told(self, mine: Path, root: Path) -> None:
        image = "photo/dog/pic_000.png"
        diwa.add_data("PACS", mine)
        assert (root / image).samefile(mine / image)
        diwa.add_data("PACS", mine, how="copy", replace=True)
        assert not (root / image).samefile(mine / image)
        assert tree(root) == tree(mine)

    def test_where_links_can_not_be_made_files_are_copied(
        self, mine: Path, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def other_disk(*_: object, **__: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", other_disk)
        diwa.add_data("PACS", mine)
        assert tree(root) == tree(mine)
        assert not (root / "photo/dog/pic_000.png").samefile(mine / "photo/dog/pic_000.png")

    def test_a_folder_can_be_referred_to(self, tmp_path: Path, mine: Path, root: Path) -> None:
        (tmp_path / "deep").mkdir()
        shutil.move(mine, tmp_path / "deep" / "kfold")
        before = tree(tmp_path / "deep")
        added = diwa.add_data("PACS", tmp_path / "deep", how="refer")
        assert added.new
        assert root.is_symlink()
        assert root.resolve() == (tmp_path / "deep" / "kfold").resolve()
        assert tree(tmp_path / "deep") == before
        assert not list((tmp_path / "deep").rglob(".*"))
        assert not diwa.add_data("PACS", tmp_path / "deep", how="refer").new
        # Replacing the reference leaves what it points at alone.
        diwa.add_data("PACS", tmp_path / "deep", how="copy", replace=True)
        assert not root.is_symlink()
        assert tree(tmp_path / "deep") == before

    def test_what_has_to_be_rearranged_can_not_be_referred_to(
        self, tmp_path: Path, mine: Path, pack: Callable[..., Path]
    ) -> None:
        shutil.move(mine / "art_painting", mine / "Art Painting")
        for given in (mine, pack(mine, tmp_path / "a.zip")):
            with pytest.raises(DataError, match="its layout has to be changed"):
                diwa.add_data("PACS", given, how="refer")

    @pytest.mark.parametrize("stranger", ["pages/fig/1.png", "photo/dog/notes.txt"])
    def test_what_would_count_and_should_not_can_not_be_referred_to(
        self, mine: Path, root: Path, stranger: str
    ) -> None:
        (mine / stranger).parent.mkdir(parents=True, exist_ok=True)
        (mine / stranger).write_bytes((mine / "photo" / "dog" / "pic_000.png").read_bytes())
        # What neither is an image nor could be taken for one may stay.
        (mine / "README").write_text("hello")
        (mine / "photo" / "dog" / ".hidden.png").write_text("a Mac was here")
        with pytest.raises(DataError) as caught:
            diwa.add_data("PACS", mine, how="refer")
        assert str(caught.value) == (
            f"{mine / stranger}: no image of a known domain and class, and would count as one if "
            "the folder were referred to; move it away, or leave --how out, which takes over what "
            "is known only"
        )
        assert not root.is_symlink()
        (mine / stranger).unlink()
        assert diwa.add_data("PACS", mine, how="refer").new
        assert len(diwa.open_data("PACS", allow_small_domains=True)) == 4

    def test_what_is_no_image_and_no_class_is_left_out(self, mine: Path, root: Path) -> None:
        shutil.copytree(mine / "photo" / "dog", mine / "photo" / "dragon")
        (mine / "photo" / "dog" / "notes.txt").write_text("hello")
        (mine / "photo" / "dog" / "._pic_000.png").write_text("a Mac was here")
        number = len(list((mine / "photo" / "dragon").iterdir()))
        added = diwa.add_data("PACS", mine)
        assert added.notes == (f"{number} images of no known domain and class left out",)
        assert "photo/dragon" not in counts(root)
        assert (mine / "photo" / "dog" / "notes.txt").is_file()


class TestRefused:
    def said(self, *given: object, **more: Any) -> str:
        with pytest.raises(DataError) as caught:
            diwa.add_data(*given, **more)  # pyright: ignore[reportArgumentType]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_an_unknown_name(self, mine: Path) -> None:
        with pytest.raises(SpecError, match="did you mean 'PACS'"):
            diwa.add_data("PASC", mine)

    def test_nothing_given(self) -> None:
        assert self.said("PACS").startswith("PACS: nothing to add")

    def test_another_data_set(self, tmp_path: Path, grow: Grow) -> None:
        other = grow(tmp_path / "other", {"hospital/benign": 3})
        assert self.said("PACS", other) == (
            f"{other}: nothing in there looks like PACS; it should have folders art_painting, "
            "cartoon, photo, sketch, with classes in them"
        )
        assert not (data_home() / "PACS").exists()

    def test_a_domain_that_is_missing(self, mine: Path) -> None:
        shutil.rmtree(mine / "photo")
        assert self.said("PACS", mine).startswith(f"{mine}: has no images of photo; ")

    def test_another_one_is_there_already(self, tmp_path: Path, mine: Path, root: Path) -> None:
        diwa.add_data("PACS", mine)
        kept = tree(root)
        other = tmp_path / "other"
        shutil.copytree(mine, other)
        (other / "photo" / "dog" / "pic_000.png").write_bytes(b"changed")
        assert self.said("PACS", other) == (
            f"{root}: PACS is there already; pass --replace to put this one in its place"
        )
        assert tree(root) == kept
        diwa.add_data("PACS", other, replace=True)
        assert tree(root) == tree(other)
        assert sorted(path.name for path in root.parent.iterdir()) == [".PACS.lock", "PACS"]

    def test_a_folder_that_diwa_did_not_make_is_never_replaced(
        self, mine: Path, root: Path
    ) -> None:
        shutil.copytree(mine, root)
        kept = tree(root)
        text = self.said("PACS", mine, replace=True)
        assert text.startswith(f"{root}: was not made by diwa, so it is left alone; ")
        assert tree(root) == kept

    def test_no_room(self, mine: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))  # pyright: ignore
        assert "GB are needed and 0.0 GB are free" in self.said("PACS", mine, how="copy")
        assert not root.exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_home_that_can_not_be_written(self, tmp_path: Path, mine: Path) -> None:
        (tmp_path / "home").mkdir(mode=0o500)
        assert "DIWA_DATA" in self.said("PACS", mine, home=tmp_path / "home")

    def test_a_file_where_the_home_should_be(self, tmp_path: Path, mine: Path) -> None:
        (tmp_path / "home").write_text("in the way")
        assert "DIWA_DATA" in self.said("PACS", mine, home=tmp_path / "home")


class TestStopped:
    def test_the_same_again_changes_nothing(self, mine: Path, root: Path) -> None:
        assert diwa.add_data("PACS", mine).new
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        again = diwa.add_data("PACS", mine)
        assert not again.new
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before

    def test_a_kill_at_any_file_leaves_the_old_and_the_same_goes_on(
        self, tmp_path: Path, mine: Path, root: Path, pack: Callable[..., Path]
    ) -> None:
        diwa.add_data("PACS", mine, how="copy")
        old = tree(root)
        newer = tmp_path / "newer"
        shutil.copytree(mine, newer)
        (newer / "photo" / "dog" / "pic_000.png").write_bytes(b"changed")
        given = pack(newer, tmp_path / "newer.zip")
        whole = tree(newer)
        written: list[Path] = []
        real = sources.is_whole

        for stop in (1, 20, len(whole) - 1):

            def killed(target: Path, size: int, stop: int = stop) -> bool:
                if real(target, size):
                    return True
                if len(written) == stop:
                    target.write_bytes(b"half")
                    raise KeyboardInterrupt
                written.append(target)
                return False

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("diwa.data.archive.is_whole", killed)
                with pytest.raises(KeyboardInterrupt):
                    diwa.add_data("PACS", given, replace=True)
            assert tree(root) == old
        # What was written before was not written again: each of the files once.
        assert len(written) == len(set(written)) == len(whole) - 1
        diwa.add_data("PACS", given, replace=True)
        assert tree(root) == whole
        assert sorted(path.name for path in root.parent.iterdir()) == [".PACS.lock", "PACS"]

    def test_another_source_begins_afresh(self, tmp_path: Path, mine: Path, root: Path) -> None:
        part = root.with_name(".PACS.part")
        (part / "photo" / "dog").mkdir(parents=True)
        (part / "photo" / "dog" / "stray.png").write_bytes(b"from elsewhere")
        diwa.add_data("PACS", mine)
        assert tree(root) == tree(mine)

    def test_a_kill_between_the_two_renames(self, mine: Path, root: Path) -> None:
        diwa.add_data("PACS", mine, how="copy")
        kept = tree(root)
        root.rename(root.with_name(".PACS.old"))
        # The same command: the old one is back, and it is the one that was asked for.
        assert not diwa.add_data("PACS", mine, how="copy").new
        assert tree(root) == kept

    def test_a_kill_after_the_two_renames(self, mine: Path, root: Path) -> None:
        diwa.add_data("PACS", mine)
        shutil.copytree(root, root.with_name(".PACS.old"))
        diwa.add_data("PACS", mine)
        assert not root.with_name(".PACS.old").exists()

    def test_the_home_itself_can_be_given(self, mine: Path, root: Path) -> None:
        """As with a folder of DomainBed's that is made the home."""
        shutil.copytree(mine, root)
        added = diwa.add_data("PACS", root)
        assert not added.new
        assert not (root / MARK).exists()
        assert added.count.domains[0].found > 0

    def test_what_it_was_made_from_is_noted(self, mine: Path, root: Path) -> None:
        diwa.add_data("PACS", mine)
        noted = json.loads((root / MARK).read_text())
        assert noted["from"][0][0] == str(mine.resolve())


class TestOthers:
    def test_vlcs_of_domainbed(self, tmp_path: Path, grow: Grow) -> None:
        folders = {
            f"VLCS/{domain}/{name}": 1
            for domain in ("Caltech101", "LabelMe", "SUN09", "VOC2007")
            for name in ("bird", "car", "chair", "dog", "person")
        }
        added = diwa.add_data("VLCS", grow(tmp_path / "mine", folders))
        assert [d.found for d in added.count.domains] == [5] * 4
        assert [d.short for d in added.count.domains] == ["C", "L", "S", "V"]

    def test_vlcs_ready_split_with_numbered_classes(self, tmp_path: Path, grow: Grow) -> None:
        folders = {
            f"{domain}/{split}/{label}": 1
            for domain in ("CALTECH", "LABELME", "PASCAL", "SUN")
            for split in ("train", "crossval", "test")
            for label in range(5)
        }
        # Numbered afresh in every split, and all of different bytes.
        added = diwa.add_data("VLCS", grow(tmp_path / "mine", folders))
        held = counts(data_home() / "VLCS")
        assert set(held) == {
            f"{domain}/{name}"
            for domain in ("Caltech101", "LabelMe", "SUN09", "VOC2007")
            for name in ("bird", "car", "chair", "dog", "person")
        }
        assert added.notes[0] == "Caltech101: from its folders crossval, test, train"

    def test_office_home_as_it_is_packed(
        self, tmp_path: Path, grow: Grow, pack: Callable[..., Path]
    ) -> None:
        classes = diwa.DATASETS.get("OfficeHome").classes
        folders = {
            f"{domain}/{name}": 1
            for domain in ("Art", "Clipart", "Product", "Real World")
            for name in classes
        }
        mine = grow(tmp_path / "mine", folders)
        (mine / "imagelist.txt").write_text("Art/Alarm_Clock/00001.jpg")
        given = pack(mine, tmp_path / "office.zip", "OfficeHomeDataset_10072016/")
        added = diwa.add_data("OfficeHome", given)
        assert counts(data_home() / "office_home") == folders
        assert added.count.missing_classes == []
        opened = diwa.open_data("OfficeHome", allow_small_domains=True)
        assert opened.names == ["Art", "Clipart", "Product", "Real World"]
        assert opened["R"].name == "Real World"

    def test_office_home_with_underscores(self, tmp_path: Path, grow: Grow) -> None:
        folders = {
            f"{domain}/{split}/alarm_clock": 1
            for domain in ("art", "clipart", "product", "real_world")
            for split in ("train", "val")
        }
        added = diwa.add_data("OfficeHome", grow(tmp_path / "mine", folders))
        assert "Real World/Alarm_Clock" in counts(data_home() / "office_home")
        assert len(added.count.missing_classes) == 64


class TestDomainNet:
    @pytest.fixture
    def archives(self, tmp_path: Path, grow: Grow, pack: Callable[..., Path]) -> Path:
        """One archive for each domain, as they are published."""
        mine = grow(
            tmp_path / "mine",
            {f"{d}/{d}/zebra": 3 for d in diwa.DATASETS.get("DomainNet").domains},
        )
        folder = tmp_path / "archives"
        folder.mkdir()
        for domain in mine.iterdir():
            pack(domain, folder / f"{domain.name}.zip")
        return folder

    def test_without_a_list_of_duplicates_that_is_said(self, archives: Path) -> None:
        added = diwa.add_data("DomainNet", archives)
        assert [d.found for d in added.count.domains] == [3] * 6
        assert added.notes[0].startswith("duplicates: there is no list of them, so they stay in")

    def test_the_list_beside_the_archives(self, archives: Path) -> None:
        (archives / "domain_net_duplicates.txt").write_text(
            "clipart/zebra/pic_001.png\nreal/zebra/pic_000.png\nreal/zebra/not_there.png\n\n"
        )
        added = diwa.add_data("DomainNet", archives)
        assert [d.found for d in added.count.domains] == [2, 3, 3, 3, 2, 3]
        assert added.notes == ("duplicates: 2 of the 3 listed were there, and left out",)

    def test_the_list_named_and_the_archives_one_by_one(
        self, tmp_path: Path, archives: Path
    ) -> None:
        listed = tmp_path / "list.txt"
        listed.write_text("domain_net/sketch/zebra/pic_002.png")
        added = diwa.add_data("DomainNet", *archives.iterdir(), duplicates=listed)
        assert [d.found for d in added.count.domains] == [3, 3, 3, 3, 3, 2]
        assert not diwa.add_data("DomainNet", *archives.iterdir(), duplicates=listed).new

    @pytest.mark.parametrize("text", ["what is this\n", "a/b/c.png\nzebra/pic.png"])
    def test_something_else_than_a_list(self, tmp_path: Path, archives: Path, text: str) -> None:
        listed = tmp_path / "list.txt"
        listed.write_text(text)
        with pytest.raises(DataError, match=r"list\.txt: line \d is '.*', not domain/class/image"):
            diwa.add_data("DomainNet", archives, duplicates=listed)

    def test_some_domains_only(self, archives: Path) -> None:
        with pytest.raises(DataError, match="has no images of infograph, painting"):
            diwa.add_data("DomainNet", archives / "clipart.zip")


class TestTerraIncognita:
    CATEGORIES = ({"id": 1, "name": "bird"}, {"id": 6, "name": "dog"}, {"id": 99, "name": "car"})

    def annotated(self, number: int, location: object, *labels: int) -> dict[str, Any]:
        name = f"pic_{number:03}"
        return {
            "images": [
                {"id": name, "file_name": f"{name}.png", "location": location, "seq_id": "x"}
            ],
            "annotations": [
                {"id": f"{number}-{label}", "image_id": name, "category_id": label}
                for label in labels
            ],
        }

    @pytest.fixture
    def raw(self, tmp_path: Path, grow: Grow) -> Path:
        return grow(tmp_path / "raw", {"eccv_18_all_images_sm": 9})

    def annotations(self, string_locations: bool) -> dict[str, Any]:
        at = str if string_locations else int
        parts = [
            self.annotated(0, at(38), 1),
            self.annotated(1, at(46), 6),
            self.annotated(2, at(100), 1, 6),  # two animals
            self.annotated(3, at(43), 1, 99),
            self.annotated(4, at(43), 99),  # no class of ours
            self.annotated(5, at(7), 1),  # no place of ours
            self.annotated(6, at(38), 6, 6),  # two of a kind
            self.annotated(500, at(38), 6),  # not among the images
        ]
        return {
            "info": {},
            "categories": list(self.CATEGORIES),
            "images": [image for part in parts for image in part["images"]],
            "annotations": [one for part in parts for one in part["annotations"]],
        }

    EXPECTED = (
        "location_100/bird/pic_002.png",
        "location_100/dog/pic_002.png",
        "location_38/bird/pic_000.png",
        "location_38/dog/pic_006.png",
        "location_43/bird/pic_003.png",
        "location_46/dog/pic_001.png",
    )

    @pytest.mark.parametrize("string_locations", [True, False])
    def test_raw_images_with_their_json(self, raw: Path, string_locations: bool) -> None:
        (raw / "caltech_images_20210113.json").write_text(
            json.dumps(self.annotations(string_locations))
        )
        added = diwa.add_data("TerraIncognita", raw)
        root = data_home() / "terra_incognita"
        assert tuple(tree(root)) == self.EXPECTED
        image = raw / "eccv_18_all_images_sm" / "pic_000.png"
        assert (root / "location_38/bird/pic_000.png").samefile(image)
        assert added.notes == (
            "annotations: caltech_images_20210113.json",
            "1 annotated images are not among the images, pic_500.png first",
        )
        opened = diwa.open_data(
            "TerraIncognita", allow_small_domains=True, allow_missing_classes=True
        )
        assert opened["L100"].name == "location_100"

    def test_archives_of_both(self, tmp_path: Path, raw: Path, pack: Callable[..., Path]) -> None:
        import zipfile

        images = tmp_path / "images.tar.gz"
        with tarfile.open(images, "w:gz") as out:
            out.add(raw / "eccv_18_all_images_sm", "eccv_18_all_images_sm")
        notes = tmp_path / "labels.json.zip"
        with zipfile.ZipFile(notes, "w") as out:
            out.writestr("caltech.json", json.dumps(self.annotations(True)))
        diwa.add_data("TerraIncognita", images, notes)
        assert tuple(tree(data_home() / "terra_incognita")) == self.EXPECTED

    def test_annotations_in_several_files(self, raw: Path) -> None:
        whole = self.annotations(False)
        folder = raw / "eccv_18_annotation_files"
        folder.mkdir()
        for place, name in enumerate(("train_annotations", "trans_test_annotations")):
            images = whole["images"][place::2]
            held = {image["id"] for image in images}
            notes = [one for one in whole["annotations"] if one["image_id"] in held]
            part = {**whole, "images": images, "annotations": notes}
            (folder / f"{name}.json").write_text(json.dumps(part))
        (folder / "other.json").write_text('{"something": "else"}')
        diwa.add_data("TerraIncognita", raw)
        assert tuple(tree(data_home() / "terra_incognita")) == self.EXPECTED

    def test_images_without_annotations(self, raw: Path) -> None:
        with pytest.raises(DataError, match="images without annotations; give the json"):
            diwa.add_data("TerraIncognita", raw)

    def test_a_json_of_another_kind(self, raw: Path) -> None:
        broken = {**self.annotations(True), "images": [{"id": 3}]}
        (raw / "a.json").write_text(json.dumps(broken))
        with pytest.raises(DataError, match=r"a\.json: not the annotations of Caltech"):
            diwa.add_data("TerraIncognita", raw)

    def test_folders_that_are_ready(self, tmp_path: Path, grow: Grow) -> None:
        folders = {f"terra_incognita/location_{at}/bird": 2 for at in (38, 43, 46, 100)}
        added = diwa.add_data("TerraIncognita", grow(tmp_path / "mine", folders))
        assert [(d.short, d.found) for d in added.count.domains] == [
            ("L100", 2),
            ("L38", 2),
            ("L43", 2),
            ("L46", 2),
        ]


def test_two_at_once_wait_for_each_other(mine: Path, root: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        added = list(pool.map(lambda _: diwa.add_data("PACS", mine), range(2)))
    assert sorted(one.new for one in added) == [False, True]
    assert tree(root) == tree(mine)
    assert install.MARK == MARK
