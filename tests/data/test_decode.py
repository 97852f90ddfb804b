"""Decoding: whatever an image is stored as, its bytes are those that DomainBed would see."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diwa.data.decode import BROKEN, decode, pixels, shrink

HIGH, WIDE = 11, 17


def noise(*shape: int, top: int = 256) -> np.ndarray:
    return np.random.RandomState(0).randint(0, top, size=shape)


def colour() -> Image.Image:
    return Image.fromarray(noise(HIGH, WIDE, 3).astype(np.uint8))


def palette() -> Image.Image:
    return colour().quantize(7)


def with_alpha(mode: str) -> Image.Image:
    held = colour().convert(mode)
    held.putalpha(Image.fromarray(noise(HIGH, WIDE).astype(np.uint8)))
    return held


STORED = {
    "grey": (colour().convert("L"), "png", {}),
    "black and white": (colour().convert("1"), "png", {}),
    "colour": (colour(), "png", {}),
    "grey with alpha": (with_alpha("L"), "png", {}),
    "colour with alpha": (with_alpha("RGB"), "png", {}),
    "palette": (palette(), "png", {}),
    "palette, one colour transparent": (palette(), "png", {"transparency": 3}),
    "palette, alpha per colour": (
        palette(),
        "png",
        {"transparency": bytes([0, 50, 100, 150, 200, 250, 255])},
    ),
    "palette, gif in png's clothing": (palette(), "gif", {}),
    "jpeg": (colour(), "jpeg", {}),
    "grey jpeg": (colour().convert("L"), "jpeg", {}),
    "print colours": (colour().convert("CMYK"), "jpeg", {}),
    "webp": (colour(), "webp", {}),
    "tiff": (colour(), "tiff", {}),
    "bitmap": (colour(), "bmp", {}),
    "ppm": (colour(), "ppm", {}),
}


@pytest.fixture(params=list(STORED))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    held, kind, options = STORED[request.param]
    path = tmp_path / "image.png"  # the ending says little about what a file holds
    held.save(path, format=kind, **options)
    return path


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_bytes_are_pillows(stored: Path, channels: int, mode: str) -> None:
    with Image.open(stored) as image:
        # Grey of a palette with alpha goes through its colours: rounding may differ.
        near = 1 if channels == 1 and image.mode == "P" else 0
        expected = np.asarray(image.convert(mode))
    got = pixels(decode(stored, channels))
    assert got.dtype == np.uint8
    assert got.shape == (HIGH, WIDE, channels)
    difference = got.reshape(expected.shape).astype(int) - expected
    assert np.abs(difference).max() <= near


def test_two_channels_are_grey_and_alpha(stored: Path) -> None:
    got = pixels(decode(stored, 2))
    assert got.shape == (HIGH, WIDE, 2)
    np.testing.assert_array_equal(got[:, :, :1], pixels(decode(stored, 1)))
    with Image.open(stored) as image:
        held = image.convert("RGBA")
    np.testing.assert_array_equal(got[:, :, 1], np.asarray(held)[:, :, 3])


def test_transparency_of_a_palette_is_kept_as_alpha(tmp_path: Path) -> None:
    held = palette()
    held.save(tmp_path / "a.png", transparency=3)
    alpha = pixels(decode(tmp_path / "a.png", 2))[:, :, 1]
    np.testing.assert_array_equal(alpha, np.where(np.asarray(held) == 3, 0, 255))


class TestSixteenBits:
    """Pillow would clip 16-bit greys to white; their upper byte is the picture."""

    @pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
    @pytest.mark.parametrize("channels", [1, 2, 3])
    def test_the_upper_byte_is_the_picture(
        self, tmp_path: Path, ending: str, channels: int
    ) -> None:
        deep = noise(HIGH, WIDE, top=2**16).astype(np.uint16)
        path = tmp_path / f"deep.{ending}"
        if ending == "pgm":
            path.write_bytes(b"P5 %d %d 65535\n" % (WIDE, HIGH) + deep.astype(">u2").tobytes())
        else:
            Image.fromarray(deep).save(path)
        got = pixels(decode(path, channels))
        for plane in range(1 if channels == 2 else channels):
            np.testing.assert_array_equal(got[:, :, plane], deep >> 8)
        if channels == 2:
            assert (got[:, :, 1] == 255).all()

    def test_the_other_byte_order(self, tmp_path: Path) -> None:
        deep = noise(HIGH, WIDE, top=2**16).astype(">u2")
        path = tmp_path / "deep.tif"
        Image.frombytes("I;16B", (WIDE, HIGH), deep.tobytes()).save(path)
        np.testing.assert_array_equal(pixels(decode(path, 1))[:, :, 0], deep >> 8)

    def test_eight_bits_in_a_wide_file_stay(self, tmp_path: Path) -> None:
        shallow = noise(HIGH, WIDE)
        for dtype in (np.uint16, np.int32):
            path = tmp_path / "wide.tif"
            Image.fromarray(shallow.astype(dtype)).save(path)
            np.testing.assert_array_equal(pixels(decode(path, 1))[:, :, 0], shallow)


@pytest.mark.filterwarnings("ignore")  # the cache keeps these from the user
class TestBroken:
    @pytest.mark.parametrize("kind", ["jpeg", "png", "bmp", "tiff", "webp", "ppm"])
    def test_a_file_that_ends_early_is_broken(self, tmp_path: Path, kind: str) -> None:
        held = io.BytesIO()
        colour().save(held, format=kind)
        whole = held.getvalue()
        path = tmp_path / "half.png"
        for kept in np.linspace(0, len(whole) * 0.6, 12).astype(int):
            path.write_bytes(whole[:kept])
            with pytest.raises(BROKEN):
                decode(path, 3)

    def test_text_is_broken(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jpg"
        path.write_text("<html>404</html>")
        with pytest.raises(BROKEN, match="cannot identify"):
            decode(path, 3)

    def test_an_image_of_absurd_size_is_broken(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.bmp"
        held = io.BytesIO()
        colour().save(held, format="bmp")
        content = bytearray(held.getvalue())
        content[18:26] = (60_000).to_bytes(4, "little") * 2  # width and height
        path.write_bytes(content)
        with pytest.raises(BROKEN, match="decompression bomb"):
            decode(path, 3)


class TestShrink:
    @pytest.mark.parametrize(
        ("size", "short", "expected"),
        [
            ((100, 60), 30, (50, 30)),
            ((60, 100), 30, (30, 50)),
            ((100, 100), 30, (30, 30)),
            ((101, 67), 30, (45, 30)),
            ((1000, 8), 4, (500, 4)),
        ],
    )
    def test_the_short_side_is_reduced_to_that(
        self, size: tuple[int, int], short: int, expected: tuple[int, int]
    ) -> None:
        assert shrink(Image.new("RGB", size), short).size == expected

    @pytest.mark.parametrize("size", [(30, 30), (30, 99), (29, 400), (1, 1)])
    def test_nothing_is_enlarged_or_touched(self, size: tuple[int, int]) -> None:
        image = Image.new("RGB", size)
        assert shrink(image, 30) is image

    @pytest.mark.parametrize("mode", ["L", "LA", "RGB"])
    def test_it_is_pillows_best_filter(self, mode: str) -> None:
        image = with_alpha("RGB").convert(mode)
        expected = image.resize((8, 5), Image.Resampling.LANCZOS)
        np.testing.assert_array_equal(pixels(shrink(image, 5)), pixels(expected))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("LA", 2), ("RGB", 3)])
def test_pixels_are_height_width_channels(mode: str, channels: int) -> None:
    got = pixels(Image.new(mode, (WIDE, HIGH)))
    assert got.shape == (HIGH, WIDE, channels)
    assert got.dtype == np.uint8
