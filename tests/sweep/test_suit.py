"""Settings that suit some images, unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diwa.data.benchmark import Benchmark, Domain
from diwa.errors import SpecError
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec
from diwa.sweep.suit import suited, told_apart

SUITS = {
    "backbone": "mnist_cnn",
    "weights": "none",
    "size": (28,),
    "channels": 2,
    "augment": "none",
}


@pytest.fixture
def digits() -> Benchmark:
    class Blank:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, position: int) -> np.ndarray:
            return np.zeros((28, 28, 2), np.uint8)

        def original_size(self, position: int) -> tuple[int, int]:
            return (28, 28)

    domains = [Domain(name, np.arange(10) % 2, lambda: (Blank(), np.arange(10))) for name in "abc"]
    made = Benchmark("ColoredMNIST", ("x", "y"), domains, digest="0", channels=2)
    made.suits, made.only_size, made.short = SUITS, (28, 28), {"a": "+90%"}
    return made


def test_what_was_left_at_its_default_is_changed(digits: Benchmark) -> None:
    made = suited(SweepSpec(target=("a",)), digits)
    assert {name: getattr(made, name) for name in SUITS} == SUITS
    assert suited(made, digits) == made


def test_what_was_chosen_is_kept(digits: Benchmark) -> None:
    spec = SweepSpec(target=("a",), backbone="resnet18", augment="domainbed", steps=7)
    made = suited(spec, digits)
    assert (made.backbone, made.steps, made.size) == ("resnet18", 7, (28,))


def test_it_is_said_what_was_changed(digits: Benchmark) -> None:
    spec = SweepSpec(target=("a",), backbone="resnet18")
    assert told_apart(spec, suited(spec, digits), digits) == (
        "ColoredMNIST: with weights none, size 28, channels 2, augment none, "
        "which suit it unless you say otherwise"
    )


def test_images_without_wishes(shapes: Benchmark) -> None:
    spec = SweepSpec(target=("sketch",))
    assert suited(spec, shapes) is spec


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"channels": 1}, "channels=1: ColoredMNIST has 2; pass --channels 2, or open it with 1"),
        (
            {"size": (32,)},
            r"size (32, 32): ColoredMNIST makes sense at (28, 28) only; leave --size out",
        ),
    ],
)
def test_what_these_images_can_not_be(
    digits: Benchmark, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        suited(SweepSpec(target=("a",), **settings), digits)
    assert str(caught.value) == says


def test_every_run_is_planned_with_them(digits: Benchmark) -> None:
    runs = plan(SweepSpec(target=("a", "+90%"), runs=2, init="random"), digits, device="cpu")
    assert len(runs) == 2  # the target was named twice
    for run in runs:
        assert run.task.unseen == ("a",)
        assert (run.init.backbone, run.init.weights) == ("mnist_cnn", "none")
        image = run.task.image
        assert (image.size, image.channels, image.augment) == ((28, 28), 2, "none")


def test_channels_that_the_images_have_not(
    shapes: Benchmark, tiny_sweep: Callable[..., SweepSpec]
) -> None:
    with pytest.raises(SpecError, match="channels=1: shapes has 3"):
        plan(tiny_sweep(channels=1), shapes, device="cpu")
