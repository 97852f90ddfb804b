"""ColoredMNIST: a digit's colour tells its class, and tells the opposite in the third domain."""

from __future__ import annotations

import numpy as np

from diwa.data.sets.base import Published
from diwa.data.sets.digits import REMOTES, DigitsSet
from diwa.seeding import random_state

#: How often the label is flipped, and in each domain the colour.
_LABEL_NOISE = 0.25
_COLOUR_NOISE = (0.1, 0.2, 0.9)


def coloured(images: np.ndarray, digits: np.ndarray, domain: int) -> tuple[np.ndarray, np.ndarray]:
    """One domain: two channels, of which the one that is not the colour stays black."""
    flipped = random_state("ColoredMNIST", "labels", domain).rand(len(digits)) < _LABEL_NOISE
    labels = (digits < 5) ^ flipped
    noise = random_state("ColoredMNIST", "colours", domain).rand(len(digits))
    colours = labels ^ (noise < _COLOUR_NOISE[domain])
    made = np.zeros((*images.shape, 2), np.uint8)
    made[np.arange(len(images)), :, :, colours.astype(int)] = images
    return made, labels.astype(np.int64)


COLORED_MNIST = DigitsSet(
    name="ColoredMNIST",
    folder="MNIST",
    # Their usual names can't be folders, and the third looks like a flag to a command line.
    domains={"plus90": "+90%", "plus80": "+80%", "minus90": "-90%"},
    classes=("5-9", "0-4"),
    published=(
        Published(
            by="Gulrajani and Lopez-Paz 2021",
            domains={"plus90": 23334, "plus80": 23333, "minus90": 23333},
        ),
    ),
    remotes=REMOTES,
    size="12 MB",
    built=True,
    homepage="https://github.com/pytorch/vision/issues",
    render=coloured,
    channels=2,
    # Scaled as grey with transparency, a black channel would swallow the other one.
    resizable=False,
)
