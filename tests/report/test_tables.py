"""From records to cells: means, errors, what is lacking, what is best."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diwa.errors import SpecError
from diwa.report.cells import Cell, Row, Table
from diwa.report.record import Record
from diwa.report.tables import build, twice

DOMAINS = {"PACS": [("art", "cartoon", "photo", "sketch"), ("A", "C", "P", "S")]}


def record(domain: str, trial: int | None, value: float, **more: Any) -> Record:
    known: dict[str, Any] = {"data": "PACS", "method": "erm", "runs": 20, "init": "LP"}
    return Record(domain=domain, trial=trial, value=value, **{**known, **more})


def whole(value: float = 0.5, trials: int = 3, **more: Any) -> list[Record]:
    """One method on every domain in every trial."""
    return [
        record(domain, trial, value, **more)
        for domain in DOMAINS["PACS"][0]
        for trial in range(trials)
    ]


def find(table: Table, algorithm: str, selection: str = "") -> Row:
    (row,) = [
        one
        for one in table.rows
        if one.algorithm == algorithm and one.selection.startswith(selection)
    ]
    return row


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=4, max_size=4))
def test_means_and_errors(values: list[list[float]]) -> None:
    records = [
        record(domain, trial, values[place][trial])
        for place, domain in enumerate(DOMAINS["PACS"][0])
        for trial in range(3)
    ]
    random.Random(0).shuffle(records)
    (table,) = build(records, domains=DOMAINS)
    assert table.columns == ["art", "cartoon", "photo", "sketch", "Avg"]
    *cells, average = table.rows[0].cells
    for held, cell in zip(values, cells, strict=True):
        assert cell.mean == pytest.approx(100 * np.mean(held))
        assert cell.error == pytest.approx(100 * np.std(held) / np.sqrt(3))
        assert (cell.trials, cell.runs, cell.lacks) == (3, 60, "")
    assert average.mean == pytest.approx(100 * np.mean(values))
    per_trial = np.mean(values, axis=0)
    assert average.error == pytest.approx(100 * np.std(per_trial) / np.sqrt(3))
    assert (average.trials, average.runs, average.lacks) == (3, 240, "")
    assert table.rows[0].runs == "3 x 20"


def test_one_trial_has_no_error() -> None:
    (table,) = build(whole(trials=1))
    assert all(cell.error is None and not cell.lacks for cell in table.rows[0].cells)
    assert table.rows[0].runs == "20"


def test_a_cell_says_which_trials_it_lacks() -> None:
    records = [one for one in whole() if (one.domain, one.trial) != ("photo", 1)]
    (table,) = build(records, domains=DOMAINS)
    assert [cell.lacks for cell in table.rows[0].cells] == ["", "", "2 of 3", "", "2 of 3"]
    photo, average = table.rows[0].cells[2], table.rows[0].cells[4]
    assert (photo.trials, photo.wanted, photo.runs, photo.wanted_runs) == (2, 3, 40, 60)
    assert average.error is not None, "of the two trials that are whole"


def test_a_domain_without_any_trial_has_no_average() -> None:
    records = [one for one in whole() if one.domain != "photo"]
    (table,) = build(records, domains=DOMAINS)
    assert [cell.lacks for cell in table.rows[0].cells] == ["", "", "0 of 3", "", "3 of 4 domains"]
    assert table.rows[0].cells[2].mean is None
    assert table.rows[0].cells[4].mean is None


def test_a_cell_says_which_runs_it_lacks() -> None:
    records = whole()
    records[0] = record("art", 0, 0.5, runs=18)
    (table,) = build(records, domains=DOMAINS)
    assert [cell.lacks for cell in table.rows[0].cells] == [
        *("58/60 runs", "", "", "", "238/240 runs"),
    ]


def test_more_trials_can_be_wanted() -> None:
    (table,) = build(whole(trials=2), want_trials=3)
    assert {cell.lacks for cell in table.rows[0].cells} == {"2 of 3"}
    (table,) = build(whole(trials=3), want_trials=2)
    assert {cell.lacks for cell in table.rows[0].cells} == {""}
    with pytest.raises(SpecError, match="want_trials=0"):
        build(whole(), want_trials=0)


def test_wanted_is_what_the_fullest_cell_of_all_tables_has() -> None:
    few = whole(trials=1, data="VLCS")
    tables = build([*whole(trials=3), *few])
    assert {cell.lacks for cell in tables[0].rows[0].cells} == {"1 of 3"}
    assert tables[0].data == "VLCS", "which DomainBed has before PACS"


def test_what_takes_all_trials_together_lacks_none() -> None:
    pooled = [record(d, None, 0.6, method="diwa-dagger", runs=60) for d in DOMAINS["PACS"][0]]
    (table,) = build([*whole(), *pooled])
    row = find(table, "DiWA†")
    assert row.selection == "uniform: M = 60"
    assert row.runs == "60"
    assert all(cell.lacks == "" and cell.error is None for cell in row.cells)


def test_best_and_second_as_printed() -> None:
    values = {"erm": 0.8504, "ma": 0.8496, "ens": 0.86, "swad": 0.849}
    records = [one for method, value in values.items() for one in whole(value, method=method)]
    (table,) = build(records)
    ranks = {row.algorithm: {cell.rank for cell in row.cells} for row in table.rows}
    # 85.04 and 84.96 are both printed as 85.0.
    assert ranks == {"ENS": {1}, "ERM": {2}, "MA": {2}, "SWAD": {0}}


def test_equal_ones_are_all_the_best() -> None:
    records = [one for method in ("erm", "ma") for one in whole(0.9, method=method)]
    (table,) = build([*records, *whole(0.8, method="ens")])
    assert {row.algorithm: row.cells[0].rank for row in table.rows} == {"ERM": 1, "MA": 1, "ENS": 2}


def test_one_row_alone_is_not_the_best() -> None:
    (table,) = build(whole())
    assert {cell.rank for cell in table.rows[0].cells} == {0}


def test_rows_come_in_the_papers_order() -> None:
    methods = ["diwa-dagger", "diwa-uniform", "zzz", "ens", "diwa-restricted", "ma", "erm", "swad"]
    records = [
        record("art", None if "dagger" in method else 0, 0.5, method=method, init=init)
        for method in methods
        for init in ("LP", "Random")
    ]
    (table,) = build(records)
    half = ["ERM", "SWAD", "MA", "ENS", "DiWA", "DiWA", "DiWA†", "zzz"]
    assert [row.algorithm for row in table.rows] == half * 2
    assert [row.init for row in table.rows] == ["Random"] * 8 + ["LP"] * 8
    assert [row.selection for row in table.rows][4:6] == ["restricted: M ≤ 20", "uniform: M = 20"]


def test_one_domain_that_is_always_the_unseen_one_has_no_average() -> None:
    (table,) = build([record("sketch", t, 0.5) for t in range(2)], domains=DOMAINS)
    assert table.columns == ["sketch"]
    (table,) = build([record(d, 0, 0.5) for d in ("sketch", "art")], domains=DOMAINS)
    assert table.columns == ["art", "cartoon", "photo", "sketch", "Avg"]


def test_domains_by_the_names_that_the_records_have() -> None:
    (table,) = build([record(d, 0, 0.5) for d in ("S", "A")], domains=DOMAINS)
    assert table.columns == ["A", "C", "P", "S", "Avg"]
    (table,) = build([record(d, 0, 0.5) for d in ("sketch", "A")], domains=DOMAINS)
    assert table.columns == ["A", "sketch", "Avg"]


def test_over_all_data_sets() -> None:
    records = [*whole(0.8), *whole(0.6, data="VLCS"), *whole(0.9, data="VLCS", method="ma")]
    *_, table = build(records)
    assert table.title.startswith("Averages")
    assert table.columns == ["VLCS", "PACS", "Avg"]
    erm, ma = find(table, "ERM"), find(table, "MA")
    assert [cell.number for cell in erm.cells] == ["60.0", "80.0", "70.0"]
    assert [cell.number for cell in ma.cells] == ["90.0", "", ""]
    assert [cell.lacks for cell in ma.cells] == ["", "none", "1 of 2 data sets"]
    assert erm.cells[0].error == pytest.approx(0.0)
    assert erm.cells[2].error is None, "as in the paper"


def test_runs_of_different_lengths_are_not_mixed() -> None:
    records = [*whole(0.8, steps="5001 steps"), *whole(0.6, steps="150 steps")]
    tables = build(records)
    assert [table.rows[0].cells[0].number for table in tables] == ["60.0", "80.0"]
    long = whole(0.7, data="DomainNet", steps="15001 steps")
    *_, averages = build([*whole(0.8, steps="5001 steps"), *long])
    assert [cell.number for cell in averages.rows[0].cells] == ["80.0", "70.0", "75.0"]
    *_, averages = build([*records, *long])
    assert [row.algorithm for row in averages.rows] == [
        *("ERM, 150 steps", "ERM, 5001 steps", "ERM, 15001 steps"),
    ]


def test_networks_and_ways_to_choose_have_tables_of_their_own() -> None:
    records = [
        one
        for network in ("a", "b")
        for chosen in ("oracle", "training-domain")
        for one in whole(network=network, chosen=chosen)
    ]
    found = [(table.chosen, table.network) for table in build(records)]
    assert found == [
        ("training-domain", "a"),
        ("training-domain", "b"),
        ("oracle", "a"),
        ("oracle", "b"),
    ]


def test_by_objective() -> None:
    """The paper's second table: objectives in rows, methods in columns."""
    values = {("erm", "ERM"): 0.6, ("diwa-uniform", "ERM"): 0.7, ("erm", "Mixup"): 0.62}
    values |= {("diwa-uniform", "ERM/Mixup"): 0.72}
    records = [
        one for (m, a), value in values.items() for one in whole(value, method=m, algorithm=a)
    ]
    main, table = build(records)
    assert [row.algorithm for row in main.rows] == ["ERM", "Mixup", "DiWA", "DiWA (ERM/Mixup)"]
    assert table.title.startswith("PACS (Avg) by objective")
    assert table.columns == ["No WA", "DiWA"]
    assert [row.algorithm for row in table.rows] == ["ERM", "Mixup", "ERM/Mixup"]
    assert [[cell.number for cell in row.cells] for row in table.rows] == [
        ["60.0", "70.0"],
        ["62.0", ""],
        ["", "72.0"],
    ]
    assert [[cell.rank for cell in row.cells] for row in table.rows] == [[2, 2], [1, 0], [0, 1]]


def test_several_results_of_a_trial_count_as_their_mean_and_are_noted() -> None:
    records = [*whole(0.5), record("art", 0, 0.8)]
    (table,) = build(records)
    assert table.rows[0].cells[0].mean == pytest.approx(100 * np.mean([0.65, 0.5, 0.5]))
    (note,) = twice(records)
    assert note == "PACS, art, trial 0 from LP: 2 results of one method, whose mean counts"
    assert twice(whole()) == []


def test_nothing_makes_no_table() -> None:
    assert build([]) == []


def test_a_cell_that_is_whole_lacks_nothing() -> None:
    assert Cell(mean=1.0, trials=3, wanted=3, runs=6, wanted_runs=6).lacks == ""
    assert Cell(mean=1.0, trials=3, wanted=2, runs=6, wanted_runs=4).lacks == ""


def test_sweeps_of_one_method_are_rows_of_their_own() -> None:
    records = [
        record("art", 0, 0.7, method="diwa-uniform", sweep="m5", runs=5),
        record("art", 0, 0.8, method="diwa-uniform", sweep="m20", runs=20),
        record("art", 0, 0.6, method="ens", sweep="m5", runs=5),
    ]
    (table,) = build(records)
    assert [(row.algorithm, row.selection, row.cells[0].number) for row in table.rows] == [
        ("ENS", "uniform: M = 5", "60.0"),
        ("DiWA, m5", "uniform: M = 5", "70.0"),
        ("DiWA, m20", "uniform: M = 20", "80.0"),
    ]
    assert twice(records) == []


def test_a_sweep_is_one_row_over_all_data_sets() -> None:
    """Also where only some of them have another sweep of the same kind."""
    records = [
        record("art", 0, 0.7, sweep="m5", runs=5),
        record("art", 0, 0.8, sweep="m20"),
        record("bus", 0, 0.6, data="VLCS", sweep="m20"),
    ]
    vlcs, pacs, averages = build(records)
    assert [row.algorithm for row in vlcs.rows] == ["ERM, m20"]
    assert [row.algorithm for row in pacs.rows] == ["ERM, m5", "ERM, m20"]
    assert [(row.algorithm, *(cell.number for cell in row.cells)) for row in averages.rows] == [
        ("ERM, m5", "", "70.0", ""),
        ("ERM, m20", "60.0", "80.0", "70.0"),
    ]


def test_sweeps_of_other_names_on_other_data_sets_are_one_row() -> None:
    records = [record("art", 0, 0.7, sweep="a"), record("bus", 0, 0.6, data="VLCS", sweep="b")]
    *_, averages = build(records)
    assert [(row.algorithm, row.cells[2].number) for row in averages.rows] == [("ERM", "65.0")]


def test_starts_of_their_own_stand_beside_shared_ones() -> None:
    records = [record("art", 0, 0.7, init=init) for init in ("LP", "Random, own", "Random")]
    (table,) = build(records)
    assert [row.init for row in table.rows] == ["Random", "Random, own", "LP"]
