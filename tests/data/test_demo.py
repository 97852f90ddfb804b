"""The demo's benchmark: real photographs in four renderings, halves kept apart."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import diwa
from diwa.data import demo
from diwa.data.demo import PATCH, PHOTOGRAPHS, RENDERINGS, demo_folder
from diwa.errors import DataError, StoreError

DOMAINS = ["cartoon", "painting", "photo", "sketch"]
WIDE, HIGH = 256, 140


def coordinates() -> Image.Image:
    """A photograph whose every pixel says where it is."""
    rows, columns = np.mgrid[0:HIGH, 0:WIDE]
    return Image.fromarray(np.stack([columns, rows, columns * 0], axis=2).astype(np.uint8))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two made-up photographs that are rendered as they are: the real ones take seconds."""
    two = {"brick": coordinates(), "moon": coordinates().transpose(Image.Transpose.ROTATE_180)}
    monkeypatch.setattr(demo, "_photographs", lambda: two)
    monkeypatch.setattr(demo, "PHOTOGRAPHS", dict.fromkeys(two, ""))
    monkeypatch.setattr(demo, "RENDERINGS", dict.fromkeys(RENDERINGS, lambda image: image))


def columns_of(folder: Path, domain: str) -> np.ndarray:
    """Which columns of the photograph the patches of a domain show."""
    seen = [np.asarray(Image.open(path))[:, :, 0] for path in (folder / domain).glob("brick/*")]
    return np.unique(seen)


def corners_of(folder: Path, domain: str) -> tuple[tuple[int, int], ...]:
    """Where in its half each patch of a domain was cut out."""
    patches = [np.asarray(Image.open(path)) for path in sorted((folder / domain).glob("brick/*"))]
    return tuple((int(patch[0, 0, 0]) % (WIDE // 2), int(patch[0, 0, 1])) for patch in patches)


@pytest.mark.usefixtures("quick")
class TestPatches:
    @pytest.mark.parametrize("target", DOMAINS)
    def test_the_unseen_half_is_never_trained_on(self, tmp_path: Path, target: str) -> None:
        folder = demo_folder(target, directory=tmp_path)
        for domain in DOMAINS:
            columns = columns_of(folder, domain)
            if domain == target:
                assert columns.min() >= WIDE // 2
                assert columns.max() > WIDE - 20  # and the half is used to its end
            else:
                assert columns.max() < WIDE // 2
                assert columns.min() < 20

    def test_patches_are_alike_in_size_and_number_but_not_in_place(self, tmp_path: Path) -> None:
        folder = demo_folder("photo", directory=tmp_path)
        opened = diwa.open_folder(folder, cache_dir=tmp_path / "cache", size=(PATCH, PATCH))
        assert opened.names == DOMAINS
        assert opened.classes == ("brick", "moon")
        assert opened.ignored == ()
        for domain in opened:
            assert np.bincount(domain.labels).tolist() == [60, 60]
            images = [domain.images[position] for position in range(len(domain))]
            assert {image.shape for image in images} == {(PATCH, PATCH, 3)}
            places = {tuple(image[0, 0]) for image in images}
            assert len(places) > 80

    def test_domains_show_different_places(self, tmp_path: Path) -> None:
        folder = demo_folder("photo", directory=tmp_path)
        assert len({corners_of(folder, domain) for domain in DOMAINS}) == 4

    def test_it_is_made_once_and_the_same_everywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = demo_folder("photo", directory=tmp_path / "a")
        second = demo_folder("photo", directory=tmp_path / "b")
        for path in sorted(first.rglob("*.png")):
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
        monkeypatch.setattr(demo, "_photographs", pytest.fail)
        assert demo_folder("photo", directory=tmp_path / "a") == first

    def test_it_lies_beside_the_caches_unless_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DIWA_CACHE", str(tmp_path))
        assert demo_folder("photo").parent == tmp_path / "demo"

    def test_every_target_has_a_folder_of_its_own(self, tmp_path: Path) -> None:
        assert len({demo_folder(target, directory=tmp_path) for target in DOMAINS}) == 4

    def test_what_is_interrupted_is_not_left_half_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(image: Image.Image) -> Image.Image:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setitem(demo.RENDERINGS, "painting", interrupted)
            with pytest.raises(KeyboardInterrupt):
                demo_folder("photo", directory=tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert len(list(demo_folder("photo", directory=tmp_path).iterdir())) == 4

    def test_a_file_in_the_way_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StoreError, match="can't be written"):
            demo_folder("photo", directory=tmp_path / "file")


class TestPhotographs:
    def test_they_are_those_that_scikit_image_ships(self) -> None:
        held = demo._photographs()
        assert list(held) == list(PHOTOGRAPHS)
        for name, photograph in held.items():
            assert photograph.mode == "RGB", name
            assert max(photograph.size) <= 512, name
            # A patch fits into each half.
            assert photograph.width // 2 >= PATCH, name
            assert photograph.height >= PATCH, name

    def test_renderings_differ_keep_the_size_and_give_the_same_every_time(self) -> None:
        chelsea = demo._photographs()["chelsea"].resize((160, 120))
        rendered = {}
        for name, render in RENDERINGS.items():
            once, again = render(chelsea), render(chelsea.copy())
            assert (once.mode, once.size) == ("RGB", chelsea.size)
            np.testing.assert_array_equal(once, again)
            rendered[name] = np.asarray(once, dtype=int)
        assert (rendered["photo"] == np.asarray(chelsea)).all()
        assert (np.ptp(rendered["sketch"], axis=2) == 0).all()  # pencil has no colour
        assert rendered["sketch"].mean() > 180  # on white paper
        assert set(np.unique(rendered["cartoon"])) <= {0, 64, 128, 192}  # flat colours
        red, _, blue = rendered["painting"].mean(axis=(0, 1))
        assert red / blue > 1.15 * np.divide(*rendered["photo"].mean(axis=(0, 1))[[0, 2]])

    def test_an_odd_size_is_rendered_as_well(self) -> None:
        odd = coordinates().resize((131, 67))
        assert {render(odd).size for render in RENDERINGS.values()} == {(131, 67)}


class TestRefused:
    def test_an_unknown_domain(self, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            demo_folder("art", directory=tmp_path)
        assert str(caught.value) == (
            "the demo has no domain 'art'; choose photo, sketch, cartoon, painting"
        )

    def test_scikit_image_that_is_not_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(DataError) as caught:
            demo_folder("photo", directory=tmp_path)
        assert str(caught.value) == (
            "the demo's photographs come with scikit-image, which is not installed; "
            "pip install 'diwa[demo]'"
        )
        assert list(tmp_path.iterdir()) == []

    def test_a_photograph_that_this_release_lacks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(demo.PHOTOGRAPHS, "brick", "no_such.png")
        with pytest.raises(DataError, match=r"no_such\.png: not in this release of scikit-image; "):
            demo_folder("photo", directory=tmp_path)
