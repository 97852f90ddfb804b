"""Which runs belong together, told from their specifications alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diwa.atomic import write_bytes
from diwa.data.benchmark import Benchmark
from diwa.runs.store import Run, RunResult, Store
from diwa.sweep.plan import plan
from diwa.sweep.pools import Pool, pools
from diwa.sweep.spec import SweepSpec

Planned = Callable[..., list[Run]]


@pytest.fixture
def planned(shapes: Benchmark, tiny_sweep: Callable[..., SweepSpec], tmp_path: Path) -> Planned:
    """Runs that look finished; the n-th validates n % better than none."""

    def made(**changes: object) -> list[Run]:
        store = Store(tmp_path / "store")
        runs = []
        for number, spec in enumerate(plan(tiny_sweep(**changes), shapes, device="cpu")):
            run = store.start(spec)
            result = RunResult(step=0, score=number / 100, accuracy={"photo": number / 100})
            write_bytes(run.paths.result, result.to_json())
            runs.append(run)
        return runs

    return made


def told(found: list[Pool]) -> list[tuple[str, int | None, int]]:
    return [(pool.kind, pool.trial, len(pool.runs)) for pool in found]


def test_runs_of_one_start(planned: Planned) -> None:
    runs = planned(runs=3)
    (pool,) = pools(runs)
    assert told([pool]) == [("start", 0, 3)]
    assert pool.runs == tuple(reversed(runs)), "the best first"
    assert pool.name == f"sketch-t0-{runs[0].spec.init.key[:8]}"


def test_each_trial_alone_and_all_together_if_they_start_alike(planned: Planned) -> None:
    shared = planned(runs=2, trials=2, share_init="target")
    assert told(pools(shared)) == [("start", 0, 2), ("start", 1, 2), ("trials", None, 4)]
    apart = planned(runs=2, trials=2, share_init="trial")
    assert told(pools(apart)) == [("start", 0, 2), ("start", 1, 2)]


def test_starts_of_their_own_are_no_pool_of_one_each(planned: Planned) -> None:
    found = pools(planned(runs=3, trials=2, share_init="none"))
    assert told(found) == [("apart", 0, 3), ("apart", 1, 3), ("apart", None, 6)]
    assert found[2].name.startswith("sketch-all-apart-")


def test_starts_of_their_own_beside_a_shared_one(planned: Planned) -> None:
    # The first run of either sweep is the same one.
    shared, apart = planned(runs=3), planned(runs=4, share_init="none")
    found = pools(list({run.name: run for run in [*shared, *apart]}.values()))
    assert sorted(told(found)) == [("apart", 0, 3), ("start", 0, 3)]


def test_several_averages_of_one_trial(planned: Planned) -> None:
    runs = [*planned(runs=2), *planned(runs=3, seed=1), *planned(runs=1, seed=2)]
    found = pools(runs)
    assert sorted(told(found)) == [
        ("several", 0, 5),
        ("start", 0, 1),
        ("start", 0, 2),
        ("start", 0, 3),
    ]
    assert found[-1].kind == "several", "after those it is made of"


def test_other_tasks_and_heads_are_never_one_pool(planned: Planned) -> None:
    runs = [*planned(), *planned(init="random"), *planned(target=("photo",))]
    assert told(pools(runs)) == [("start", 0, 2)] * 3
    assert len({pool.name for pool in pools(runs)}) == 3


def test_names_of_sweeps_are_names_of_folders(planned: Planned) -> None:
    runs = planned()
    (pool,) = pools(runs, sweep="mixup & co/2")
    assert pool.name.startswith("mixup_co_2-sketch-t0-")


def test_no_two_pools_share_a_folder(planned: Planned) -> None:
    runs = [
        *planned(runs=2, trials=2, share_init="target"),
        *planned(runs=2, trials=2, share_init="target", seed=1),
        *planned(runs=2, share_init="none", seed=5),
    ]
    names = [pool.name for pool in pools(runs)]
    assert len(set(names)) == len(names)
