"""RotatedMNIST: the domains are six angles."""

from __future__ import annotations

import numpy as np
from PIL import Image

from diwa.data.sets.base import Published
from diwa.data.sets.digits import REMOTES, DigitsSet

_ANGLES = (0, 15, 30, 45, 60, 75)


def rotated(images: np.ndarray, digits: np.ndarray, domain: int) -> tuple[np.ndarray, np.ndarray]:
    """One domain: every digit turned by the domain's angle, against the clock."""
    made = np.empty((*images.shape, 1), np.uint8)
    for row, image in enumerate(images):
        turned = Image.fromarray(image).rotate(
            _ANGLES[domain], resample=Image.Resampling.BICUBIC, fillcolor=0
        )
        made[row, :, :, 0] = np.asarray(turned)
    return made, digits


ROTATED_MNIST = DigitsSet(
    name="RotatedMNIST",
    folder="MNIST",
    domains={str(angle): str(angle) for angle in _ANGLES},
    classes=tuple(map(str, range(10))),
    published=(
        Published(
            by="Ghifary et al. 2015, as in DomainBed",
            domains=dict(
                zip(map(str, _ANGLES), (11667, 11667, 11667, 11667, 11666, 11666), strict=True)
            ),
        ),
    ),
    remotes=REMOTES,
    size="12 MB",
    built=True,
    homepage="https://github.com/pytorch/vision/issues",
    render=rotated,
    channels=1,
    resizable=True,
)
