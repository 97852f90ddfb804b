"""`diwa check`: say beforehand whether merging makes sense."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from diwa.cli.console import progress, show_json
from diwa.cli.options import DataFlags, DataOptions, Device, OptionalPath, open_data
from diwa.errors import DiwaError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diwa.analysis.verdict import Verdict

#: The exit code when no verdict could be reached; 0, 1 and 2 are verdicts.
_NO_VERDICT = 3


def check(
    files: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(required)"),
    ],
    /,
    options: DataFlags = DataOptions(),  # noqa: B008 - frozen
    *,
    base: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
    data: OptionalPath = None,
    model: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = "",
    size: tuple[int, ...] = (),
    domain: tuple[str, ...] = (),
    limit: int = 100,
    points: tuple[float, ...] = (0.25, 0.5, 0.75),
    device: Device = "auto",
    json: bool = False,
) -> int:
    """Say whether weights can be averaged: merge, leave some out, or ensemble instead.

    FILES are what diwa merge takes: files and folders of weights, runs, patterns. Nothing but them
    is needed to see whether they hold the same tensors, descend from one initialisation, and lie
    close together. With --data, the loss is measured as well, at their average and on the straight
    line between any two: where it rises there, averaging them loses what they know.

    Exits with 0 for merge, 1 for merge but leave some out, 2 for ensemble instead, 3 for an error;
    wrong flags also give 2, and print nothing on stdout.

    Args:
        files: what might be merged, two or more; name them before the flags.
        options: how the folder of images is opened.
        base: what they were fine-tuned from; adds the distance to it, and angles seen from it.
        data: a folder laid out as domain/class/image, to measure the loss with.
        model: the timm model the weights are of, where diwa did not write them.
        size: pixels of its images' sides, one number or height and width; its own by default.
        domain: which domains of the folder to look at; all by default.
        limit: how many images of each domain, spread evenly over its classes.
        points: where on the line to measure, between 0 and 1.
        device: where to compute, with --data.
        json: print the verdict, and all that was measured, as JSON.
    """
    try:
        verdict = _verdict(files, options, base, data, model, size, domain, limit, points, device)
    except BrokenPipeError:
        raise
    except (DiwaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _NO_VERDICT
    if json:
        show_json(verdict.to_json())
        return verdict.code
    from diwa.cli.verdict import show_verdict

    show_verdict(verdict)
    return verdict.code


def _verdict(
    files: Sequence[str],
    options: DataOptions,
    base: str | None,
    data: Path | None,
    model: str,
    size: tuple[int, ...],
    domains: Sequence[str],
    limit: int,
    points: Sequence[float],
    device: str,
) -> Verdict:
    from diwa.analysis.check import check as checked
    from diwa.analysis.check import image_shape
    from diwa.runs.found import weights_in
    from diwa.weights.locate import locate
    from diwa.weights.member import Member

    if not files:
        raise SpecError("no FILE to check", remedy="name them before the flags")
    if model and data is None:
        raise SpecError(f"model {model}: nothing to measure it with", remedy="pass --data FOLDER")
    told = progress()
    located = locate(files, folders=weights_in)
    members = [Member.from_source(one.source, one.name) for one in located]
    shape = (size[0], size[-1]) if size else None
    benchmark = None
    if data is not None:
        pixels, channels = image_shape(members, model, shape)
        benchmark = open_data(data, options, size=pixels, channels=channels, progress=told)
    return checked(
        members,
        base=base,
        benchmark=benchmark,
        model=model,
        size=shape,
        domains=domains,
        limit=limit,
        points=points,
        device=device,
        progress=told,
    )
