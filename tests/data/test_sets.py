"""What is written down of the data sets: against the protocol's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from diwa.data.sets import DATASETS, alike, find, full_names, known
from diwa.errors import SpecError

#: As the protocol lists them: environments in order, images in all.
SETS = {
    "PACS": (["A", "C", "P", "S"], 7, [2048, 2344, 1670, 3929]),
    "VLCS": (["C", "L", "S", "V"], 5, [1415, 2656, 3282, 3376]),
    "OfficeHome": (["A", "C", "P", "R"], 65, [2427, 4365, 4439, 4357]),
    "TerraIncognita": (["L100", "L38", "L43", "L46"], 10, [4879, 9767, 4020, 6122]),
    "DomainNet": (
        ["clip", "info", "paint", "quick", "real", "sketch"],
        345,
        [48129, 51605, 72266, 172500, 172947, 69128],
    ),
    "ColoredMNIST": (["+90%", "+80%", "-90%"], 2, [23334, 23333, 23333]),
    "RotatedMNIST": (
        ["0", "15", "30", "45", "60", "75"],
        10,
        [11667, 11667, 11667, 11667, 11666, 11666],
    ),
}
TOTALS = {"VLCS": 10729, "OfficeHome": 15588, "TerraIncognita": 24788, "DomainNet": 586575}
FOLDERS = {
    "PACS": "PACS",
    "VLCS": "VLCS",
    "OfficeHome": "office_home",
    "TerraIncognita": "terra_incognita",
    "DomainNet": "domain_net",
}


def test_these_and_no_others() -> None:
    assert DATASETS.names() == sorted(SETS)


@pytest.mark.parametrize("name", SETS)
def test_environments_classes_and_counts(name: str) -> None:
    held = DATASETS.get(name)
    environments, classes, counts = SETS[name]
    assert held.name == name
    assert list(held.domains.values()) == environments
    assert len(held.classes) == len(set(held.classes)) == classes
    assert held.published[0].domains == dict(zip(held.domains, counts, strict=True))
    assert sum(counts) == TOTALS.get(name, sum(counts))
    assert held.folder == FOLDERS.get(name, "MNIST")


def test_newer_downloads_of_terra_incognita() -> None:
    _, newer = DATASETS.get("TerraIncognita").published
    assert sum(newer.domains.values()) == 24330


@pytest.mark.parametrize("name", SETS)
def test_counts_of_classes_add_up(name: str) -> None:
    for published in DATASETS.get(name).published:
        for domain, classes in published.classes.items():
            assert sum(classes) == published.domains[domain]
            assert len(classes) == len(DATASETS.get(name).classes)


@pytest.mark.parametrize("name", SETS)
def test_every_place_is_on_the_web(name: str) -> None:
    held = DATASETS.get(name)
    assert held.homepage.startswith("https://")
    for remote in held.remotes:
        assert remote.urls
        assert all(url.startswith(("http://", "https://")) for url in remote.urls)
        assert remote.sha256 is None or len(bytes.fromhex(remote.sha256)) == 32


def test_the_real_pacs_is_as_published(pacs: Path) -> None:
    from diwa.data.published import count

    counted = count(DATASETS.get("PACS"), pacs)
    assert counted.as_published
    assert [domain.found for domain in counted.domains] == SETS["PACS"][2]
    assert all(not domain.differing for domain in counted.domains)


class TestNames:
    @pytest.mark.parametrize("name", ["OfficeHome", "officehome", "office_home", "Office-Home"])
    def test_any_spelling_and_the_folders_name(self, name: str) -> None:
        found = find(name)
        assert found is not None
        assert found.name == "OfficeHome"

    def test_nothing_of_that_name(self) -> None:
        assert find("photos") is None
        with pytest.raises(SpecError, match=r"no data set is called 'PASC'; did you mean 'PACS'\?"):
            known("PASC")

    def test_short_names_of_domains(self) -> None:
        assert full_names("PACS", ("A", "S")) == {"art_painting", "sketch"}
        # In DomainNet, sketch is the name of a folder and of its environment.
        assert full_names("domain_net", ("clip", "sketch")) == {"clipart", "sketch"}
        assert full_names("photos", ("A",)) == {"A"}

    def test_a_folder_elsewhere_is_recognised_by_what_it_holds(self) -> None:
        pacs = DATASETS.get("PACS")
        assert alike(list(pacs.domains), pacs.classes) is pacs
        assert alike(list(pacs.domains), pacs.classes[1:]) is None
        assert alike(list(pacs.domains)[1:], pacs.classes) is None
