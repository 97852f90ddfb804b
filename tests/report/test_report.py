"""Folders in, tables out: what is found, what is asked for, what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diwa
from diwa.errors import SpecError, StoreError
from diwa.report.report import tabulate

Stores = Callable[..., Any]
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


@pytest.fixture
def store(fake_store: Stores) -> Any:
    """A whole sweep: every domain, two trials, two runs each, which looked at the unseen one."""
    made = fake_store()
    for domain in DOMAINS:
        for trial in range(2):
            sources = {name: 0.5 for name in DOMAINS if name != domain}
            rows = [{"step": 0, "loss": 0, "accuracy": sources, "unseen": {domain: 0.3}}]
            keys = [made.run(domain, trial, number, history=rows) for number in range(2)]
            made.soup(domain, trial, {"erm": 0.5, "diwa-uniform": 0.6}, keys, full={"erm": 0.7})
    return made


def domainbed(root: Path) -> Path:
    """A run of DomainBed's."""
    run = root / "theirs" / "0123"
    run.mkdir(parents=True)
    args = {"dataset": "PACS", "algorithm": "CORAL", "test_envs": [0]}
    line = {"args": {**args, "trial_seed": 0, "hparams_seed": 0}, "step": 0}
    line |= {f"env{n}_{part}_acc": 0.9 for n in range(4) for part in ("in", "out")}
    (run / "results.jsonl").write_text(json.dumps(line) + "\n")
    (run / "done").write_text("done")
    return run.parent


def test_the_papers_table(store: Any) -> None:
    report = diwa.tabulate([store.root], selection=["training-domain"])
    (table,) = report.tables
    assert table.columns == [*DOMAINS, "Avg"]
    assert [row.algorithm for row in table.rows] == ["ERM", "DiWA"]
    assert [[cell.number for cell in row.cells] for row in table.rows] == [
        ["50.0"] * 5,
        ["60.0"] * 5,
    ]
    assert report.notes == ()


@pytest.mark.parametrize(
    ("images", "tables"),
    [
        ("80", [("training-domain", "in", "50.0"), ("oracle", "out", "30.0")]),
        ("100", [("training-domain", "full", "70.0"), ("oracle", "out", "30.0")]),
        (
            "all",
            [
                ("training-domain", "in", "50.0"),
                ("training-domain", "full", "70.0"),
                ("training-domain", "out", "30.0"),
                ("oracle", "out", "30.0"),
            ],
        ),
    ],
)
def test_which_part_of_the_unseen_domain(store: Any, images: Any, tables: list[Any]) -> None:
    report = tabulate([store.root], images=images)
    found = [(t.chosen, t.scored, t.rows[0].cells[0].number) for t in report.tables]
    assert found == tables


def test_runs_without_a_soup_show_what_their_histories_tell(fake_store: Stores) -> None:
    made = fake_store()
    sources = dict.fromkeys(DOMAINS[:3], 0.5)
    rows = [{"step": 0, "loss": 0, "accuracy": sources, "unseen": {"sketch": 0.3}}]
    made.run("sketch", history=rows)
    report = tabulate([made.root])
    assert [(t.chosen, t.scored) for t in report.tables] == [
        ("training-domain", "out"),
        ("oracle", "out"),
    ]
    assert "by which it was chosen" in report.tables[1].title
    assert any("run diwa soup" in note for note in report.notes)


@pytest.mark.parametrize("name", ["A", "art_painting"])
def test_only_some_domains_by_either_name(store: Any, tmp_path: Path, name: str) -> None:
    report = tabulate([store.root, domainbed(tmp_path)], target=[name])
    assert {tuple(table.columns) for table in report.tables} == {("A",), ("art_painting",)}


def test_only_some_sweeps(fake_store: Stores) -> None:
    made = fake_store()
    keys = [made.run("sketch", 0, number) for number in range(3)]
    made.name(few=keys[:2], many=keys, bare=keys[:1])
    made.soup("sketch", 0, {"diwa-uniform": 0.5}, keys[:2], sweep="few")
    made.soup("sketch", 0, {"diwa-uniform": 0.6}, keys, sweep="many")

    def rows(*sweeps: str) -> list[tuple[str, str]]:
        (table,) = tabulate([made.root], sweep=sweeps).tables
        return [(row.algorithm, row.cells[0].number) for row in table.rows]

    assert rows() == [("DiWA, few", "50.0"), ("DiWA, many", "60.0")]
    assert rows("many") == [("DiWA", "60.0")]
    assert rows("many", "few") == rows()
    assert tabulate([made.root], sweep=["bare"]).tables == ()
    with pytest.raises(StoreError, match="no sweep is called 'manny'; did you mean 'many'"):
        tabulate([made.root], sweep=["manny"])


def test_stores_and_folders_of_domainbed_together(store: Any, tmp_path: Path) -> None:
    report = tabulate([store.root, domainbed(tmp_path)], selection=["training-domain"])
    assert [table.columns for table in report.tables] == [["A"], [*DOMAINS, "Avg"]]
    assert {record.algorithm for record in report.records} == {"ERM", "CORAL"}
    assert {table.network for table in report.tables} == {
        *("", "resnet50.tv_in1k, 224 px, 5001 steps"),
    }
    assert report.domainbed is not None
    assert report.stores


def test_json_for_machines(store: Any, tmp_path: Path) -> None:
    report = tabulate([store.root, domainbed(tmp_path)])
    told = json.loads(report.to_json())
    assert len(told["records"]) == len(report.records)
    assert told["tables"][0]["rows"][0]["cells"][0]["trials"] >= 1
    assert told["notes"] == list(report.notes)
    assert told["domainbed"][0]["rows"][0][:2] == ["CORAL", "90.0 +/- 0.0"]


def test_nothing_yet(fake_store: Stores) -> None:
    report = tabulate([fake_store().root])
    assert (report.tables, report.notes) == ((), ("nothing to tabulate yet",))


def test_nothing_of_what_was_asked_for(store: Any) -> None:
    report = tabulate([store.root], target=["horse"])
    assert report.tables == ()
    assert report.notes[-1].startswith("nothing to tabulate: all that was found is left out")


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere: no such folder; give a --store"):
        tabulate([tmp_path / "nowhere"])
    with pytest.raises(StoreError, match="neither a store nor a folder of DomainBed's results"):
        tabulate([tmp_path])
    with pytest.raises(StoreError, match="no folders to report on"):
        tabulate([])


def test_wrong_words_are_refused(store: Any) -> None:
    odd: Any = "training"
    with pytest.raises(SpecError, match="selection 'training'; choose among training-domain"):
        tabulate([store.root], selection=[odd])
    with pytest.raises(SpecError, match="images 'training'; choose among 80, 100, all"):
        tabulate([store.root], images=odd)
