"""A small real benchmark, made when first needed from photographs that scikit-image ships.

Classes are 15 photographs, examples are patches of them, domains are four renderings. What is
trained on comes from the left half of each photograph, the unseen domain from the right half, so
that nothing of the test was ever seen, in any rendering.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps

from diwa.atomic import replacing_folder
from diwa.data.cache import default_directory
from diwa.errors import DataError
from diwa.progress import QUIET, Progress
from diwa.seeding import random_state

#: Class -> the file in scikit-image's wheel.
PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "camera": "camera.png",
    "chelsea": "chelsea.png",
    "coffee": "coffee.png",
    "coins": "coins.png",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "hubble": "hubble_deep_field.jpg",
    "ihc": "ihc.png",
    "moon": "moon.png",
    "motorcycle": "motorcycle_left.png",
    "page": "page.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}

PATCH = 64
_PER_CLASS = 60
_LONG_SIDE = 512
#: Left out on either side of the middle, because a rendering's filters mix nearby pixels.
_BORDER = 12
_VERSION = 2


def demo_folder(target: str, *, directory: Path | None = None, progress: Progress = QUIET) -> Path:
    """The benchmark as a folder of domain/class/image, with one domain to leave unseen.

    Args:
        target: that domain: photo, sketch, cartoon or painting.
        directory: where to make it; beside the caches by default.
        progress: who hears how it goes.

    Raises:
        DataError: for an unknown domain, or if scikit-image is not installed.
    """
    if target not in RENDERINGS:
        raise DataError(
            f"the demo has no domain {target!r}", remedy=f"choose {', '.join(RENDERINGS)}"
        )
    folder = (directory or default_directory() / "demo") / f"v{_VERSION}-unseen-{target}"
    if folder.is_dir():
        return folder
    photographs = _photographs()
    with (
        replacing_folder(folder) as part,
        progress.task("making the demo's images", len(RENDERINGS) * len(PHOTOGRAPHS)) as task,
    ):
        for domain, render in RENDERINGS.items():
            for name, photograph in photographs.items():
                rendered = render(photograph)
                place = part / domain / name
                place.mkdir(parents=True)
                for number, patch in enumerate(_patches(rendered, domain, name, domain == target)):
                    patch.save(place / f"{number:03}.png")
                task.advance()
    return folder


def _photographs() -> dict[str, Image.Image]:
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        raise DataError(
            "the demo's photographs come with scikit-image, which is not installed",
            remedy="pip install 'diwa[demo]'",
        )
    folder = Path(found.origin).parent / "data"
    held = {}
    for name, file in PHOTOGRAPHS.items():
        if not (folder / file).is_file():
            raise DataError(
                f"{folder / file}: not in this release of scikit-image",
                remedy="install scikit-image 0.22 to 0.26",
            )
        with Image.open(folder / file) as image:
            colour = image.convert("RGB")
        colour.thumbnail((_LONG_SIDE, _LONG_SIDE), Image.Resampling.LANCZOS)
        held[name] = colour
    return held


def _patches(image: Image.Image, domain: str, name: str, right: bool) -> list[Image.Image]:
    half = image.width // 2 - _BORDER
    chance = random_state("demo", domain, name)
    lefts = chance.randint(0, half - PATCH + 1, size=_PER_CLASS) + (image.width - half) * right
    tops = chance.randint(0, image.height - PATCH + 1, size=_PER_CLASS)
    return [
        image.crop((int(left), int(top), int(left) + PATCH, int(top) + PATCH))
        for left, top in zip(lefts, tops, strict=True)
    ]


def _photo(image: Image.Image) -> Image.Image:
    return image


def _sketch(image: Image.Image) -> Image.Image:
    """Pencil lines: grey divided by its own blurred self, so that only edges stay dark."""
    grey = image.convert("L")
    blurred = np.asarray(grey.filter(ImageFilter.GaussianBlur(3)), dtype=np.float32)
    ratio = np.asarray(grey, dtype=np.float32) / (blurred + 8)
    lines = np.clip(255 * np.clip(ratio, 0, 1) ** 3, 0, 255)
    return Image.fromarray(lines.astype(np.uint8)).convert("RGB")


def _cartoon(image: Image.Image) -> Image.Image:
    """Flat strong colours between dark outlines."""
    smooth = image.filter(ImageFilter.MedianFilter(5)).filter(ImageFilter.ModeFilter(5))
    flat = ImageOps.posterize(ImageEnhance.Color(smooth).enhance(1.8), 2)
    edges = image.convert("L").filter(ImageFilter.GaussianBlur(1)).filter(ImageFilter.FIND_EDGES)
    outline = edges.point([0 if level > 24 else 255 for level in range(256)])
    return ImageChops.multiply(flat, outline.convert("RGB"))


def _painting(image: Image.Image) -> Image.Image:
    """Broad strokes in warm colours on a coarse ground."""
    strokes = image.filter(ImageFilter.ModeFilter(9)).filter(ImageFilter.SMOOTH)
    warm = np.asarray(ImageEnhance.Color(strokes).enhance(1.4), dtype=np.float32)
    warm = warm * np.array([1.08, 0.98, 0.8], dtype=np.float32)
    chance = random_state("demo", "canvas", image.size)
    ground = chance.normal(0, 14, size=(image.height // 2 + 1, image.width // 2 + 1))
    canvas = np.kron(ground, np.ones((2, 2)))[: image.height, : image.width, None]
    return Image.fromarray(np.clip(warm + canvas, 0, 255).astype(np.uint8))


RENDERINGS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "photo": _photo,
    "sketch": _sketch,
    "cartoon": _cartoon,
    "painting": _painting,
}
