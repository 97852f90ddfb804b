"""Scores of one set of weights on several domains."""

from __future__ import annotations

from collections.abc import Sequence

from diwa.data.benchmark import Benchmark
from diwa.errors import DataError, SpecError
from diwa.evaluate.predict import Weights, image_of, predict_network, source_of
from diwa.models.device import Compute
from diwa.models.network import restore_network
from diwa.progress import QUIET, Progress
from diwa.spec import Spec

#: Which of a domain's images to score: every one, or either side of a trial's split.
PARTS = ("all", "in", "out")


class Score(Spec, frozen=True, kw_only=True):
    """How well one domain is classified."""

    domain: str
    """Its name."""
    part: str
    """Which of its images: all, in (80 %) or out (20 %)."""
    images: int
    """How many that are."""
    accuracy: float
    """The share that is right."""
    cross_entropy: float
    """The mean loss."""


def score_domains(
    weights: Weights,
    benchmark: Benchmark,
    domains: Sequence[str],
    *,
    part: str = "all",
    trial: int = 0,
    device: str = "auto",
    precision: str = "auto",
    progress: Progress = QUIET,
) -> list[Score]:
    """Scores a member or a soup on domains, one after the other.

    Args:
        weights: the member or soup.
        benchmark: the images.
        domains: which of them.
        part: "all", or "in" or "out" of the trial's split.
        trial: which split.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        precision: "auto", "fp32" or "bf16".
        progress: who hears how it goes.

    Raises:
        DiwaError: if the weights are for other classes, a domain is not there or is empty, or
            there is no such part.
    """
    if part not in PARTS:
        raise SpecError(f"part {part!r}", remedy=f"choose {', '.join(PARTS)}")
    chosen = [benchmark[name] for name in domains]
    image = image_of(weights.about, benchmark)
    compute = Compute.choose(device, precision)
    network = restore_network(weights.about, dict(weights.tensors())).to(compute.device)
    scores = []
    for domain in chosen:
        split = benchmark.split(domain.name, trial=trial)
        source = source_of(domain, {"all": None, "in": split.inner, "out": split.outer}[part])
        if not len(source.positions):
            raise DataError(
                f"{domain.name}: has no images in part {part!r}", remedy="use --part all"
            )
        says = predict_network(
            network, source, image, compute, progress=progress, title=f"scoring {domain.name}"
        )
        scores.append(
            Score(
                domain=domain.name,
                part=part,
                images=len(says),
                accuracy=says.accuracy(),
                cross_entropy=says.cross_entropy(),
            )
        )
    return scores
