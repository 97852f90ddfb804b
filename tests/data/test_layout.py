"""Recognising layouts: names in, places out; no file is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from diwa.data.layout import Arrangement, arrange, plain
from diwa.data.sets import DATASETS

DOMAINS: dict[str, Sequence[str]] = {"art_painting": ("art_painting", "art"), "photo": ("photo",)}
CLASSES = {"dog": "dog", "hot_tub": "hot_tub", "0": "dog"}


def placed(names: Sequence[str] | Mapping[str, int], **expected: int) -> Arrangement:
    images = names if isinstance(names, Mapping) else dict.fromkeys(names, 1)
    return arrange(images, domains=DOMAINS, classes=CLASSES, expected=expected)


@pytest.mark.parametrize("root", ["", "PACS/", "kfold/", "a/b c/PACS (1)/kfold/", "photo/dog/"])
def test_the_domains_are_found_at_any_depth(root: str) -> None:
    names = [f"{root}art_painting/dog/1.jpg", f"{root}photo/dog/2.jpg", f"{root}photo/dog/3.jpg"]
    assert placed(names).files == {
        "art_painting/dog/1.jpg": names[0],
        "photo/dog/2.jpg": names[1],
        "photo/dog/3.jpg": names[2],
    }


@pytest.mark.parametrize("domain", ["art_painting", "Art Painting", "ArtPainting", "ART", "art"])
@pytest.mark.parametrize("name", ["hot_tub", "Hot Tub", "hottub", "HOT-TUB"])
def test_names_in_any_spelling(domain: str, name: str) -> None:
    made = placed([f"x/{domain}/{name}/1.jpg"])
    assert made.files == {"art_painting/hot_tub/1.jpg": f"x/{domain}/{name}/1.jpg"}


def test_numbered_classes() -> None:
    assert list(placed(["photo/0/1.jpg"]).files) == ["photo/dog/1.jpg"]


def test_folders_below_a_class_are_kept() -> None:
    assert list(placed(["photo/dog/big/1.jpg"]).files) == ["photo/dog/big/1.jpg"]


def test_what_belongs_nowhere_is_counted() -> None:
    made = placed(["photo/dog/1.jpg", "photo/cat/2.jpg", "photo/3.jpg", "other/dog/4.jpg"])
    assert list(made.files) == ["photo/dog/1.jpg"]
    assert made.passed_over == 3
    assert made.missing(DOMAINS) == ["art_painting"]


def test_domains_that_lie_apart_are_put_together() -> None:
    made = placed(["first/art/dog/1.jpg", "second/photo/dog/2.jpg"])
    assert list(made.files) == ["art_painting/dog/1.jpg", "photo/dog/2.jpg"]


def test_one_root_for_all_wins_over_scattered_namesakes() -> None:
    whole = [f"kfold/art_painting/dog/{number}.jpg" for number in range(2)]
    whole += ["kfold/photo/dog/1.jpg"]
    others = [f"raw/photo/dog/{number}.jpg" for number in range(9)]
    made = placed([*others, *whole])
    assert sorted(made.files.values()) == sorted(whole)
    assert made.passed_over == 9


class TestSplits:
    def test_train_and_test_are_put_together(self) -> None:
        made = placed(["photo/train/dog/1.jpg", "photo/test/dog/2.jpg"])
        assert sorted(made.files) == ["photo/dog/1.jpg", "photo/dog/2.jpg"]
        assert made.notes == ["photo: from its folders test, train"]

    def test_an_image_in_two_of_them_counts_once(self) -> None:
        made = placed({"photo/train/dog/1.jpg": 7, "photo/val/dog/1.jpg": 7})
        assert list(made.files) == ["photo/dog/1.jpg"]

    def test_other_images_of_the_same_name_are_kept_apart(self) -> None:
        made = placed({"photo/test/dog/1.jpg": 7, "photo/train/dog/1.jpg": 8})
        assert made.files == {
            "photo/dog/1.jpg": "photo/test/dog/1.jpg",
            "photo/dog/train-1.jpg": "photo/train/dog/1.jpg",
        }

    FULL = ("photo/full/0/1.jpg", "photo/full/0/2.jpg")
    PARTS = ("photo/train/0/1.jpg", "photo/crossval/0/2.jpg")

    def test_full_is_everything_and_counts_once(self) -> None:
        made = placed([*self.FULL, *self.PARTS])
        assert sorted(made.files.values()) == sorted(self.FULL)
        assert made.notes == ["photo: from its folders full"]

    def test_the_published_count_tells_whether_full_is_everything(self) -> None:
        names = [*self.FULL, *self.PARTS, "photo/test/0/3.jpg"]
        assert len(placed(names, photo=3).files) == 3
        assert placed(names, photo=3).notes == ["photo: from its folders crossval, test, train"]
        assert placed(names, photo=2).notes == ["photo: from its folders full"]
        # Nothing matches: nothing is left out.
        assert len(placed(names, photo=99).files) == 3

    def test_a_class_called_like_a_split_is_a_class(self) -> None:
        made = arrange(
            {"photo/train/1.jpg": 1, "photo/train/x/2.jpg": 1},
            domains=DOMAINS,
            classes={"train": "train"},
            expected={},
        )
        assert list(made.files) == ["photo/train/1.jpg", "photo/train/x/2.jpg"]


@pytest.mark.parametrize("name", ["PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"])
def test_no_two_names_of_a_data_set_mean_the_same(name: str) -> None:
    held = DATASETS.get(name)
    classes = {**{name: name for name in held.classes}, **held.classes_also}
    assert len({plain(name) for name in classes}) == len(classes)
    domains = [*held.domains, *(also for names in held.domains_also.values() for also in names)]
    assert len({plain(name) for name in domains}) == len(domains)
    assert list(held.classes) == sorted(held.classes)
    assert list(held.domains) == sorted(held.domains)


def test_many_images_take_seconds_not_minutes() -> None:
    import time

    names = {f"x/{domain}/dog/{number}.jpg": 1 for domain in DOMAINS for number in range(100_000)}
    began = time.monotonic()
    assert len(placed(names).files) == 200_000
    assert time.monotonic() - began < 20
