"""The whole report: folders in, records and tables out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from diwa.data.sets import full_names
from diwa.errors import SpecError, StoreError, guess
from diwa.report.cells import Table
from diwa.report.domainbed import Results, grids, read_results
from diwa.report.record import CHOSEN, Chosen, Record, Scored
from diwa.report.stores import is_store, read_stores
from diwa.report.tables import build, twice
from diwa.runs.domainbed import is_domainbed

#: Which part of the unseen domain tables are of, in percent: the paper's, or everything.
Images = Literal["80", "100", "all"]
_SCORED: dict[str, Scored] = {"80": "in", "100": "full"}


@dataclass(frozen=True)
class Report:
    """Plain results, and the tables that they make.

    Args:
        records: all that was found.
        tables: the paper's, of those records that were asked for.
        notes: what a reader should know, and what is left to do, a line each.
        domainbed: what folders of DomainBed hold, for its own tables; None if none were given.
        stores: whether there were any of ours.
    """

    records: tuple[Record, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    domainbed: Results | None = None
    stores: bool = True

    def to_json(self) -> bytes:
        """Records, tables and notes for machines."""
        told: dict[str, Any] = {
            "records": self.records,
            "tables": self.tables,
            "notes": self.notes,
        }
        if self.domainbed is not None:
            told["domainbed"] = [
                grid for chosen in CHOSEN for grid in grids(self.domainbed, chosen)
            ]
        return msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"


def tabulate(
    paths: Sequence[Path | str],
    *,
    images: Images = "80",
    selection: Sequence[Chosen] = (),
    target: Sequence[str] = (),
    sweep: Sequence[str] = (),
    want_trials: int | None = None,
) -> Report:
    r"""Reads stores and folders of DomainBed or DiWA, and makes the paper's tables of them.

    Args:
        paths: stores of diwa, and folders with DomainBed's results; in any mix.
        images: which of the unseen domain's images accuracies are of: the 80 % that the paper's
            tables use, all of them, or one table for each. Where a choice was scored on neither,
            as a run's own history, on the 20 %.
        selection: only these ways to choose runs and checkpoints; all by default.
        target: only these unseen domains.
        sweep: only the runs of these sweeps, by the names that their recipe gave them.
        want_trials: how many trials a cell should have; the most that any has by default.

    Raises:
        DiwaError: for a folder that is neither, a damaged file, an unknown way to choose, or a
            sweep that no store has.

    Example:
        >>> import json, tempfile
        >>> run = Path(tempfile.mkdtemp()) / "run"
        >>> run.mkdir()
        >>> said = {"dataset": "Debug28", "algorithm": "ERM", "test_envs": [0]}
        >>> line = {"args": {**said, "trial_seed": 0, "hparams_seed": 0}, "step": 0}
        >>> line |= {f"env{n}_{part}_acc": 0.5 for n in range(3) for part in ("in", "out")}
        >>> _ = (run / "results.jsonl").write_text(json.dumps(line) + "\n")
        >>> tabulate([run.parent]).tables[0].rows[0].cells[0].mean
        50.0
    """
    if not paths:
        raise StoreError("no folders to report on", remedy="name stores, or DomainBed's folders")
    for name in selection:
        if name not in CHOSEN:
            raise SpecError(f"selection {name!r}", remedy=f"choose among {', '.join(CHOSEN)}")
    if images not in get_args(Images):
        raise SpecError(f"images {images!r}", remedy=f"choose among {', '.join(get_args(Images))}")
    ours, foreign = _sorted([Path(path) for path in paths])
    stores = read_stores(ours)
    for name in sweep:
        if name not in stores.sweeps:
            known = ", ".join(dict.fromkeys(stores.sweeps)) or "none that has a name"
            raise StoreError(
                f"no sweep is called {name!r}",
                remedy=f"{guess(name, stores.sweeps)}the stores have {known}",
            )
    results = read_results(foreign) if foreign else None
    records = [*stores.records, *(results.records if results else ())]
    # A store and a folder of DomainBed's may have one data set, and each its own domains' names.
    domains: dict[str, list[Sequence[str]]] = {
        data: [held] for data, held in stores.domains.items()
    }
    for data in results.data if results else ():
        assert results is not None
        domains.setdefault(data, []).append(results.domains(data))
    wanted = [
        record
        for record in _of_images(records, images)
        if (not selection or record.chosen in selection)
        and (not sweep or record.sweep in sweep)
        and (not target or _is_one(record.data, record.domain, target))
    ]
    if target:
        domains = {
            data: [name for name in held if name in target] for data, held in domains.items()
        }
    notes = [*stores.notes, *(results.notes if results else ()), *twice(wanted)]
    if not wanted:
        notes.append(_nothing(records))
    return Report(
        records=tuple(records),
        tables=tuple(build(wanted, domains=domains, want_trials=want_trials)),
        notes=tuple(notes),
        domainbed=results,
        stores=bool(ours),
    )


def _sorted(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The stores and the folders of DomainBed's."""
    ours, foreign = [], []
    for path in paths:
        if is_store(path):
            ours.append(path)
        elif is_domainbed(path):
            foreign.append(path)
        else:
            what = "neither a store nor a folder of DomainBed's results"
            raise StoreError(
                f"{path}: {what if path.exists() else 'no such folder'}",
                remedy="give a --store of diwa sweep, or an --output_dir of DomainBed's sweep",
            )
    return ours, foreign


def _of_images(records: Sequence[Record], images: Images) -> list[Record]:
    if images == "all":
        return list(records)
    scored = _SCORED[images]

    def group(record: Record) -> tuple[str, str, str, Chosen]:
        return record.data, record.network, record.sweep, record.chosen

    known = {group(record) for record in records if record.scored == scored}
    return [
        record
        for record in records
        if record.scored == scored or (record.scored == "out" and group(record) not in known)
    ]


def _is_one(data: str, domain: str, wanted: Sequence[str]) -> bool:
    """Whether a domain is wanted, by its short name or by that of its folder."""
    return full_names(data, (domain,)) <= full_names(data, tuple(wanted))


def _nothing(records: Sequence[Record]) -> str:
    if not records:
        return "nothing to tabulate yet"
    return "nothing to tabulate: all that was found is left out by what was asked for"
