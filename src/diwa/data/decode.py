"""From a file to pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

_MODES = {1: "L", 2: "LA", 3: "RGB"}

#: What Pillow raises for a file that is no image, or half of one.
BROKEN = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)


def decode(path: Path, channels: int) -> Image.Image:
    """Opens an image with that number of channels, whatever it is stored as.

    Raises:
        OSError: or another of `BROKEN`, if it is no image.
    """
    with Image.open(path) as image:
        image.load()
        return _as_bytes(image).convert(_MODES[channels])


def shrink(image: Image.Image, short_side: int) -> Image.Image:
    """Reduces an image, aspect kept, until its short side is `short_side`; never enlarges it."""
    width, height = image.size
    scale = short_side / min(width, height)
    if scale >= 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def pixels(image: Image.Image) -> np.ndarray:
    """The image as bytes: height, width, channels."""
    array = np.asarray(image)
    return array[:, :, None] if array.ndim == 2 else array


def _as_bytes(image: Image.Image) -> Image.Image:
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")
    if image.mode.startswith("I"):
        # Pillow would clip 16-bit greys to white; their upper byte is the picture.
        wide = np.asarray(image).astype(np.int64)
        deep = wide.max(initial=0) > 255
        return Image.fromarray((wide >> 8 if deep else wide).clip(0, 255).astype(np.uint8))
    return image
