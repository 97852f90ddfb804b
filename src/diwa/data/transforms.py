"""What happens to an image before the network sees it, as the protocol says.

Augmentation and squashing work on bytes and give bytes; normalisation is the network's.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from diwa.data.decode import pixels
from diwa.errors import SpecError
from diwa.spec import Spec


class ImageSpec(Spec, frozen=True, kw_only=True):
    """How images reach the network.

    Example:
        >>> ImageSpec(size=(96, 128)).channels
        3
    """

    size: tuple[int, int] = (224, 224)
    """Height and width."""
    channels: int = 3
    """1 for grey, 2 for grey with alpha, 3 for colour."""
    augment: Literal["domainbed", "none"] = "domainbed"
    """How training images are varied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.size) < 8:
            raise SpecError(f"size {self.size}: too small", remedy="give at least 8 pixels")
        if self.channels not in (1, 2, 3):
            raise SpecError(
                f"channels={self.channels}", remedy="images have 1, 2 or 3 of them here"
            )


class Augment:
    """The training transform; its randomness is `seed`'s alone.

    Args:
        spec: the size, the channels and the kind of augmentation.
    """

    def __init__(self, spec: ImageSpec) -> None:
        self._spec = spec
        self._crop = v2.RandomResizedCrop(spec.size, scale=(0.7, 1.0))
        jitter = {"brightness": 0.3, "contrast": 0.3}
        after: dict[int, list[torch.nn.Module]] = {
            1: [v2.ColorJitter(**jitter)],
            2: [],
            3: [v2.ColorJitter(**jitter, saturation=0.3, hue=0.3), v2.RandomGrayscale(0.1)],
        }
        self._after = v2.Compose([v2.RandomHorizontalFlip(), *after[spec.channels]])

    def __call__(self, image: np.ndarray, original: tuple[int, int], seed: int) -> np.ndarray:
        """One augmented view.

        The crop is drawn for the original's height and width and then scaled to the stored
        image, so that it covers what it would have covered on the original.
        """
        if self._spec.augment == "none":
            return squash(image, self._spec.size)
        torch.manual_seed(seed)
        picture = _picture(image)
        if image.shape[:2] == original:
            cropped = self._crop(picture)
        else:
            cropped = _resized_crop(picture, self._drawn(original), original, self._spec.size)
        return pixels(self._after(cropped))

    def _drawn(self, original: tuple[int, int]) -> tuple[int, int, int, int]:
        """Top, left, height and width; the same draws as in `self._crop`."""
        blank = torch.empty((1, *original), device="meta")
        return self._crop.get_params(blank, list(self._crop.scale), list(self._crop.ratio))


def squash(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The evaluation transform: the whole image, resized with no regard to its aspect."""
    if image.shape[:2] == size:
        return image
    picture: Any = _picture(image)  # torchvision takes images, though its annotations don't
    return pixels(v2.functional.resize(picture, list(size)))  # pyright: ignore[reportArgumentType]


def _picture(image: np.ndarray) -> Image.Image:
    if image.shape[2] == 2:
        return _grey_alpha(image)
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def _grey_alpha(image: np.ndarray) -> Image.Image:
    planes = [Image.fromarray(np.ascontiguousarray(image[:, :, plane])) for plane in (0, 1)]
    return Image.merge("LA", planes)


def _resized_crop(
    picture: Image.Image,
    crop: tuple[int, int, int, int],
    original: tuple[int, int],
    size: tuple[int, int],
) -> Image.Image:
    down, across = picture.height / original[0], picture.width / original[1]
    top, left, height, width = crop
    box = (
        left * across,
        top * down,
        min((left + width) * across, picture.width),
        min((top + height) * down, picture.height),
    )
    return picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
