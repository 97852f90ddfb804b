"""`diwa eval`: score a file of weights on domains."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from diwa.cli.console import progress, show, show_json
from diwa.cli.options import DataFlags, DataOptions, Device, open_data


def evaluate(
    weights: tyro.conf.Positional[Path],
    data: tyro.conf.Positional[Path],
    /,
    options: DataFlags = DataOptions(),  # noqa: B008 - frozen
    *,
    domain: tuple[str, ...] = (),
    part: Literal["all", "in", "out"] = "all",
    trial: int = 0,
    device: Device = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    json: bool = False,
) -> None:
    """Score a soup or a run on the domains of a folder.

    Args:
        weights: a file that diwa wrote, or the folder of a run.
        data: a folder laid out as domain/class/image.
        options: how the folder is opened.
        domain: which domains; all by default.
        part: all images, or the 80 % (in) or 20 % (out) of a trial's split.
        trial: which split, for --part in and out.
        device: where to compute.
        precision: of the arithmetic.
        json: print the scores as JSON.
    """
    import msgspec

    from diwa.errors import StoreError
    from diwa.evaluate.score import score_domains
    from diwa.models.network import described
    from diwa.runs.found import weights_in
    from diwa.weights.member import Member

    told = progress()
    runs = weights_in(weights) if weights.is_dir() else None
    if runs and len(runs) > 1:
        raise StoreError(f"{weights}: holds {len(runs)} runs", remedy="name one, or a soup's file")
    member = Member.from_file(runs[0][1] if runs else weights)
    spec = described(member.about)
    benchmark = open_data(data, options, size=spec.size, channels=spec.channels, progress=told)
    scores = score_domains(
        member,
        benchmark,
        domain or benchmark.names,
        part=part,
        trial=trial,
        device=device,
        precision=precision,
        progress=told,
    )
    if json:
        show_json(msgspec.json.format(msgspec.json.encode(scores), indent=2))
        return
    from rich.markup import escape

    from diwa.report.table import rows_table

    rows = [
        (escape(one.domain), one.images, f"{100 * one.accuracy:.1f} %", f"{one.cross_entropy:.3f}")
        for one in scores
    ]
    show(rows_table(["domain", "images", "accuracy", "loss"], rows))
