"""Runs of DiWA's own code as members, against doing it by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms import v2

from diwa.cli.foreign import images_of
from diwa.cli.main import main
from diwa.data.benchmark import Benchmark, open_folder
from diwa.errors import DiwaError, ModelError, StoreError
from diwa.report.stores import read_stores
from diwa.seeding import random_state
from diwa.sweep.foreign import harvest_foreign, usable_runs
from diwa.sweep.harvest import Harvest

Tensors = dict[str, torch.Tensor]
DOMAINS = ("cartoon", "photo", "sketch")


def resnet(seed: int) -> Tensors:
    torch.manual_seed(seed)
    weights: Tensors = timm.create_model("resnet18", num_classes=2).state_dict()
    return weights


def small(seed: int) -> Tensors:
    """A network that is no ResNet, by its own names."""
    chance = torch.Generator().manual_seed(seed)
    return {"conv.weight": torch.randn(3, 2, generator=chance), "count": torch.tensor(7)}


def their_names(weights: Tensors, *, resnet: bool = True) -> Tensors:
    """Encoder and head twice each, as their algorithm holds them."""
    if not resnet:
        return {f"network.{name}": tensor for name, tensor in weights.items()}
    held: Tensors = {}
    for encoder, head in (
        ("featurizer.network.", "classifier."),
        ("network.0.network.", "network.1."),
    ):
        for name, tensor in weights.items():
            new = name.replace("fc.", head) if name.startswith("fc.") else encoder + name
            held[new] = tensor
    return held


def run(
    root: Path,
    name: str,
    weights: Tensors | None,
    *,
    score: float = 0.5,
    trial: int = 0,
    test_envs: tuple[int, ...] = (2,),
    algorithm: str = "ERM",
    init: str | None = "/somewhere/init.pth",
    done: bool = True,
    is_resnet: bool = True,
    more: Tensors | None = None,
) -> Path:
    """A folder of results, as DiWA's train.py leaves it, numpy scalars and all."""
    folder = root / name
    folder.mkdir(parents=True)
    args: dict[str, Any] = {"dataset": "Shapes", "algorithm": algorithm, "trial_seed": trial}
    args |= {"test_envs": list(test_envs), "hparams_seed": int(name[-1]), "path_for_init": init}
    hparams = {"lr": 5e-05, "resnet18": True, "batch_size": 32}
    rows = []
    for step, value in ((0, 0.1), (100, score), (200, 0.2)):
        row: dict[str, Any] = {"step": step, "args": args, "hparams": hparams}
        for number in range(3):
            row |= {f"env{number}_in_acc": 0.4, f"env{number}_out_acc": value}
        row[f"env{test_envs[0]}_out_acc"] = 1.0 - value
        rows.append(json.dumps(row))
    (folder / "results.jsonl").write_text("\n".join(rows) + "\n")
    if done:
        (folder / "done").write_text("done")
    if weights is not None:
        held = {
            "args": args,
            "model_input_shape": (3, 224, 224),
            "model_hparams": {**hparams, "lr": np.float64(5e-05)},
            "model_dict": {**their_names(weights, resnet=is_resnet), **(more or {})},
            "results": rows[1],
        }
        torch.save(held, folder / "model_best.pkl")
    return folder


def mean_of(every: list[Tensors]) -> Tensors:
    return {
        name: torch.stack([one[name].double() for one in every]).mean(0).to(every[0][name].dtype)
        if every[0][name].is_floating_point()
        else every[0][name]
        for name in every[0]
    }


# -- without images


def test_uniform_averages_by_task_trial_and_start(tmp_path: Path) -> None:
    every = {}
    for name, about in {
        "run0": {},
        "run1": {},
        "run2": {"trial": 1},
        "run3": {"test_envs": (0,)},
        "run4": {"init": "/elsewhere.pth"},
    }.items():
        every[name] = small(int(name[-1]))
        run(tmp_path, name, every[name], is_resnet=False, **about)
    results = harvest_foreign(tmp_path)
    groups = [{member.run for member in one.members} for one in results]
    assert sorted(map(sorted, groups)) == [
        ["run0", "run1"],
        ["run0", "run1", "run2"],  # all trials' runs from one file
        ["run2"],
        ["run3"],
        ["run4"],
    ]
    assert [len(one.members) for one in results if one.trial is None] == [3]
    (both,) = [one for one in results if len(one.members) == 2]
    assert (both.data, both.target, both.trial) == ("Shapes", "2", 0)
    assert Path(both.soup).is_relative_to(tmp_path / "diwa" / "soups")
    expected = mean_of([every["run0"], every["run1"]])
    found = load_file(both.soup)
    for name, tensor in expected.items():
        assert torch.allclose(found[f"network.{name}"], tensor), name
    assert Harvest.from_file(Path(both.soup).parent / "results.json") == both


def test_scores_are_those_of_the_kept_weights(tmp_path: Path) -> None:
    run(tmp_path, "run0", small(0), score=0.6, is_resnet=False)
    run(tmp_path, "run1", small(1), score=0.75, is_resnet=False)
    (result,) = harvest_foreign(tmp_path)
    assert [(one.run, one.validation) for one in result.members] == [("run1", 0.75), ("run0", 0.6)]
    assert result.members[0].hparams == {"lr": 5e-05, "batch_size": 32.0}


def test_what_is_no_member(tmp_path: Path) -> None:
    run(tmp_path, "run0", small(0), is_resnet=False)
    run(tmp_path, "run1", small(1), is_resnet=False, done=False)
    run(tmp_path, "run2", None)
    run(tmp_path, "run3", small(3), is_resnet=False, algorithm="MA")
    run(tmp_path, "run4", small(4), is_resnet=False)
    held, notes = usable_runs(tmp_path, ["run4"])
    assert [one.folder.name for one in held] == ["run0"]
    assert notes == [
        f"{tmp_path}: left out 1 that did not finish",
        f"{tmp_path}: left out 1 that kept no model_best.pkl",
        f"{tmp_path}: left out 1 that are MA's, whose checkpoint is of another network",
    ]


def test_nobody_left(tmp_path: Path) -> None:
    run(tmp_path, "run1", small(1), is_resnet=False, done=False)
    with pytest.raises(StoreError, match=r"no finished run with weights \(1 did not finish\)"):
        harvest_foreign(tmp_path)


def test_heads_that_were_drawn_apart_are_noted(tmp_path: Path) -> None:
    run(tmp_path, "run0", small(0), is_resnet=False, init=None)
    _, notes = usable_runs(tmp_path)
    assert "diwa check says whether they can be averaged" in notes[0]


def test_only_some_unseen_domains(tmp_path: Path) -> None:
    run(tmp_path, "run0", small(0), is_resnet=False)
    run(tmp_path, "run1", small(1), is_resnet=False, test_envs=(0,))
    (result,) = harvest_foreign(tmp_path, targets=["0"], out=tmp_path / "out")
    assert result.target == "0"
    assert Path(result.soup) == tmp_path / "out" / "soup.safetensors"
    assert not (tmp_path / "diwa").exists()
    with pytest.raises(StoreError, match="none of its runs leaves horse out"):
        harvest_foreign(tmp_path, targets=["horse"])


def test_the_folder_of_soups_can_be_written_again_and_reported(tmp_path: Path) -> None:
    run(tmp_path, "run0", small(0), is_resnet=False)
    first = harvest_foreign(tmp_path)
    assert harvest_foreign(tmp_path) == first
    assert any("not scored" in note for note in read_stores([tmp_path / "diwa"]).notes)


# -- with images


@pytest.fixture
def images(folder: Path) -> Benchmark:
    return open_folder(folder, name="Shapes", size=(224, 224), allow_small_domains=True)


def accuracy(weights: Tensors, benchmark: Benchmark, domain: str, positions: Any) -> float:
    """Plain timm and torchvision, nothing of ours."""
    network: Any = timm.create_model("resnet18", num_classes=2).eval()
    network.load_state_dict(weights)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    resized = [
        np.array(v2.Resize((224, 224))(Image.fromarray(benchmark[domain].images[place])))
        for place in positions
    ]
    pixels = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        says = network((pixels - mean) / std).argmax(1).numpy()
    return float((says == benchmark[domain].labels[positions]).mean())


def outer(count: int, trial: int, domain: int) -> list[int]:
    """DomainBed's validation split, from its definition."""
    order = list(range(count))
    random_state(trial, domain).shuffle(order)
    return order[: int(count * 0.2)]


@pytest.fixture
def scored(tmp_path: Path, images: Benchmark) -> tuple[Harvest, list[Tensors], Path]:
    """Two runs, one of which has a discriminator beside its network."""
    root = tmp_path / "theirs"
    every = [resnet(0), resnet(1)]
    run(root, "run0", every[0], score=0.6)
    run(root, "run1", every[1], score=0.7, algorithm="DANN", more={"d.weight": torch.ones(2)})
    (result,) = harvest_foreign(root, images=lambda name: images, device="cpu")
    return result, every, root


def test_scores_by_hand(scored: tuple[Harvest, list[Tensors], Path], images: Benchmark) -> None:
    result, every, root = scored
    whole = list(range(12))
    assert (result.data, result.target, result.images) == ("Shapes", "sketch", 12)
    assert [member.run for member in result.members] == ["run1", "run0"]
    alone = [accuracy(one, images, "sketch", whole) for one in reversed(every)]
    assert [member.target for member in result.members] == alone
    average = mean_of(every)
    assert result.methods["diwa-uniform"] == accuracy(average, images, "sketch", whole)
    found = load_file(result.soup)
    assert found.keys() == average.keys(), "the discriminator is no part of it"
    validation = [
        accuracy(average, images, name, outer(12, 0, number))
        for number, name in enumerate(DOMAINS[:2])
    ]
    # Both splits have two images, so that the pooled accuracy is the mean.
    assert result.validation["diwa-uniform"] == pytest.approx(np.mean(validation))
    assert Path(result.restricted_soup).is_file()
    records = read_stores([root / "diwa"]).records
    (told,) = [one for one in records if (one.method, one.scored) == ("diwa-uniform", "full")]
    assert (told.value, told.domain, told.runs) == (result.methods["diwa-uniform"], "sketch", 2)


def test_images_that_do_not_fit(tmp_path: Path, images: Benchmark) -> None:
    run(tmp_path / "a", "run0", small(0), is_resnet=False)
    with pytest.raises(ModelError, match="not a ResNet-18 or -50 with a linear head"):
        harvest_foreign(tmp_path / "a", images=lambda name: images, device="cpu")
    weights = resnet(0)
    weights |= {"fc.weight": torch.zeros(5, 512), "fc.bias": torch.zeros(5)}
    run(tmp_path / "b", "run0", weights)
    with pytest.raises(ModelError, match="is for 5 classes, the images have 2"):
        harvest_foreign(tmp_path / "b", images=lambda name: images, device="cpu")
    two = Benchmark("two", images.classes, list(images)[:2], digest="0")
    with pytest.raises(StoreError, match="has 3 domains, its images 2"):
        harvest_foreign(tmp_path / "b", images=lambda name: two, device="cpu")


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, "run0", None)
    torch.save({"model_dict": {"w": torch.zeros(1)}, "x": Path.unlink}, folder / "model_best.pkl")
    with pytest.raises(DiwaError, match="can't be read safely"):
        harvest_foreign(tmp_path)


# -- from the command line


def test_diwa_soup(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "theirs"
    for number in range(2):
        run(root, f"run{number}", resnet(number), score=0.5 + number / 10)
    assert main(["soup", str(root)]) == 0
    shown = capsys.readouterr()
    assert "Shapes, 2 unseen, trial 0: 2 runs averaged" in shown.out
    assert "pass --data FOLDER" in shown.out
    arguments = ["soup", str(root), "--device", "cpu", "--json", "--no-score", "--data"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diwa.cli.foreign.DataOptions", _allowing_small_domains)
        assert main([*arguments, str(folder)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["target"] == "sketch"
    assert {"diwa-restricted", "diwa-uniform"} <= set(found["validation"])


def test_images_lie_in_domainbeds_folder_or_right_there(tmp_path: Path) -> None:
    (tmp_path / "office_home").mkdir()
    assert images_of("OfficeHome", tmp_path) == tmp_path / "office_home"
    assert images_of("PACS", tmp_path) == tmp_path


def _allowing_small_domains(name: str) -> Any:
    from diwa.cli.options import DataOptions

    return DataOptions(name=name, allow_small_domains=True)


@pytest.mark.parametrize(
    "flags",
    [["--selection", "oracle"], ["--algorithm", "ERM"], ["--steps", "5"], ["--sweep", "lp"]],
)
def test_flags_that_would_choose_nothing_are_refused(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "run0", small(0), is_resnet=False)
    assert main(["soup", str(tmp_path), *flags]) == 1
    assert "can't choose; use --target and --leave-out" in capsys.readouterr().err
    assert not (tmp_path / "diwa").exists()
