"""The cache: right pixels, built once, safe among processes, honest about what is broken."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diwa.data import cache as cache_module
from diwa.data.cache import Cache, CachedImages, default_directory, list_caches, remove
from diwa.data.decode import pixels, shrink
from diwa.data.folder import list_folder
from diwa.errors import DataError
from diwa.progress import QUIET, Quiet, Task

SIDE = 24


class Counting(Quiet):
    """Counts what was decoded."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.done = 0

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Task]:
        self.titles.append(f"{title}: {total}")
        yield self

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        del note
        self.done += amount


def make_photos(root: Path) -> Path:
    """Two domains of images that are large, small, high, wide, grey and see-through."""
    chance = np.random.RandomState(3)
    for domain in ("photo", "sketch"):
        for name in ("cat", "dog"):
            place = root / domain / name
            place.mkdir(parents=True)
            for number, size in enumerate([(40, 40), (10, 12), (60, 25), (25, 60), (24, 99)]):
                held = chance.randint(0, 256, size=(*size, 4)).astype(np.uint8)
                mode = "RGBA" if number == 1 else "L" if number == 2 else "RGB"
                Image.fromarray(held).convert(mode).save(place / f"{number}.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", SIDE, 3)


def opened(
    cache: Cache, root: Path, domain: str = "photo", progress: Quiet = QUIET
) -> CachedImages:
    return cache.open(root, domain, list_folder(root).domains[domain], progress)


def every(images: CachedImages) -> list[np.ndarray]:
    return [images[position] for position in range(len(images))]


def builds(cache: Cache, root: Path, domain: str = "photo") -> int:
    counting = Counting()
    opened(cache, root, domain, counting)
    return len(counting.titles)


def entries(cache: Cache) -> list[str]:
    return sorted(p.name for p in cache.directory.iterdir() if not p.name.startswith("."))


def touch(path: Path) -> None:
    """Changes a file's time, as writing it would."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


class TestPixels:
    @pytest.mark.parametrize("channels", [1, 2, 3])
    def test_they_are_those_of_the_files(self, photos: Path, tmp_path: Path, channels: int) -> None:
        images = opened(Cache(tmp_path / "cache", SIDE, channels), photos)
        files = list_folder(photos).domains["photo"]
        assert len(images) == len(files) == 10
        for position, file in enumerate(files):
            with Image.open(photos / file.path) as image:
                held = image.convert({1: "L", 2: "LA", 3: "RGB"}[channels])
            expected = pixels(shrink(held, SIDE))
            np.testing.assert_array_equal(images[position], expected)
            assert images[position].shape == expected.shape
            assert images.original_size(position) == (held.height, held.width)

    def test_large_images_are_reduced_and_small_ones_kept(self, photos: Path, cache: Cache) -> None:
        shapes = [image.shape[:2] for image in every(opened(cache, photos))]
        assert shapes[:5] == [(24, 24), (10, 12), (58, 24), (24, 58), (24, 99)]

    def test_one_chunk_or_many_give_the_same(
        self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        many = opened(Cache(tmp_path / "many", SIDE, 3), photos)
        monkeypatch.setattr(os, "cpu_count", lambda: None)  # eight at a time
        few = opened(Cache(tmp_path / "few", SIDE, 3), photos)
        for one, other in zip(every(many), every(few), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_they_stay_on_disk(self, photos: Path, cache: Cache) -> None:
        images = opened(cache, photos)
        base: object = images[0]
        while not isinstance(base, mmap.mmap):
            base = base.base  # type: ignore[attr-defined]
        assert images.size == sum(image.size for image in every(images))
        with pytest.raises(ValueError, match="read-only"):
            images[0][:] = 0

    def test_workers_get_the_path_and_no_pixels(self, photos: Path, cache: Cache) -> None:
        images = opened(cache, photos)
        sent = pickle.dumps(images)
        assert len(sent) < 1000 < images.size
        np.testing.assert_array_equal(pickle.loads(sent)[3], images[3])

    def test_warnings_are_kept_from_the_user_but_not_for_good(
        self, photos: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # From here on Pillow warns of every image above 30 x 30.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1250)
        before = list(warnings.filters)
        opened(cache, photos)
        assert list(warnings.filters) == before
        with pytest.warns(Image.DecompressionBombWarning):
            Image.open(photos / "photo" / "cat" / "0.png").close()


class TestBuiltOnce:
    def test_a_second_look_decodes_nothing(self, photos: Path, cache: Cache) -> None:
        counting = Counting()
        opened(cache, photos, progress=counting)
        assert counting.titles == ["decoding photo: 10"]
        assert counting.done == 10
        assert builds(cache, photos) == 0
        assert builds(cache, photos, "sketch") == 1

    def test_a_moved_folder_is_not_decoded_again(
        self, photos: Path, cache: Cache, tmp_path: Path
    ) -> None:
        opened(cache, photos)
        moved = photos.rename(tmp_path / "elsewhere")
        assert builds(cache, moved) == 0

    def test_other_pixels_of_the_same_size_and_date_are_seen(
        self, photos: Path, cache: Cache
    ) -> None:
        path = photos / "photo" / "cat" / "0.png"
        opened(cache, photos)
        kept = path.stat()
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
        assert path.stat().st_size == kept.st_size
        assert builds(cache, photos) == 1

    @pytest.mark.parametrize("change", ["touched", "rewritten", "added", "gone", "renamed"])
    def test_a_changed_file_is_seen_and_the_old_entry_goes(
        self, photos: Path, cache: Cache, change: str
    ) -> None:
        opened(cache, photos)
        opened(cache, photos, "sketch")
        before = entries(cache)
        path = photos / "photo" / "cat" / "0.png"
        if change == "touched":
            touch(path)
        elif change == "rewritten":
            Image.new("RGB", (30, 30), "red").save(path)
        elif change == "added":
            shutil.copy(path, path.with_name("new.png"))
        elif change == "gone":
            path.unlink()
        else:
            path.rename(path.with_name("00.png"))
        counting = Counting()
        images = opened(cache, photos, progress=counting)
        assert len(counting.titles) == 1
        assert len(images) == {"added": 11, "gone": 9}.get(change, 10)
        if change == "rewritten":
            assert (images[0] == (255, 0, 0)).all()
        assert len(entries(cache)) == 2
        assert len(set(entries(cache)) & set(before)) == 1  # that of the other domain
        assert builds(cache, photos, "sketch") == 0
        locks = list(cache.directory.glob(".*.lock"))
        assert {lock.name[1:-5] for lock in locks} <= set(entries(cache))

    def test_sizes_channels_and_other_folders_have_entries_of_their_own(
        self, photos: Path, cache: Cache, tmp_path: Path
    ) -> None:
        other = make_photos(tmp_path / "others")
        touch(other / "photo" / "cat" / "0.png")
        grey = Cache(cache.directory, SIDE, 1)
        small = Cache(cache.directory, SIDE // 2, 3)
        for each in (cache, grey, small):
            assert builds(each, photos) == 1
        assert builds(cache, other) == 1
        assert len(entries(cache)) == 4
        for each in (cache, grey, small):
            assert builds(each, photos) == 0

    def test_several_processes_decode_it_once(self, photos: Path, tmp_path: Path) -> None:
        script = """
import sys, time
from pathlib import Path
from diwa.data.cache import Cache
from diwa.data.folder import list_folder
from diwa.progress import Quiet

class Counting(Quiet):
    built = 0
    def task(self, title, total):
        self.built += 1
        time.sleep(0.3)  # so that the others come upon it half-built
        return super().task(title, total)

root, directory, go = map(Path, sys.argv[1:])
counting, files = Counting(), list_folder(root).domains["photo"]
print("ready", flush=True)
while not go.exists():
    time.sleep(0.002)
images = Cache(directory, 24, 3).open(root, "photo", files, counting)
print(counting.built, sum(int(images[at].sum()) for at in range(len(images))))
"""
        go = tmp_path / "go"
        command = [sys.executable, "-c", script, str(photos), str(tmp_path / "cache"), str(go)]
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        said = []
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        go.touch()
        for worker in workers:
            said.append(worker.communicate(timeout=60)[0].split())
            assert worker.returncode == 0
        assert sorted(built for built, _ in said) == ["0", "0", "1"]
        images = opened(Cache(tmp_path / "cache", SIDE, 3), photos)
        assert {int(their) for _, their in said} == {sum(int(i.sum()) for i in every(images))}
        assert len(entries(Cache(tmp_path / "cache", SIDE, 3))) == 1


class TestLeftovers:
    @pytest.mark.parametrize(
        "damage", ["pixels cut", "no pixels", "no index", "no about", "about cut", "about odd"]
    )
    def test_a_half_built_entry_is_built_anew(
        self, photos: Path, cache: Cache, damage: str
    ) -> None:
        expected = [image.copy() for image in every(opened(cache, photos))]
        folder = cache.directory / entries(cache)[0]
        held = (
            folder
            / {"pixels": "pixels.u8", "index": "index.npy", "about": "about.json"}[
                damage.replace("no ", "").split()[0]
            ]
        )
        if damage.startswith("no"):
            held.unlink()
        elif damage.endswith("cut"):
            held.write_bytes(held.read_bytes()[:100])
        else:
            held.write_text("[1]")
        counting = Counting()
        images = opened(cache, photos, progress=counting)
        assert len(counting.titles) == 1
        for one, other in zip(every(images), expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert builds(cache, photos) == 0

    def test_an_interrupted_decoding_leaves_nothing(self, photos: Path, cache: Cache) -> None:
        class Interrupted(Counting):
            def advance(self, amount: int = 1, *, note: str = "") -> None:
                super().advance(amount, note=note)
                if self.done == 4:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            opened(cache, photos, progress=Interrupted())
        assert entries(cache) == []
        assert list(cache.directory.glob("*.part")) == []
        assert builds(cache, photos) == 1

    def test_a_killed_decoding_is_cleared_away_by_the_next(
        self, photos: Path, cache: Cache
    ) -> None:
        opened(cache, photos)
        folder = cache.directory / entries(cache)[0]
        killed = folder.rename(folder.with_name(f".{folder.name}.4711-abcdef.part"))
        assert list_caches(cache.directory) == []
        assert builds(cache, photos) == 1
        assert not killed.exists()

    def test_a_strangers_folder_does_no_harm(self, photos: Path, cache: Cache) -> None:
        for name, text in (("a", "{"), ("b", "[]"), ("c", '{"root": 1}'), ("d", None)):
            (cache.directory / name).mkdir(parents=True)
            if text is not None:
                (cache.directory / name / "about.json").write_text(text)
        assert builds(cache, photos) == 1
        assert [one.domain for one in list_caches(cache.directory)] == ["photo"]
        assert entries(cache)[:4] == ["a", "b", "c", "d"]


class TestListed:
    def test_what_is_told_of_an_entry(self, photos: Path, cache: Cache) -> None:
        assert list_caches(cache.directory) == []  # not even the folder is there
        images = opened(cache, photos)
        opened(cache, photos, "sketch")
        photo, sketch = list_caches(cache.directory)
        assert (photo.domain, sketch.domain) == ("photo", "sketch")
        assert (photo.root, photo.side, photo.bytes) == (str(photos), SIDE, images.size)
        assert photo.folder.parent == cache.directory

    def test_a_removed_entry_is_gone_and_made_again(self, photos: Path, cache: Cache) -> None:
        opened(cache, photos)
        remove(list_caches(cache.directory)[0])
        assert list(cache.directory.iterdir()) == []
        assert builds(cache, photos) == 1

    @pytest.mark.parametrize(
        ("told", "expected"),
        [
            ({"DIWA_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
            ({"DIWA_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/diwa"),
            ({"HOME": "/home/me"}, "/home/me/.cache/diwa"),
        ],
    )
    def test_where_it_is_unless_told(
        self, monkeypatch: pytest.MonkeyPatch, told: dict[str, str], expected: str
    ) -> None:
        for name in ("DIWA_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        assert default_directory() == Path(expected)


class TestBroken:
    def test_broken_files_are_left_out_and_named(self, photos: Path, cache: Cache) -> None:
        whole = (photos / "photo" / "cat" / "0.png").read_bytes()
        (photos / "photo" / "cat" / "1.png").write_bytes(whole[:200])
        (photos / "photo" / "dog" / "0.png").write_text("no image")
        images = opened(cache, photos)
        assert images.kept.tolist() == [0, 2, 3, 4, 6, 7, 8, 9]
        assert len(images) == 8
        (cut, why), (text, no_image) = images.broken
        assert (cut, text) == ("photo/cat/1.png", "photo/dog/0.png")
        assert "truncated" in why
        assert no_image == "no image format that is known"
        # Positions count the images that are left.
        with Image.open(photos / "photo" / "cat" / "2.png") as image:
            expected = pixels(shrink(image.convert("RGB"), SIDE))
        np.testing.assert_array_equal(images[1], expected)
        assert images.original_size(1) == (60, 25)

    def test_nothing_but_broken_files(self, tmp_path: Path, cache: Cache) -> None:
        path = tmp_path / "photos" / "photo" / "cat" / "0.png"
        path.parent.mkdir(parents=True)
        path.write_text("no image")
        assert len(opened(cache, tmp_path / "photos")) == 0
        assert builds(cache, tmp_path / "photos") == 0

    def test_a_file_that_is_mended_is_looked_at_again(self, photos: Path, cache: Cache) -> None:
        path = photos / "photo" / "cat" / "0.png"
        whole = path.read_bytes()
        path.write_bytes(whole[:100])
        assert len(opened(cache, photos)) == 9
        path.write_bytes(whole)
        assert len(opened(cache, photos)) == 10

    def test_a_file_that_can_not_be_read_is_no_broken_image(
        self, photos: Path, cache: Cache
    ) -> None:
        # Were it remembered as broken, it would stay so once its permissions are mended.
        files = list_folder(photos).domains["photo"]
        path = photos / "photo" / "cat" / "0.png"
        away = path.rename(path.with_suffix(".away"))
        with pytest.raises(DataError) as caught:
            cache.open(photos, "photo", files, QUIET)
        assert str(caught.value) == (
            f"{path}: can't be read (No such file or directory); check its permissions and the disk"
        )
        assert entries(cache) == []
        away.rename(path)
        assert len(cache.open(photos, "photo", files, QUIET)) == 10


class TestNoRoom:
    """What can't be written is said in one line, with the folder and the option."""

    @staticmethod
    def said(cache: Cache, root: Path) -> str:
        with pytest.raises(DataError) as caught:
            opened(cache, root)
        return str(caught.value)

    def test_a_file_in_the_place_of_the_folder(self, photos: Path, cache: Cache) -> None:
        cache.directory.write_text("in the way")
        assert self.said(cache, photos) == (
            f"{cache.directory}: the cache can't be written (File exists); "
            "free some space, or choose another place with --cache-dir"
        )

    def test_a_file_above_it(self, photos: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        cache = Cache(tmp_path / "file" / "cache", SIDE, 3)
        assert "can't be written (Not a directory); " in self.said(cache, photos)

    def test_a_file_in_the_place_of_an_entry(self, photos: Path, cache: Cache) -> None:
        opened(cache, photos)
        entry = cache.directory / entries(cache)[0]
        shutil.rmtree(entry)
        entry.write_text("in the way")
        said = self.said(cache, photos)
        assert said.startswith(f"{cache.directory}: the cache can't be written (")
        assert said.endswith("--cache-dir")

    def test_a_full_disk(self, photos: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(cache_module.os, "fsync", full)
            assert self.said(cache, photos) == (
                f"{cache.directory}: the cache can't be written (No space left on device); "
                "free some space, or choose another place with --cache-dir"
            )
        assert entries(cache) == []
        assert builds(cache, photos) == 1


def test_what_is_written_down(photos: Path, cache: Cache) -> None:
    # Other versions read this: it changes together with the format's number.
    opened(cache, photos)
    folder = cache.directory / entries(cache)[0]
    about = json.loads((folder / "about.json").read_text())
    assert about == {
        "format": 1,
        "root": str(photos),
        "domain": "photo",
        "side": SIDE,
        "channels": 3,
        "bytes": (folder / "pixels.u8").stat().st_size,
        "broken": [],
    }
    assert np.load(folder / "index.npy").shape == (10, 5)
