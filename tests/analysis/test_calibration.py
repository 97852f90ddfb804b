"""Networks of known origin, trained here, and the verdict that each gets.

The thresholds of `diwa.analysis.compare` and `explain` were set on larger ones; these are of the
same kinds: siblings, some of them trained much too hard, heads drawn apart, strangers, copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from diwa.analysis.check import check
from diwa.analysis.compare import origin
from diwa.analysis.verdict import Verdict
from diwa.data.benchmark import Benchmark, open_folder
from diwa.weights import files

MODEL, CLASSES, SIDE = "test_resnet", ("a", "b", "c", "d"), 32
ABOUT = {"backbone": MODEL, "size": [SIDE, SIDE], "channels": 3, "classes": list(CLASSES)}


class Nursery:
    """Images hard enough to be got wrong, and networks that are trained on half of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        chance = np.random.RandomState(0)
        pixels, labels = [], []
        for label, name in enumerate(CLASSES):
            folder = root / "images" / "noisy" / name
            folder.mkdir(parents=True)
            for number in range(100):
                image = chance.randint(0, 200, size=(SIDE, SIDE, 3))
                # One in ten shows another class's bar.
                shown = label if chance.rand() > 0.1 else chance.randint(len(CLASSES))
                image[shown * 8 : shown * 8 + 8] += 60
                bytes_ = image.clip(0, 255).astype(np.uint8)
                Image.fromarray(bytes_).save(folder / f"{number:03}.png")
                pixels.append(bytes_)
                labels.append(label)
        self.x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1
        self.y = torch.tensor(labels)
        self.start = self.born(0)
        self.trained(self.start, 2e-3, 80, seed=0, live=True)
        self.add("start", self.start)

    def images(self) -> Benchmark:
        return open_folder(
            self.root / "images", size=(SIDE, SIDE), cache_dir=self.root / "cache", name="noisy"
        )

    def born(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return timm.create_model(MODEL, num_classes=len(CLASSES))

    def trained(
        self, network: nn.Module, lr: float, steps: int, *, seed: int, live: bool = False
    ) -> None:
        network.train()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train(live)
        optimiser = torch.optim.Adam(network.parameters(), lr=lr)
        chance = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            batch = 2 * torch.randint(len(self.x) // 2, (16,), generator=chance)
            loss = F.cross_entropy(network(self.x[batch]), self.y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def child(
        self, name: str, lr: float, seed: int, *, head: int | None = None, live: bool = False
    ) -> None:
        network = self.born(0)
        network.load_state_dict(self.start.state_dict())
        if head is not None:
            torch.manual_seed(head)
            network.get_submodule("fc").reset_parameters()  # pyright: ignore
        self.trained(network, lr, 30, seed=seed, live=live)
        self.add(name, network)

    def add(self, name: str, network: nn.Module) -> None:
        files.write(self.path(name), network.state_dict(), {"model": ABOUT})

    def path(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    held = Nursery(tmp_path_factory.mktemp("nursery"))
    for number in (1, 2, 3):
        held.child(f"mild{number}", 1e-3, number)
    held.child("hard", 1e-2, 4)
    held.child("extreme", 1e-1, 5)
    for number in (1, 2):
        held.child(f"head{number}", 1e-3, number, head=number)
        held.child(f"live{number}", 1e-3, number, live=True)
    stranger = held.born(7)
    held.trained(stranger, 2e-3, 80, seed=7, live=True)
    held.add("stranger", stranger)
    held.add("copy", held.born(0))
    files.write(held.path("copy"), files.read(held.path("mild1")), {"model": ABOUT, "note": "copy"})
    files.write(held.path("shuffled"), _shuffled(files.read(held.path("mild2"))), {"model": ABOUT})
    return held


def _shuffled(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every matrix with its rows in another order: hidden units that have changed places."""
    chance = torch.Generator().manual_seed(0)
    return {
        name: tensor[torch.randperm(len(tensor), generator=chance)] if tensor.ndim > 1 else tensor
        for name, tensor in weights.items()
    }


Judge = Callable[..., Verdict]


@pytest.fixture
def judge(nursery: Nursery) -> Judge:
    def judged(*names: str, measured: bool = False) -> Verdict:
        paths = [nursery.path(name) for name in names]
        images = nursery.images() if measured else None
        return check(paths, benchmark=images, limit=200, device="cpu")

    return judged


def merged(verdict: Verdict) -> list[str]:
    return [name.removesuffix(".safetensors") for name in verdict.merge]


MILD = ("mild1", "mild2", "mild3")

#: Who is given, who is to be merged, and what is said of the others; from the weights alone.
CASES: list[tuple[Sequence[str], int, Sequence[str], str]] = [
    (MILD, 0, MILD, ""),
    ((*MILD, "start"), 0, (*MILD, "start"), ""),
    ((*MILD, "stranger"), 1, MILD, "does not descend from the same initialisation"),
    (("mild1", "stranger"), 2, (), "no sign that they descend from one initialisation"),
    ((*MILD, "hard"), 1, MILD, "of the norm or more from them"),
    ((*MILD, "extreme"), 1, MILD, "of the norm or more from them"),
    ((*MILD, "copy"), 1, MILD, "the same weights as mild1.safetensors"),
    (("mild1", "copy"), 0, ("mild1", "copy"), "Nothing to gain"),
    ((*MILD, "shuffled"), 1, MILD, "does not descend from the same initialisation"),
    (("head1", "head2"), 2, (), "'fc.weight' has nothing in common from one to another"),
    ((*MILD, "head1"), 1, MILD, "'fc.weight' has nothing in common with theirs"),
    (("live1", "live2"), 0, ("live1", "live2"), ""),
]


@pytest.mark.parametrize(("given", "code", "merge", "says"), CASES)
def test_from_the_weights_alone(
    judge: Judge, given: Sequence[str], code: int, merge: Sequence[str], says: str
) -> None:
    verdict = judge(*given)
    assert (verdict.code, merged(verdict)) == (code, list(merge))
    assert says in "\n".join([verdict.sentence, *(one.why for one in verdict.leave_out)])


def test_numbers_are_far_from_the_thresholds(judge: Judge) -> None:
    """What is on either side of a line is nowhere near it."""
    verdict = judge(*MILD, "stranger", "head1", "extreme")
    evidence = verdict.evidence

    def pair(one: str, other: str):
        return evidence.pair(f"{one}.safetensors", f"{other}.safetensors")

    siblings = [pair("mild1", "mild2"), pair("mild1", "mild3"), pair("mild2", "mild3")]
    for found in siblings:
        assert found.distance is not None
        assert found.sigma is not None
        assert found.correlation is not None
        assert 0.03 < found.distance < 0.1
        assert found.sigma > 100
        assert found.correlation > 0.99
        assert found.apart == ()
    strange = pair("mild1", "stranger")
    assert strange.distance == pytest.approx(2**0.5, abs=0.05)
    assert abs(strange.sigma or 0.0) < 1.5
    astray = pair("mild1", "extreme")
    assert (astray.distance or 0.0) > 1
    assert origin(astray) == "certain"
    assert pair("mild1", "head1").apart == ("fc.weight",)


def test_the_base_is_told_from_a_stranger(nursery: Nursery) -> None:
    members = [nursery.path(name) for name in MILD]
    true, false = (check(members, base=nursery.path(name)) for name in ("start", "stranger"))
    assert not any("not where these started" in note for note in true.notes)
    assert any("stranger.safetensors is not where these" in note for note in false.notes)
    gone = [member.from_base for member in true.evidence.members]
    assert all(way is not None and 0.02 < way < 0.1 for way in gone)
    assert all(80 > (pair.base_angle or 0.0) > 20 for pair in true.evidence.pairs)


@pytest.mark.parametrize(
    ("given", "code", "merge"),
    [
        (MILD, 0, MILD),
        ((*MILD, "hard"), 1, MILD),
        ((*MILD, "extreme"), 1, MILD),
        (("mild1", "mild2", "stranger"), 1, ("mild1", "mild2")),
        (("mild1", "stranger"), 2, ()),
    ],
)
def test_with_data(judge: Judge, given: Sequence[str], code: int, merge: Sequence[str]) -> None:
    verdict = judge(*given, measured=True)
    assert (verdict.code, merged(verdict)) == (code, list(merge))
    land = verdict.evidence.landscape
    assert land is not None
    if code:
        best = max(point.accuracy for point in land.members.values())
        # What the verdict warns of is so: the average of all of them has lost what they know.
        assert land.mean.accuracy < best - 0.1
        assert "a uniform average of all" in "\n".join(verdict.notes)
    if merge:
        assert verdict.merged is not None
        assert verdict.merged.accuracy > 0.85


def test_live_statistics_are_seen(judge: Judge) -> None:
    assert "recalibrate_batchnorm" in "\n".join(judge("live1", "live2").notes)
    assert "integers differ" not in "\n".join(judge("live1", "live2").notes)
    assert "recalibrate_batchnorm" not in "\n".join(judge(*MILD).notes)
