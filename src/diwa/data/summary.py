"""What a benchmark holds, as plain numbers."""

from __future__ import annotations

import numpy as np

from diwa.data.benchmark import Benchmark
from diwa.data.cache import CachedImages
from diwa.spec import Spec


class DomainSummary(Spec, frozen=True, kw_only=True):
    """One domain in numbers."""

    name: str
    """Its name."""
    classes: dict[str, int]
    """Images of every class."""
    cached_bytes: int
    """What its decoded images take on disk; 0 if they were not looked at."""


class Summary(Spec, frozen=True, kw_only=True):
    """A benchmark in numbers."""

    name: str
    """Its name."""
    digest: str
    """Names its content."""
    classes: list[str]
    """In the order of the labels."""
    domains: list[DomainSummary]
    """In the order that numbers them."""
    ignored: list[str]
    """Folders that hold no images."""
    skipped: list[str]
    """Files that could not be decoded and were left out."""
    cache_dir: str
    """Where decoded images are."""
    cache_side: int
    """The longest short side that is kept."""


def summarise(benchmark: Benchmark, *, decode: bool = True) -> Summary:
    """Counts everything.

    Args:
        benchmark: what to count.
        decode: whether to open all images, which finds broken ones and fills the cache.

    Raises:
        DataError: for the first image that can't be decoded, unless they are skipped.
    """
    domains, skipped = [], []
    for domain in benchmark:
        images = domain.images if decode else None
        if isinstance(images, CachedImages):
            skipped += [path for path, _ in images.broken]
        counts = np.bincount(
            domain.labels if decode else domain.listed, minlength=len(benchmark.classes)
        )
        domains.append(
            DomainSummary(
                name=domain.name,
                classes=dict(zip(benchmark.classes, counts.tolist(), strict=True)),
                cached_bytes=images.size if isinstance(images, CachedImages) else 0,
            )
        )
    cache = benchmark.cache
    return Summary(
        name=benchmark.name,
        digest=benchmark.digest,
        classes=list(benchmark.classes),
        domains=domains,
        ignored=list(benchmark.ignored),
        skipped=skipped,
        cache_dir=str(cache.directory) if cache else "",
        cache_side=cache.side if cache else 0,
    )
