"""What all tests share: a small folder of images, tiny weights, the real PACS where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diwa.data.benchmark import Benchmark, open_folder
from diwa.sweep.spec import SweepSpec
from diwa.weights import files


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or leaves anything in the user's cache and data sets."""
    monkeypatch.setenv("DIWA_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("DIWA_DATA", str(tmp_path_factory.mktemp("data")))


def make_folder(
    root: Path,
    *,
    domains: tuple[str, ...] = ("cartoon", "photo", "sketch"),
    classes: tuple[str, ...] = ("cat", "dog"),
    per_class: int = 6,
    size: tuple[int, int] = (40, 40),
) -> Path:
    """Images that a network can learn to tell apart: the class sets the place of a bright bar."""
    chance = np.random.RandomState(0)
    for d, domain in enumerate(domains):
        for c, name in enumerate(classes):
            place = root / domain / name
            place.mkdir(parents=True)
            for number in range(per_class):
                pixels = chance.randint(0, 90, size=(*size, 3))
                start = c * size[1] // len(classes)
                pixels[:, start : start + size[1] // len(classes), d % 3] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three domains, two classes, six images of each."""
    return make_folder(tmp_path / "shapes")


@pytest.fixture
def make_member(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of weights from plain lists."""

    def made(name: str, about: dict | None = None, **tensors: object) -> Path:
        path = tmp_path / f"{name}.safetensors"
        files.write(path, {k: torch.as_tensor(v) for k, v in tensors.items()}, about or {})
        return path

    return made


@pytest.fixture(scope="session")
def pacs() -> Path:
    """The real PACS, from beside the checkout or where DIWA_PACS says."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "pacs"
    root = Path(os.environ.get("DIWA_PACS", beside))
    if not root.is_dir():
        pytest.skip(f"the real PACS is not at {root}; set DIWA_PACS")
    return root


@pytest.fixture
def tiny_sweep() -> Callable[..., SweepSpec]:
    """A sweep of a tiny network from random weights, for images of 40 pixels."""

    def made(**changes: Any) -> SweepSpec:
        settings: dict[str, Any] = {
            "target": ("sketch",),
            "runs": 2,
            "steps": 5,
            "eval_every": 2,
            "backbone": "test_resnet",
            "weights": "none",
            "size": (32,),
            "hparams": {"batch_size": (4.0,), "lr": (1e-3,), "dropout": (0.1,)},
            "precision": "fp32",
        }
        return SweepSpec(**{**settings, **changes})

    return made


@pytest.fixture
def shapes(folder: Path) -> Benchmark:
    """The small folder, opened for 32 pixels."""
    return open_folder(folder, size=(32, 32), allow_small_domains=True)
