"""What is read of stores: soups, histories, and what is left to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diwa.errors import StoreError
from diwa.report.record import Record
from diwa.report.stores import is_store, read_stores

Stores = Callable[..., Any]
SCORES = {"mean": 0.6, "erm": 0.62, "diwa-uniform": 0.7, "of-another-day": 0.5}


def one(records: list[Record], **known: Any) -> Record:
    (found,) = [
        record
        for record in records
        if all(getattr(record, name) == value for name, value in known.items())
    ]
    return found


def test_every_method_of_a_soup(fake_store: Stores) -> None:
    store = fake_store()
    store.pool("sketch", 1, SCORES, count=3)
    results = read_stores([store.root])
    assert results.notes == []
    assert {record.method for record in results.records} == set(SCORES)
    found = one(results.records, method="of-another-day", scored="in")
    assert found == Record(
        data="PACS",
        domain="sketch",
        trial=1,
        method="of-another-day",
        init="LP",
        value=0.5,
        runs=3,
        network="resnet50.tv_in1k, 224 px",
        steps="5001 steps",
    )
    assert results.domains == {"PACS": ["art", "cartoon", "photo", "sketch"]}


def test_both_parts_of_the_unseen_domain(fake_store: Stores) -> None:
    store = fake_store()
    keys = [store.run("sketch")]
    store.soup("sketch", 0, {"erm": 0.6}, keys, full={"erm": 0.65})
    records = read_stores([store.root]).records
    assert one(records, scored="in").value == 0.6
    assert one(records, scored="full").value == 0.65


def test_what_takes_all_trials_together(fake_store: Stores) -> None:
    store = fake_store()
    keys = [key for trial in range(3) for key in store.pool("sketch", trial, SCORES)]
    store.soup("sketch", -1, {"diwa-dagger": 0.8}, keys, name="all")
    records = read_stores([store.root]).records
    found = one(records, method="diwa-dagger", scored="in")
    assert found.trial is None
    assert found.runs == 6


@pytest.mark.parametrize(("head", "init"), [("lp", "LP"), ("random", "Random")])
def test_where_runs_started_from(fake_store: Stores, head: str, init: str) -> None:
    store = fake_store()
    store.pool("sketch", 0, {"erm": 0.5}, head=head)
    assert {record.init for record in read_stores([store.root]).records} == {init}


def test_objectives_and_lengths_of_a_mixed_pool(fake_store: Stores) -> None:
    store = fake_store()
    kinds = (("CORAL", 150), ("ERM", 300), ("ERM", 300))
    keys = [
        store.run("sketch", 0, number, algorithm=name, steps=steps)
        for number, (name, steps) in enumerate(kinds)
    ]
    store.soup("sketch", 0, {"diwa-uniform": 0.5}, keys)
    found = one(read_stores([store.root]).records, scored="in")
    assert found.algorithm == "ERM/CORAL"
    assert found.steps == "150-300 steps"


def test_a_trial_that_the_run_itself_tells(fake_store: Stores) -> None:
    """Several trials may start from one initialisation; then it is not the one that tells."""
    store = fake_store()
    history = [{"step": 0, "loss": 0, "accuracy": SOURCES, "unseen": {"sketch": 0.4}}]
    path = store.paths.run(store.run("sketch", 0, 0, history=history)).spec
    path.write_text(json.dumps({**json.loads(path.read_text()), "trial": 2}))
    assert {record.trial for record in read_stores([store.root]).records} == {2}


def test_other_protocols_are_not_mixed_with_the_usual_one(fake_store: Stores) -> None:
    store = fake_store()
    (key,) = store.pool("sketch", 0, {"erm": 0.5}, count=1)
    path = store.paths.run(key).spec
    spec = json.loads(path.read_text())
    spec["init"]["task"]["protocol"] = "paper"
    path.write_text(json.dumps(spec))
    (network,) = {record.network for record in read_stores([store.root]).records}
    assert network == "resnet50.tv_in1k, 224 px, protocol paper"


# -- histories

SOURCES = {"art": 0.6, "cartoon": 0.6, "photo": 0.6}


def row(step: int, validation: float, unseen: float, domain: str = "sketch") -> dict[str, Any]:
    sources = {name: validation for name in ("art", "cartoon", "photo", "sketch") if name != domain}
    return {"step": step, "loss": 0.1, "accuracy": sources, "unseen": {domain: unseen}}


def test_histories_that_tell_of_the_unseen_domain(fake_store: Stores) -> None:
    store = fake_store()
    store.run("sketch", 0, 0, history=[row(0, 0.5, 0.1), row(9, 0.4, 0.7)])
    store.run("sketch", 0, 1, history=[row(0, 0.3, 0.9), row(9, 0.45, 0.6)])
    records = read_stores([store.root]).records
    assert {record.scored for record in records} == {"out"}
    # The best checkpoint by validation; the last ones, by the unseen domain.
    assert one(records, chosen="training-domain").value == 0.1
    assert one(records, chosen="oracle").value == 0.7
    assert one(records, chosen="oracle").runs == 2
    assert not [record for record in records if record.chosen == "leave-one-out"]


def test_leave_one_out_from_runs_that_leave_two_out(fake_store: Stores) -> None:
    store = fake_store()
    others = ("art", "cartoon", "photo")
    for number, (early, late) in enumerate([(0.2, 0.9), (0.3, 0.4)]):
        rows = [row(0, 0.5, 0.11 + number), row(9, 0.4, 0.22 + number)]
        store.run("sketch", 0, number, history=rows)
        for other in others:
            sources = {name: 0.5 for name in others if name != other}
            history = [
                {"step": 0, "accuracy": sources, "unseen": {"sketch": 0.9, other: early}},
                {"step": 9, "accuracy": sources, "unseen": {"sketch": 0.1, other: late}},
            ]
            store.run(["sketch", other], 0, number, history=history)
    records = read_stores([store.root]).records
    # The first draw's late checkpoint does best on the other domains it left out.
    assert one(records, chosen="leave-one-out").value == 0.22
    assert one(records, chosen="leave-one-out").domain == "sketch"


def test_draws_are_told_apart_by_their_values_too(fake_store: Stores) -> None:
    """Two sweeps may number their draws alike, and yet draw from other values."""
    store = fake_store()
    store.run("sketch", 0, 0, history=[row(0, 0.5, 0.1)])
    store.run("sketch", 0, 1, history=[row(0, 0.7, 0.2)], hparams_seed=0)
    assert one(read_stores([store.root]).records, chosen="oracle").runs == 2


def test_sweeps_are_chosen_from_one_by_one(fake_store: Stores) -> None:
    """As their soups are; a run may be in several."""
    store = fake_store()
    keys = [store.run("sketch", 0, n, history=[row(0, 0.5 + n / 10, n / 10)]) for n in range(3)]
    store.run("sketch", 0, 3, history=[row(0, 0.9, 0.9)])
    store.name(few=keys[:2], many=keys)
    results = read_stores([store.root])
    found = {one.sweep: (one.value, one.runs) for one in results.records if one.chosen == "oracle"}
    assert found == {"few": (0.1, 2), "many": (0.2, 3), "": (0.9, 1)}
    assert results.sweeps == ["few", "many"]


def test_runs_that_differ_in_their_start_only_are_all_there_to_choose(fake_store: Stores) -> None:
    store = fake_store()
    store.run("sketch", 0, 0, history=[row(0, 0.5, 0.8)])
    store.run("sketch", 0, 0, history=[row(0, 0.6, 0.4)], seed=7)
    for seed, late in ((0, 0.2), (7, 0.9)):
        for other in ("art", "cartoon", "photo"):
            sources = {name: 0.5 for name in ("art", "cartoon", "photo") if name != other}
            unseen = {"sketch": 0.1, other: late}
            history = [{"step": 0, "accuracy": sources, "unseen": unseen}]
            store.run(["sketch", other], 0, 0, history=history, seed=seed)
    records = [one for one in read_stores([store.root]).records if one.domain == "sketch"]
    assert one(records, chosen="oracle").value == 0.8
    assert one(records, chosen="training-domain").value == 0.4
    assert one(records, chosen="leave-one-out").value == 0.4
    assert {record.runs for record in records} == {2}


def test_starts_of_their_own_are_told_from_a_shared_one(fake_store: Stores) -> None:
    store = fake_store()
    store.soup("sketch", 0, {"erm": 0.5}, [store.run("sketch", 0, n) for n in range(2)])
    own = [store.run("sketch", 0, n, seed=n + 1) for n in range(2)]
    store.soup("sketch", 0, {"erm": 0.6, "dens": 0.7}, own, name="own")
    # Two starts of two runs each: an ensemble of averages.
    both = [store.run("sketch", 1, n, seed=seed) for n in range(2) for seed in (3, 4)]
    store.soup("sketch", 1, {"ens-diwa": 0.8}, both, name="both")
    records = [one for one in read_stores([store.root]).records if one.scored == "in"]
    assert {(one.method, one.value, one.init) for one in records} == {
        ("erm", 0.5, "LP"),
        ("erm", 0.6, "LP, own"),
        ("dens", 0.7, "LP, own"),
        ("ens-diwa", 0.8, "LP"),
    }


def test_histories_that_did_not_look_give_no_record(fake_store: Stores) -> None:
    store = fake_store()
    store.run("sketch")
    assert read_stores([store.root]).records == []


# -- notes


def test_what_is_left_to_do(fake_store: Stores) -> None:
    store = fake_store()
    store.run("art", 0, 0)
    store.run("art", 0, 1, finished=False)
    store.pool("photo", 0, {"erm": 0.5})
    store.run("photo", 0, 7)
    store.soup("cartoon", 0, {}, [store.run("cartoon")])
    where = str(store.root)
    assert read_stores([store.root]).notes == [
        f"{where}: runs that have not finished: PACS, art, trial 0 (1 of 2); "
        "run the same sweep again",
        f"{where}: finished runs without a soup: PACS, art, trial 0 (1 run); run diwa soup {where}",
        f"{where}: finished runs that are in no soup: PACS, photo, trial 0 (1 of 3); "
        f"run diwa soup {where}",
        f"{where}: soups that were not scored: PACS, cartoon; run diwa soup {where}",
    ]


def test_runs_that_only_choose_others_need_no_soup(fake_store: Stores) -> None:
    store = fake_store()
    store.pool("sketch", 0, {"erm": 0.5})
    store.run(["art", "sketch"], 0, 0)
    store.run(["art", "sketch"], 0, 1, finished=False)
    (note,) = read_stores([store.root]).notes
    assert note.endswith("PACS, art+sketch, trial 0 (1 of 2); run the same sweep again")


def test_many_things_to_do_are_one_line(fake_store: Stores) -> None:
    store = fake_store()
    for trial in range(5):
        store.run("sketch", trial)
    (note,) = read_stores([store.root]).notes
    assert "trial 2 (1 run) and 2 more; run diwa soup" in note


# -- folders


def test_a_folder_of_soups_alone(fake_store: Stores) -> None:
    store = fake_store()
    store.soup("sketch", 0, {"erm": 0.5}, ["gone"])
    store.paths.about.unlink()
    assert is_store(store.root)
    found = one(read_stores([store.root]).records, scored="in")
    assert (found.init, found.network, found.runs, found.algorithm) == ("", "", 1, "ERM")


def test_other_folders_are_no_stores(tmp_path: Path) -> None:
    assert not is_store(tmp_path)
    assert not is_store(tmp_path / "nowhere")


def test_an_empty_store_has_nothing(fake_store: Stores) -> None:
    results = read_stores([fake_store().root])
    assert (results.records, results.notes) == ([], [])


def test_damage_is_named(fake_store: Stores) -> None:
    store = fake_store()
    (key,) = store.pool("sketch", 0, {"erm": 0.5}, count=1)
    for path, text, says in [
        (store.paths.run(key).history, "[{]", "history.json: JSON is malformed"),
        (store.paths.run(key).spec, "{}", "missing required field `init`"),
        (store.paths.about, '{"format": 2}', "format 2 is not known; update diwa"),
    ]:
        kept = path.read_text()
        path.write_text(text)
        with pytest.raises(StoreError, match=says) as caught:
            read_stores([store.root])
        assert str(caught.value).startswith(str(path))
        path.write_text(kept)
    (results,) = store.root.glob("soups/*/results.json")
    results.write_bytes(b"\xff")
    with pytest.raises(StoreError, match=r"results\.json"):
        read_stores([store.root])
