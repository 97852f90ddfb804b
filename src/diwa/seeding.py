"""The only place that derives a seed.

Two kinds: the seeds of the DomainBed protocol, which have golden values, and streams that are
counted by step, so that a run that is resumed draws what it would have drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_hash(*args: object) -> int:
    """The protocol's seed of a tuple: md5 of its text, modulo 2**31.

    Example:
        >>> seed_hash(0, 0), seed_hash(0, 1), seed_hash(1, 0)
        (894182419, 1514274641, 785910682)
    """
    digest = hashlib.md5(str(args).encode("utf-8"), usedforsecurity=False).hexdigest()
    return int(digest, 16) % (2**31)


def run_seed(
    dataset: str, algorithm: str, unseen: int | list[int], hparams_seed: int, trial: int
) -> int:
    """The seed of one training run, as the protocol derives it.

    Example:
        >>> run_seed("OfficeHome", "ERM", 0, 0, 0), run_seed("OfficeHome", "ERM", [0], 0, 0)
        (1453615812, 851163946)
    """
    return seed_hash(dataset, algorithm, unseen, hparams_seed, trial)


def random_state(*args: object) -> np.random.RandomState:
    """A generator for one purpose, e.g. `random_state(seed, "batch", domain, step)`.

    `RandomState` and not `Generator`: NumPy promises that its numbers never change.

    Example:
        >>> a, b = random_state(7, "batch", 0, 12), random_state(7, "batch", 0, 12)
        >>> a.randint(1000) == b.randint(1000)
        True
    """
    return np.random.RandomState(seed_hash(*args))
