"""Transforms against torchvision's own, byte for byte; crops of reduced images by geometry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from diwa.data.decode import pixels, shrink
from diwa.data.transforms import Augment, ImageSpec, squash
from diwa.errors import SpecError

COLOURS = {
    1: [v2.ColorJitter(0.3, 0.3)],
    2: [],
    3: [v2.ColorJitter(0.3, 0.3, 0.3, 0.3), v2.RandomGrayscale(0.1)],
}


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    chance = np.random.RandomState(height * 1000 + width)
    return chance.randint(0, 256, size=(height, width, channels)).astype(np.uint8)


def picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image.squeeze())  # two channels are grey and alpha to Pillow, too


def protocols(size: tuple[int, int], channels: int = 3) -> v2.Compose:
    """The protocol's training transform, as torchvision puts it together."""
    return v2.Compose(
        [v2.RandomResizedCrop(size, scale=(0.7, 1.0)), v2.RandomHorizontalFlip()]
        + COLOURS[channels]
    )


def expected(image: np.ndarray, size: tuple[int, int], seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    return pixels(protocols(size, image.shape[2])(picture(image)))


class TestOriginalSize:
    @pytest.mark.parametrize("shape", [(64, 64), (40, 90), (90, 40), (20, 31), (9, 200)])
    @pytest.mark.parametrize("size", [(32, 32), (24, 48)])
    def test_it_is_torchvisions_byte_for_byte(
        self, shape: tuple[int, int], size: tuple[int, int]
    ) -> None:
        image, augment = noise(*shape), Augment(ImageSpec(size=size))
        for seed in range(40):
            got = augment(image, shape, seed)
            assert got.dtype == np.uint8
            np.testing.assert_array_equal(got, expected(image, size, seed))

    @pytest.mark.parametrize("channels", [1, 2])
    def test_one_and_two_channels_as_well(self, channels: int) -> None:
        image = noise(40, 50, channels)
        augment = Augment(ImageSpec(size=(32, 24), channels=channels))
        for seed in range(40):
            got = augment(image, (40, 50), seed)
            assert got.shape == (32, 24, channels)
            np.testing.assert_array_equal(got, expected(image, (32, 24), seed))

    def test_only_the_seed_decides(self) -> None:
        image, augment = noise(40, 40), Augment(ImageSpec(size=(32, 32)))
        first = augment(image, (40, 40), 5)
        torch.manual_seed(99)
        augment(image, (40, 40), 6)
        np.testing.assert_array_equal(augment(image, (40, 40), 5), first)
        np.testing.assert_array_equal(Augment(ImageSpec(size=(32, 32)))(image, (40, 40), 5), first)
        views = {augment(image, (40, 40), seed).tobytes() for seed in range(50)}
        assert len(views) == 50

    def test_the_image_itself_is_left_alone(self) -> None:
        # What comes from the cache can't be written to.
        image = noise(40, 40)
        image.flags.writeable = False
        kept = image.copy()
        Augment(ImageSpec(size=(32, 32)))(image, (40, 40), 1)
        np.testing.assert_array_equal(image, kept)


def ramp(height: int, width: int, *, across: bool) -> np.ndarray:
    """Grey that tells where one is: from 40 at one side to 200 at the other."""
    rows, columns = np.mgrid[0:height, 0:width]
    where = (columns + 0.5) / width if across else (rows + 0.5) / height
    return np.round(40 + 160 * where).astype(np.uint8)[:, :, None]


class TestReduced:
    """Of an image stored smaller, a crop covers what it would have covered on the original."""

    @pytest.mark.parametrize("across", [True, False])
    @pytest.mark.parametrize("shape", [(400, 400), (301, 517), (517, 301), (200, 900)])
    def test_the_crop_covers_the_same_part(self, shape: tuple[int, int], across: bool) -> None:
        original = ramp(*shape, across=across)
        stored = pixels(shrink(Image.fromarray(original[:, :, 0]), 64))
        assert min(stored.shape[:2]) == 64
        augment = Augment(ImageSpec(size=(48, 48), channels=1))
        for seed in range(25):
            got = augment(stored, shape, seed).astype(int)
            want = expected_grey(original, (48, 48), seed).astype(int)
            # Two resizings instead of one: levels differ by rounding, most at the borders.
            assert np.abs(got - want).max() <= 4
            assert np.abs(got - want).mean() <= 1

    def test_another_crop_would_be_noticed(self) -> None:
        # What the test above forbids, and what a crop drawn for the stored size does.
        original = ramp(400, 400, across=True)
        stored = pixels(shrink(Image.fromarray(original[:, :, 0]), 64))
        augment = Augment(ImageSpec(size=(48, 48), channels=1))
        far = [
            np.abs(
                augment(stored, (64, 64), seed).astype(int)
                - expected_grey(original, (48, 48), seed)
            ).mean()
            for seed in range(25)
        ]
        assert np.mean(np.array(far) > 1) > 0.5

    def test_colours_flips_and_greys_are_drawn_as_on_the_original(self) -> None:
        rows, columns = np.mgrid[0:300, 0:400]
        original = np.stack(
            [60 + rows // 3, 60 + columns // 3, 200 - (rows + columns) // 6], axis=2
        ).astype(np.uint8)
        stored = pixels(shrink(Image.fromarray(original), 70))
        augment = Augment(ImageSpec(size=(48, 48)))
        greys = 0
        for seed in range(40):
            want = expected(original, (48, 48), seed).astype(int)
            got = augment(stored, (300, 400), seed).astype(int)
            assert np.abs(got - want).mean() < 1.5
            greys += int((got.std(axis=2) == 0).all())
        assert 0 < greys < 12

    @pytest.mark.parametrize("shape", [(41, 410), (410, 41)])
    def test_the_box_lies_within_the_stored_image(self, shape: tuple[int, int]) -> None:
        # The crop takes the whole short side, and 41 x (28 / 41) is a little more than 28.
        stored = pixels(shrink(Image.fromarray(noise(*shape)), 28))
        assert min(stored.shape[:2]) == 28
        assert Augment(ImageSpec(size=(8, 8)))(stored, shape, 0).shape == (8, 8, 3)

    def test_each_side_is_scaled_by_itself(self) -> None:
        for across in (True, False):
            original = ramp(400, 300, across=across)
            stored = pixels(Image.fromarray(original[:, :, 0]).resize((150, 80)))
            augment = Augment(ImageSpec(size=(48, 48), channels=1))
            for seed in range(10):
                got = augment(stored, (400, 300), seed).astype(int)
                assert np.abs(got - expected_grey(original, (48, 48), seed)).max() <= 4

    @pytest.mark.parametrize("channels", [1, 2, 3])
    def test_the_shape_is_the_networks(self, channels: int) -> None:
        augment = Augment(ImageSpec(size=(24, 40), channels=channels))
        got = augment(noise(30, 30, channels), (60, 60), 0)
        assert (got.shape, got.dtype) == ((24, 40, channels), np.uint8)


def expected_grey(image: np.ndarray, size: tuple[int, int], seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    return pixels(protocols(size, 1)(Image.fromarray(image[:, :, 0])))


class TestSquash:
    @pytest.mark.parametrize("shape", [(64, 64), (40, 90), (90, 40), (20, 20)])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_it_is_torchvisions_resize(self, shape: tuple[int, int], channels: int) -> None:
        image = noise(*shape, channels)
        resized: Any = v2.Resize((32, 24))(Image.fromarray(image.squeeze()))
        np.testing.assert_array_equal(squash(image, (32, 24)), pixels(resized))

    def test_grey_and_alpha(self) -> None:
        image = noise(50, 40, 2)
        image[:, :, 1] = 255
        got = squash(image, (32, 24))
        np.testing.assert_array_equal(got[:, :, :1], squash(image[:, :, :1], (32, 24)))
        assert (got[:, :, 1] == 255).all()

    def test_an_image_of_that_size_is_itself(self) -> None:
        image = noise(32, 24)
        assert squash(image, (32, 24)) is image

    def test_nothing_is_cropped(self) -> None:
        image = np.zeros((30, 90, 3), np.uint8)
        image[:, :3] = 255
        image[:, -3:] = 255
        got = squash(image, (30, 30))
        assert (got[:, 0] > 200).all()
        assert (got[:, -1] > 200).all()


def test_no_augmentation_is_squashing() -> None:
    augment = Augment(ImageSpec(size=(32, 24), augment="none"))
    state = torch.random.get_rng_state()
    for seed in range(3):
        np.testing.assert_array_equal(
            augment(noise(50, 40), (50, 40), seed), squash(noise(50, 40), (32, 24))
        )
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": (7, 224)}, "size (7, 224): too small; give at least 8 pixels"),
        ({"size": (224, 0)}, "size (224, 0): too small; give at least 8 pixels"),
        ({"channels": 4}, "channels=4; images have 1, 2 or 3 of them here"),
        ({"channels": 0}, "channels=0; images have 1, 2 or 3 of them here"),
    ],
)
def test_a_wrong_specification_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        ImageSpec(**wrong)
    assert str(caught.value) == says


def test_an_unknown_augmentation_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"Invalid enum value 'auto' - at `\$.augment`"):
        ImageSpec.from_json(b'{"augment": "auto"}')
