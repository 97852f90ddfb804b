"""Folders that DomainBed, and DiWA's own code on it, write: a run each, its results line by line.

Names and orders of data sets and algorithms are DomainBed's, because its tables follow them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from diwa.errors import StoreError

#: What DomainBed calls its data sets and their domains, in its order.
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "Debug28": ("0", "1", "2"),
    "Debug224": ("0", "1", "2"),
    "ColoredMNIST": ("+90%", "+80%", "-90%"),
    "RotatedMNIST": ("0", "15", "30", "45", "60", "75"),
    "VLCS": ("C", "L", "S", "V"),
    "PACS": ("A", "C", "P", "S"),
    "OfficeHome": ("A", "C", "P", "R"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
    "DomainNet": ("clip", "info", "paint", "quick", "real", "sketch"),
    "SVIRO": (
        *("aclass", "escape", "hilux", "i3", "lexus"),
        *("tesla", "tiguan", "tucson", "x5", "zoe"),
    ),
    "WILDSCamelyon": tuple(f"hospital_{number}" for number in range(5)),
    "WILDSFMoW": tuple(f"region_{number}" for number in range(6)),
    "Spirals": tuple(str(number) for number in range(16)),
}

#: The order of its algorithms. MA is DiWA's addition, which stands second there.
ALGORITHMS = (
    *("ERM", "MA", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD"),
    *("DANN", "CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA"),
    *("SelfReg", "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer"),
    *("CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM"),
)

_RESULTS = "results.jsonl"
_DONE = "done"
_BEST = "model_best.pkl"


class _Arguments(msgspec.Struct, frozen=True):
    """What a line says of the command that made it, as far as anybody here asks."""

    dataset: str
    algorithm: str
    test_envs: tuple[int, ...]
    trial_seed: int
    hparams_seed: int
    holdout_fraction: float = 0.2
    path_for_init: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """One validation of one run.

    Args:
        data: the data set.
        algorithm: what was minimised, and how.
        unseen: the numbers of the domains that training left out.
        trial: which random split.
        draw: which draw of the hyperparameters.
        step: after which update.
        inner: the accuracy on each domain's training split (80 %).
        outer: the accuracy on each domain's validation split (20 %).
    """

    data: str
    algorithm: str
    unseen: tuple[int, ...]
    trial: int
    draw: int
    step: int
    inner: Sequence[float]
    outer: Sequence[float]


@dataclass(frozen=True)
class DomainBedRun:
    """A folder of results.

    Args:
        folder: where they lie.
        rows: its lines, in the file's order; a run that was started again has more of them.
        done: whether it says that it came to its end.
        holdout: the part of every domain that validates.
        init: the file of the shared initialisation, if one was named.
        hparams: the hyperparameters that are numbers.
    """

    folder: Path
    rows: tuple[Evaluation, ...]
    done: bool
    holdout: float = 0.2
    init: str | None = None
    hparams: dict[str, float] | None = None

    @property
    def weights(self) -> Path:
        """The weights of its best validation, which DiWA's code keeps and DomainBed's does not."""
        return self.folder / _BEST

    @property
    def best(self) -> tuple[Evaluation, float] | None:
        """The validation whose weights were kept, and the source domains' mean accuracy at it."""
        # A run that was started again writes below what it wrote before, but keeps weights anew.
        last = 0
        for place in range(1, len(self.rows)):
            if self.rows[place].step <= self.rows[place - 1].step:
                last = place
        found: tuple[Evaluation, float] | None = None
        for row in self.rows[last:]:
            others = [a for domain, a in enumerate(row.outer) if domain not in row.unseen]
            score = float(np.mean(others)) if others else 0.0
            if found is None or score > found[1]:
                found = row, score
        return found


def is_domainbed(path: Path) -> bool:
    """Whether a folder is such a run, or holds some."""
    return (path / _RESULTS).is_file() or any(path.glob(f"*/{_RESULTS}"))


def read_runs(path: Path) -> tuple[list[DomainBedRun], list[str]]:
    """Reads all runs of a folder, finished or not, as DomainBed's own tables do.

    Args:
        path: a folder of runs, or a single run.

    Returns:
        The runs, and what was left out of them, a line each.

    Raises:
        StoreError: if it holds none, or a line that is not DomainBed's.
    """
    try:
        # The system's own order, unsorted: what is equal otherwise, DomainBed takes in this one.
        names = [""] if (path / _RESULTS).is_file() else os.listdir(path)
    except OSError as error:
        raise StoreError(f"{path}: can't be read ({error.strerror})") from error
    runs, notes = [], []
    for name in names:
        folder = path / name
        if (folder / _RESULTS).is_file():
            run, cut = _read_run(folder)
            runs.append(run)
            if cut:
                notes.append(f"{folder / _RESULTS}: its last line is cut off, and left out")
    if not runs:
        raise StoreError(
            f"{path}: no folder in it has a {_RESULTS}", remedy="give the folder of a sweep"
        )
    return runs, notes


def unfinished(path: Path, runs: Sequence[DomainBedRun]) -> list[str]:
    """What a reader of DomainBed's tables should know of runs that have not come to their end."""
    started = sorted(run.folder.name for run in runs if not run.done)
    if not started:
        return []
    more = f" and {len(started) - 3} more" if len(started) > 3 else ""
    return [
        f"{path}: {len(started)} of {len(runs)} runs have not finished, and count as they are: "
        f"{', '.join(started[:3])}{more}"
    ]


def _read_run(folder: Path) -> tuple[DomainBedRun, bool]:
    path = folder / _RESULTS
    try:
        lines = path.read_bytes().rstrip().split(b"\n")
    except OSError as error:
        raise StoreError(f"{path}: can't be read ({error.strerror})") from error
    rows, known, hparams, cut = [], None, {}, False
    for number, line in enumerate(lines if lines != [b""] else [], start=1):
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            # A kill in the midst of writing leaves the last line half; nothing else does.
            if number == len(lines):
                cut = True
                continue
            raise StoreError(
                f"{path}: line {number} is not JSON ({error})", remedy="remove that line"
            ) from error
        known, row = _row(told, f"{path}: line {number}")
        rows.append(row)
        hparams = told.get("hparams", {})
    run = DomainBedRun(
        folder=folder,
        rows=tuple(rows),
        done=(folder / _DONE).is_file(),
        holdout=known.holdout_fraction if known else 0.2,
        init=known.path_for_init if known else None,
        hparams=_numbers(hparams),
    )
    return run, cut


def _row(told: Any, where: str) -> tuple[_Arguments, Evaluation]:
    try:
        known = msgspec.convert(told["args"], _Arguments)
        step = msgspec.convert(told["step"], int)
        # Counted as DomainBed does, by the validation accuracies that there are.
        count = next(n for n in range(len(told) + 1) if f"env{n}_out_acc" not in told)
        inner, outer = (
            [msgspec.convert(told[f"env{n}_{part}_acc"], float) for n in range(count)]
            for part in ("in", "out")
        )
    except (KeyError, TypeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else "is no JSON object"
        raise StoreError(f"{where} {what}", remedy="give results of DomainBed or DiWA") from error
    except msgspec.ValidationError as error:
        raise StoreError(f"{where}: {error}", remedy="give results of DomainBed or DiWA") from error
    if not known.test_envs or not all(0 <= number < count for number in known.test_envs):
        raise StoreError(
            f"{where}: test_envs {list(known.test_envs)} of {count} domains",
            remedy="give results of DomainBed or DiWA",
        )
    return known, Evaluation(
        data=known.dataset,
        algorithm=known.algorithm,
        unseen=known.test_envs,
        trial=known.trial_seed,
        draw=known.hparams_seed,
        step=step,
        inner=inner,
        outer=outer,
    )


def _numbers(told: Any) -> dict[str, float]:
    pairs = told.items() if isinstance(told, dict) else ()
    return {
        name: float(value)
        for name, value in pairs
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def environments(data: str, count: int = 0) -> tuple[str, ...]:
    """The names of a data set's domains; their numbers, of one that DomainBed does not know.

    Example:
        >>> environments("PACS"), environments("Mine", 2)
        (('A', 'C', 'P', 'S'), ('0', '1'))
    """
    return ENVIRONMENTS.get(data, tuple(str(number) for number in range(count)))
