"""What happens to an image before the network sees it, as the protocol says.

Augmentation and squashing work on bytes and give bytes; normalisation is the network's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
        self._flip = v2.RandomHorizontalFlip()
        jitter = {"brightness": 0.3, "contrast": 0.3}
        if spec.channels == 3:
            jitter |= {"saturation": 0.3, "hue": 0.3}
        self._jitter = v2.ColorJitter(**jitter) if spec.channels != 2 else None
        self._grey = v2.RandomGrayscale(0.1) if spec.channels == 3 else None

    def __call__(self, image: np.ndarray, original: tuple[int, int], seed: int) -> np.ndarray:
        """One augmented view.

        The crop is drawn for the original's height and width and then scaled to the stored
        image, so that it covers what it would have covered on the original.
        """
        return self.drawn(original, seed)(image)

    def drawn(self, original: tuple[int, int], seed: int) -> Callable[[np.ndarray], np.ndarray]:
        """The same, with all chance taken beforehand: what is left can be done in any thread.

        Torchvision draws from torch's one generator, which threads would take from each other.
        The draws and their order are those of its own transforms, one after the other.
        """
        if self._spec.augment == "none":
            return partial(squash, size=self._spec.size)
        # Not `torch.manual_seed`, which asks after every kind of device; it took a seventh of the
        # time of an augmentation.
        torch.default_generator.manual_seed(seed)
        box = self._crop.make_params([torch.empty((1, *original), device="meta")])
        flipped = bool(torch.rand(1) < self._flip.p)
        colours = self._jitter.make_params([]) if self._jitter else None
        greyed = self._grey is not None and bool(torch.rand(1) < self._grey.p)
        return partial(self._rendered, original, box, flipped, colours, greyed)

    def _rendered(
        self,
        original: tuple[int, int],
        box: dict[str, Any],
        flipped: bool,
        colours: dict[str, Any] | None,
        greyed: bool,
        image: np.ndarray,
    ) -> np.ndarray:
        whole = _picture(image)
        if image.shape[:2] == original:
            view: Any = self._crop.transform(whole, box)
        else:
            crop = (box["top"], box["left"], box["height"], box["width"])
            view = _resized_crop(whole, crop, original, self._spec.size)
        if flipped:
            view = v2.functional.horizontal_flip(view)
        if self._jitter and colours:
            view = self._jitter.transform(view, colours)
        if greyed:
            view = v2.functional.rgb_to_grayscale(view, num_output_channels=3)
        return pixels(view)


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
