"""Looks at several sets of weights and says whether they can be averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diwa.analysis.evidence import Evidence
from diwa.analysis.gather import Agreement, gather
from diwa.analysis.verdict import Verdict, decide
from diwa.errors import ModelError, WeightsError
from diwa.progress import QUIET, Progress
from diwa.runs.found import weights_in
from diwa.weights.locate import locate
from diwa.weights.member import Member

if TYPE_CHECKING:
    from diwa.analysis.barrier import Survey
    from diwa.data.benchmark import Benchmark

#: Where on the way from one member to another the loss is measured.
POINTS = (0.25, 0.5, 0.75)


def check(
    members: Sequence[Member | Path | str],
    *,
    base: Member | Path | str | None = None,
    benchmark: Benchmark | None = None,
    model: str = "",
    size: tuple[int, int] | None = None,
    domains: Sequence[str] = (),
    limit: int = 100,
    points: Sequence[float] = POINTS,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = QUIET,
) -> Verdict:
    """Says whether weights can be averaged: all of them, some of them, or none.

    Looks at whether they hold the same tensors and descend from one initialisation, and how far
    apart they are; given images, also at the loss on the way from each to each.

    Args:
        members: two or more: members, or anything that `diwa merge` takes.
        base: what they were fine-tuned from, if it is at hand.
        benchmark: images to measure the loss with; nothing is measured without.
        model: the timm model the weights are of, if their files don't tell.
        size: height and width of its images; the model's own by default.
        domains: which of the benchmark's domains to look at; all by default.
        limit: how many images of each domain.
        points: where on the way from one member to another to measure, between 0 and 1.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        threads: how many; one per processor by default. The result does not depend on it.
        progress: who hears how it goes.

    Raises:
        DiwaError: if there are fewer than two members, one can't be read, or the images or the
            model don't fit.

    Example:
        >>> import diwa
        >>> verdict = diwa.check(example_members)
        >>> verdict.action, verdict.code
        ('ensemble', 2)
    """
    known = _opened(members)
    if len(known) < 2:
        raise WeightsError(
            f"{known[0].path}: a single set of weights, nothing to compare it with",
            remedy="name two or more",
        )
    agreement = Agreement(known)
    start = None if base is None else _opened([base])[0]
    evidence = gather(agreement, base=start, threads=threads, progress=progress)
    if benchmark is None:
        return decide(evidence)
    broken = {one.name for one in evidence.members if one.broken}
    able = [member for member in agreement.groups[0] if member.name not in broken]
    if len(able) < 2:
        return decide(evidence)
    from diwa.analysis.barrier import Survey

    about = _about(able[0], model, size, benchmark)
    ground = Survey(able, about, benchmark, domains=domains, limit=limit, device=device)
    measured = _with_losses(evidence, ground, points, progress)
    return decide(measured, merged=ground.mean)


def _opened(items: Sequence[Member | Path | str]) -> list[Member]:
    """Members as they are, and what paths stand for, with names that tell them apart."""
    paths = [item for item in items if not isinstance(item, Member)]
    found = iter(locate(paths, folders=weights_in)) if paths or not items else iter(())
    if all(isinstance(item, Member) for item in items):
        known = [item for item in items if isinstance(item, Member)]
    else:
        known = [Member.from_source(one.source, one.name) for one in found]
        known += [item for item in items if isinstance(item, Member)]
    counts = Counter(member.name for member in known)
    twice = [member for member in known if counts[member.name] > 1]
    if len({str(member.path) for member in twice}) < len(twice):
        raise WeightsError(
            f"{twice[0].path}: two members are called {twice[0].name!r}",
            remedy="name each file once, or give members names of their own",
        )
    return [
        Member.from_source(member.source, str(member.path)) if member in twice else member
        for member in known
    ]


def image_shape(
    members: Sequence[Member], model: str = "", size: tuple[int, int] | None = None
) -> tuple[tuple[int, int], int]:
    """Height and width, and the channels, of the images that members take.

    Raises:
        ModelError: if the files don't tell, and no model is named.
    """
    from diwa.models.network import described

    for member in members:
        if "model" in member.about:
            spec = described(member.about)
            return spec.size, spec.channels
    if not model:
        raise _untold(members[0])
    return size or _natural_size(model), 3


def _untold(member: Member) -> ModelError:
    return ModelError(
        f"{member.path}: does not tell which network it is of",
        remedy="pass --model NAME, one of timm's",
    )


def _about(
    member: Member, model: str, size: tuple[int, int] | None, benchmark: Benchmark
) -> dict[str, Any]:
    """How to build the network: as the file tells, or as the user does."""
    if "model" in member.about:
        return dict(member.about)
    if not model:
        raise _untold(member)
    from diwa.models.network import ModelSpec

    spec = ModelSpec(
        backbone=model,
        size=size or _natural_size(model),
        channels=benchmark.channels,
        classes=benchmark.classes,
    )
    return {"model": msgspec.to_builtins(spec)}


def _natural_size(model: str) -> tuple[int, int]:
    """Height and width of the images that a timm model is made for."""
    import timm

    try:
        config = timm.get_pretrained_cfg(model, allow_unregistered=True)
    except RuntimeError as error:
        raise ModelError(f"model {model!r}: timm has no such weights ({error})") from error
    _, height, width = config.input_size if config else (3, 224, 224)
    return height, width


def _with_losses(
    evidence: Evidence, ground: Survey, points: Sequence[float], progress: Progress
) -> Evidence:
    from diwa.analysis.barrier import survey

    land = survey(ground, points=points, progress=progress)
    barriers = {frozenset((way.one, way.other)): way.barrier for way in land.ways}
    pairs = [
        msgspec.structs.replace(pair, barrier=barriers.get(frozenset((pair.one, pair.other))))
        for pair in evidence.pairs
    ]
    return msgspec.structs.replace(evidence, pairs=pairs, landscape=land)
