"""The table of last-layer retraining, from plain numbers."""

from __future__ import annotations

from diwa.report.lastlayer import layer_tables, shown
from diwa.sweep.retrain import LayerScore, RetrainedPool


def pool(sweep: str, trial: int, accuracy: float) -> RetrainedPool:
    """What a sweep's runs of one trial came to, in one number."""
    score = LayerScore(
        features="diwa",
        percent=20,
        tested_percent=80,
        trained_on=20,
        tested_on=80,
        accuracy=accuracy,
    )
    return RetrainedPool(
        data="PACS",
        target="sketch",
        trial=trial,
        init="0",
        backbone="resnet50",
        head="random",
        alike="the same start",
        sweep=sweep,
        runs=["a", "b"],
        images=100,
        scores=[score],
        results="results.json",
        saved=[],
    )


def test_sweeps_from_one_start_are_tables_of_their_own() -> None:
    """Such as those of several objectives, which all start alike."""
    pools = [
        pool(sweep, trial, value + trial / 10)
        for sweep, value in (("erm", 0.5), ("erm-mixup", 0.7))
        for trial in range(2)
    ]
    tables = layer_tables(pools)
    assert [(table.sweep, table.trials) for table in tables] == [
        ("erm", [0, 1]),
        ("erm-mixup", [0, 1]),
    ]
    assert [table.cells[0].accuracy.number for table in tables] == ["55.0", "75.0"]
    assert str(shown(tables[1]).title).startswith("erm-mixup · PACS, sketch (100 images)")


def test_seeds_of_no_sweep_are_averaged_within_a_trial() -> None:
    (table,) = layer_tables([pool("", 0, 0.5), pool("", 0, 0.6), pool("", 1, 0.75)])
    assert table.sweep == ""
    assert table.cells[0].accuracy.number == "65.0"
    assert str(shown(table).title).startswith("PACS, sketch")
