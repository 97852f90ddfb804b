"""`diwa soup` on a folder that DiWA's own code wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from diwa.cli.console import progress, say, show_json
from diwa.cli.options import DataOptions, open_data

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark
    from diwa.sweep.harvest import Harvest


def soup_foreign(
    folder: Path,
    data: Path | None,
    target: Sequence[str],
    leave_out: Sequence[str],
    out: Path | None,
    score: bool,
    device: str,
    json: bool,
) -> None:
    """Averages such runs; with a folder of images, chooses among them and scores them too."""
    from diwa.cli.soup import show_harvest
    from diwa.sweep.foreign import harvest_foreign

    told = progress()

    def images(name: str) -> Benchmark:
        assert data is not None
        options = DataOptions(name=name)
        place = images_of(name, data)
        return open_data(place, options, size=(224, 224), channels=3, progress=told)

    results = harvest_foreign(
        folder,
        images=None if data is None else images,
        targets=target,
        leave_out=leave_out,
        score_target=score,
        out=out,
        device=device,
        progress=told,
    )
    if json:
        show_json(msgspec.json.format(msgspec.json.encode(results), indent=2))
        return
    for result in results:
        if data is None:
            _show_averaged(result)
        else:
            show_harvest(result)
    if data is None:
        say("pass --data FOLDER to choose among them, and to score them")


def images_of(name: str, data: Path) -> Path:
    """Where a data set's images are: in DomainBed's folder of all data sets, or right here."""
    from diwa.data.sets import find

    known = find(name)
    inside = data / (known.folder if known else name)
    return inside if inside.is_dir() else data


def _show_averaged(result: Harvest) -> None:
    """Says where a soup is that nothing was scored for."""
    count = len(result.members)
    say(f"{result.data}, {result.target} unseen, trial {result.trial}: {count} runs averaged")
    say(f"  {result.soup}")
