"""What suits some images better than the usual settings, such as a small network for digits."""

from __future__ import annotations

import msgspec

from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError
from diwa.sweep.spec import SweepSpec


def suited(spec: SweepSpec, benchmark: Benchmark) -> SweepSpec:
    """The sweep, where it was left at its defaults, with the settings that suit the images.

    Args:
        spec: the sweep.
        benchmark: the images; most have no wishes.

    Raises:
        SpecError: for images that can't be seen at the sweep's size or channels.
    """
    fields = {field.name: field for field in msgspec.structs.fields(SweepSpec)}
    changes = {
        name: value
        for name, value in benchmark.suits.items()
        if getattr(spec, name) == fields[name].default
    }
    spec = msgspec.structs.replace(spec, **changes) if changes else spec
    if benchmark.channels != spec.channels:
        raise SpecError(
            f"channels={spec.channels}: {benchmark.name} has {benchmark.channels}",
            remedy=f"pass --channels {benchmark.channels}, or open it with {spec.channels}",
        )
    if benchmark.only_size not in (None, spec.shape):
        raise SpecError(
            f"size {spec.shape}: {benchmark.name} makes sense at {benchmark.only_size} only",
            remedy="leave --size out",
        )
    return spec


def told_apart(spec: SweepSpec, fitting: SweepSpec, benchmark: Benchmark) -> str:
    """A line on what `suited` changed."""
    changed = [name for name in benchmark.suits if getattr(spec, name) != getattr(fitting, name)]
    values = ((name, getattr(fitting, name)) for name in changed)
    told = ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in values
    )
    return f"{benchmark.name}: with {told}, which suit it unless you say otherwise"
