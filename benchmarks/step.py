"""How near our training loop is to the bare step, data and augmentation included.

Both sides run in one process on the same tensors' shapes, alternating, several times; what counts
is the ratio. Three bare steps are measured: what DomainBed does (eager float32, NCHW), and the
fastest we know in each precision (channels-last, frozen batch norm folded), which is what our loop
is compared with.

    python benchmarks/step.py --out benchmarks/results/step.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch.nn import functional as F

import diwa
from diwa.models.batchnorm import freeze
from diwa.models.device import Compute
from diwa.models.network import ModelSpec, build_network
from diwa.runs.store import Store
from diwa.sweep.plan import plan
from diwa.train.loop import train_run
from diwa.train.workplace import Workplace

DOMAINS, PER_DOMAIN, CLASSES = 3, 32, 7


def make_images(root: Path, side: int) -> Path:
    """Photograph-like files: smooth noise, saved as JPEG."""
    chance = np.random.RandomState(0)
    for domain in "abcd":
        for number in range(CLASSES):
            place = root / domain / f"class{number}"
            place.mkdir(parents=True)
            for image in range(8):
                coarse = chance.randint(0, 255, size=(12, 12, 3)).astype(np.uint8)
                smooth = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
                smooth.save(place / f"{image}.jpg")
    return root


class DomainBed:
    """The plain step: eager float32, contiguous, batch norm in evaluation mode."""

    def __init__(self, backbone: str, size: int) -> None:
        self.network = timm.create_model(backbone, num_classes=CLASSES).train()
        freeze(self.network)
        self.adam = torch.optim.Adam(self.network.parameters(), lr=5e-5)
        self.x = torch.randn(DOMAINS * PER_DOMAIN, 3, size, size)
        self.y = torch.randint(0, CLASSES, (DOMAINS * PER_DOMAIN,))

    def step(self) -> None:
        """One update."""
        loss = F.cross_entropy(self.network(self.x), self.y)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()


class Bare:
    """The fastest step we know, on tensors that lie ready."""

    def __init__(self, backbone: str, size: int, precision: str) -> None:
        classes = tuple(f"class{number}" for number in range(CLASSES))
        spec = ModelSpec(backbone=backbone, size=(size, size), channels=3, classes=classes)
        self.network = build_network(spec, weights="none")
        self.compute = Compute.choose("cpu", precision)
        self.adam = torch.optim.Adam(self.network.parameters(), lr=5e-5, fused=True)
        x = torch.randn(DOMAINS * PER_DOMAIN, 3, size, size)
        self.x = x.to(memory_format=torch.channels_last)
        self.y = torch.randint(0, CLASSES, (DOMAINS * PER_DOMAIN,))

    def step(self) -> None:
        """One update."""
        with self.compute.autocast():
            loss = F.cross_entropy(self.network(self.x).float(), self.y)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()


class _Stamps:
    """An observer that notes when each step is done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_step(self, step: int, network: object) -> None:
        """Notes the time."""
        self.times.append(time.perf_counter())

    def after_validation(self, row: object, network: object) -> None:
        """Is not what is measured."""


def ours(
    images: diwa.Benchmark, root: Path, backbone: str, size: int, precision: str, steps: int
) -> Callable[[], list[float]]:
    """Gives a function that trains a run with our loop and gives the seconds of its steps."""
    count = 0

    def trained() -> list[float]:
        nonlocal count
        count += 1
        sweep = diwa.SweepSpec(
            target=("d",),
            runs=1,
            # Validation is not part of the step: it comes at the first and the last, which are
            # left out below.
            steps=steps + 2,
            eval_every=10_000,
            init="random",
            backbone=backbone,
            weights="none",
            size=(size,),
            seed=count,
            precision=precision,  # pyright: ignore[reportArgumentType]
        )
        stamps = _Stamps()
        place = Workplace(benchmark=images, store=Store(root / "store"), device="cpu")
        train_run(plan(sweep, images, device="cpu")[0], place, observers=[stamps])
        gaps = np.diff(stamps.times)
        return gaps[:-1].tolist()

    return trained


def timed(step: Callable[[], None], steps: int) -> list[float]:
    """Seconds of each of `steps` steps."""
    spent = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        spent.append(time.perf_counter() - began)
    return spent


def main() -> None:
    """Measures, prints a line per side and writes the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    batch = DOMAINS * PER_DOMAIN
    rates: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {"fp32": [], "bf16": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        images = diwa.open_folder(
            make_images(root / "images", 227),
            size=(given.size, given.size),
            cache_dir=root / "cache",
        )
        domainbed = DomainBed(given.backbone, given.size)
        for precision in ("bf16", "fp32"):
            bare = Bare(given.backbone, given.size, precision)
            looped = ours(images, root, given.backbone, given.size, precision, given.steps)
            bare.step()
            for _ in range(given.repeats):
                # Alternating, bare before and after, so that a slow minute hurts both sides.
                before = timed(bare.step, given.steps)
                inside = looped()
                after = timed(bare.step, given.steps)
                plain = statistics.median(before + after)
                rates.setdefault(f"bare {precision}", []).append(batch / plain)
                rates.setdefault(f"ours {precision}", []).append(batch / statistics.median(inside))
                ratios[precision].append(plain / statistics.median(inside))
            del bare
        domainbed.step()
        rates["domainbed fp32"] = [
            batch / statistics.median(timed(domainbed.step, 2)) for _ in range(given.repeats)
        ]
    for side, values in rates.items():
        print(f"{side:15} {statistics.median(values):6.1f} images/s  {_spread(values)}")
    for precision, values in ratios.items():
        print(f"ours / bare in {precision}: {statistics.median(values):.3f}  {_spread(values, 3)}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {key: str(value) for key, value in vars(given).items() if key != "out"}
        machine = {"cores": os.cpu_count(), "torch": torch.__version__}
        content = {"settings": settings, "machine": machine, "rates": rates, "ratios": ratios}
        given.out.write_text(json.dumps(content, indent=2) + "\n")


def _spread(values: list[float], digits: int = 1) -> str:
    return f"({min(values):.{digits}f} to {max(values):.{digits}f}, {len(values)} repeats)"


if __name__ == "__main__":
    main()
