"""From runs to soups and scores, against doing it by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

from diwa.atomic import write_bytes
from diwa.data.benchmark import Benchmark, Domain
from diwa.errors import StoreError
from diwa.progress import Quiet
from diwa.runs.store import Run, Store
from diwa.sweep.harvest import Harvest, harvest
from diwa.sweep.run import run_one, run_sweep
from diwa.sweep.spec import SweepSpec

Sweep = Callable[..., SweepSpec]


class _Said(Quiet):
    """Keeps the lines that it hears."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def runs(shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path) -> list[Run]:
    return run_sweep(tiny_sweep(runs=3), shapes, tmp_path / "store", device="cpu")


def _logits(weights: dict[str, torch.Tensor], domain: Domain) -> torch.Tensor:
    """Plain timm and plain resizing, nothing of ours."""
    from torchvision.transforms import v2

    network: Any = timm.create_model("test_resnet", num_classes=2).eval()
    network.load_state_dict(weights)
    mean = torch.tensor(network.pretrained_cfg["mean"]).view(1, 3, 1, 1)
    std = torch.tensor(network.pretrained_cfg["std"]).view(1, 3, 1, 1)
    from PIL import Image

    images = [
        torch.from_numpy(np.array(v2.Resize((32, 32))(Image.fromarray(domain.images[i])))).permute(
            2, 0, 1
        )
        for i in range(len(domain))
    ]
    with torch.no_grad():
        return network((torch.stack(images).float() / 255 - mean) / std)


def _accuracy(logits: torch.Tensor, labels: np.ndarray) -> float:
    return float((logits.argmax(1).numpy() == labels).mean())


def test_every_method_scores_what_it_scores_by_hand(
    runs: list[Run], shapes: Benchmark, tmp_path: Path
) -> None:
    (result,) = harvest(tmp_path / "store", shapes, device="cpu")
    target = shapes["sketch"]
    ranked = sorted(runs, key=lambda run: (-run.result.score, run.name))
    weights = [load_file(run.paths.weights) for run in ranked]
    logits = [_logits(one, target) for one in weights]
    alone = [_accuracy(one, target.labels) for one in logits]
    assert [member.run for member in result.members] == [run.name for run in ranked]
    assert [member.target for member in result.members] == alone
    mean = {
        name: torch.stack([one[name].double() for one in weights])
        .mean(0)
        .to(weights[0][name].dtype)
        for name in weights[0]
    }
    assert result.methods == {
        "mean": pytest.approx(np.mean(alone)),
        "erm": alone[0],
        "ens": _accuracy(torch.stack(logits).mean(0), target.labels),
        "diwa-restricted": _accuracy(
            _logits(load_file(result.restricted_soup), target), target.labels
        ),
        "diwa-uniform": _accuracy(_logits(mean, target), target.labels),
    }
    inner = shapes.split("sketch", trial=0).inner
    assert result.methods_80["erm"] == _accuracy(logits[0][inner], target.labels[inner])
    saved = load_file(result.soup)
    for name, tensor in mean.items():
        assert torch.allclose(saved[name], tensor), name


def test_results_lie_beside_the_soups(runs: list[Run], shapes: Benchmark, tmp_path: Path) -> None:
    (result,) = harvest(tmp_path / "store", shapes, device="cpu", out=tmp_path / "out")
    assert Harvest.from_file(tmp_path / "out" / "results.json") == result
    text = msgspec.json.decode((tmp_path / "out" / "results.json").read_bytes())
    assert text["target"] == "sketch"
    assert set(text["methods"]) == {"mean", "erm", "ens", "diwa-restricted", "diwa-uniform"}
    assert all(0 <= value <= 1 for value in text["methods"].values())
    assert Path(result.soup) == tmp_path / "out" / "soup.safetensors"
    assert len(runs) == len(result.members)


def test_timm_loads_the_soup_by_itself(runs: list[Run], shapes: Benchmark, tmp_path: Path) -> None:
    (result,) = harvest(tmp_path / "store", shapes, device="cpu")
    network = timm.create_model("test_resnet", num_classes=2, checkpoint_path=result.soup).eval()
    held = load_file(result.soup)
    assert all(torch.equal(t, held[name]) for name, t in network.state_dict().items())
    assert runs


def test_the_target_is_read_last_or_not_at_all(
    runs: list[Run], shapes: Benchmark, tmp_path: Path
) -> None:
    class _Read(Exception):
        pass

    def load() -> tuple[object, object]:
        raise _Read

    blind = Benchmark(
        shapes.name,
        shapes.classes,
        [
            Domain(d.name, d.labels, load) if d.name == "sketch" else d  # pyright: ignore
            for d in shapes
        ],
        digest=shapes.digest,
    )
    (result,) = harvest(tmp_path / "store", blind, device="cpu", score_target=False)
    assert result.methods == {}
    assert set(result.validation) == {"erm", "diwa-restricted", "diwa-uniform"}
    Path(result.soup).unlink()
    with pytest.raises(_Read):
        harvest(tmp_path / "store", blind, device="cpu")
    assert Path(result.soup).is_file(), "both soups are chosen before the target is looked at"
    assert runs


def test_what_was_done_before_is_done_anew_for_runs_that_came_out_otherwise(
    runs: list[Run], shapes: Benchmark, tmp_path: Path
) -> None:
    said = _Said()
    harvest(tmp_path / "store", shapes, device="cpu", score_target=False, progress=said)
    harvest(tmp_path / "store", shapes, device="cpu", score_target=False, progress=said)
    assert len(said.texts) == 1, "the second time, what was done before was shown"
    other = msgspec.structs.replace(runs[0].result, score=runs[0].result.score / 2)
    write_bytes(runs[0].paths.result, other.to_json())
    (result,) = harvest(tmp_path / "store", shapes, score_target=False, progress=said)
    assert len(said.texts) == 1
    assert other.score in [member.validation for member in result.members]


def test_results_never_speak_of_other_soups(
    runs: list[Run], shapes: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = harvest(tmp_path / "store", shapes, runs=runs[:2], device="cpu", score_target=False)
    soup = Path(result.soup).read_bytes()

    def stopped(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diwa.sweep.judge.Judge.scores", stopped)
    with pytest.raises(KeyboardInterrupt):
        harvest(tmp_path / "store", shapes, device="cpu")
    assert Path(result.soup).read_bytes() != soup, "another soup is there, and no scores of it"
    again = harvest(tmp_path / "store", shapes, runs=runs[:2], device="cpu", score_target=False)
    assert again == [result]
    assert Path(result.soup).read_bytes() == soup


def test_runs_from_different_starts_are_not_mixed(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    run_sweep(tiny_sweep(trials=2, steps=2, runs=1), shapes, store, device="cpu")
    run_sweep(tiny_sweep(init="random", steps=2, runs=1), shapes, store, device="cpu")
    results = harvest(store, shapes, device="cpu")
    assert len(results) == 3
    assert len({result.soup for result in results}) == 3
    assert len({result.init for result in results}) == 3


def test_a_second_start_does_only_what_is_missing(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    first = run_sweep(tiny_sweep(runs=2, steps=2), shapes, store, device="cpu")
    stamps = {run.name: run.paths.weights.stat().st_mtime_ns for run in first}
    more = run_sweep(tiny_sweep(runs=3, steps=2), shapes, store, device="cpu")
    assert len(more) == 3
    assert [run.name for run in more[:2]] == [run.name for run in first]
    for run in more[:2]:
        assert run.paths.weights.stat().st_mtime_ns == stamps[run.name]
    assert len(store.runs()) == 3


def test_one_job_does_the_run_that_the_sweep_would(
    shapes: Benchmark, tiny_sweep: Sweep, tmp_path: Path
) -> None:
    whole = run_sweep(tiny_sweep(runs=2, steps=2), shapes, tmp_path / "whole", device="cpu")
    job = run_one(tiny_sweep(runs=1, steps=2), shapes, tmp_path / "jobs", run=1, device="cpu")
    assert job.name == whole[1].name
    assert job.paths.weights.read_bytes() == whole[1].paths.weights.read_bytes()


def test_a_store_without_finished_runs_is_refused(shapes: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="none of its 0 runs is finished"):
        harvest(tmp_path / "store", shapes)
