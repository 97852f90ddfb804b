"""Linear probing against the plain way of doing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from diwa.data.benchmark import Benchmark
from diwa.data.transforms import Augment
from diwa.models.network import Network, restore_network
from diwa.runs.spec import InitSpec
from diwa.runs.store import Store
from diwa.seeding import seed_hash
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec
from diwa.train import probe
from diwa.train.init import shared_init
from diwa.train.workplace import Workplace
from diwa.weights import files

Sweep = Callable[..., SweepSpec]


@pytest.fixture
def spec(shapes: Benchmark, tiny_sweep: Sweep) -> InitSpec:
    return plan(tiny_sweep(lp_steps=12, lp_lr=1e-2, lp_views=2), shapes, device="cpu")[0].init


def _place(shapes: Benchmark, root: Path) -> Workplace:
    return Workplace(benchmark=shapes, store=Store(root), device="cpu")


def test_equals_training_the_head_on_top_of_the_frozen_encoder(
    spec: InitSpec, shapes: Benchmark, tmp_path: Path
) -> None:
    place = _place(shapes, tmp_path / "probed")
    probed = files.read(shared_init(spec, place))
    # The same initialisation before probing, and then every image through the encoder each time.
    unprobed = InitSpec.from_json(spec.to_json().replace(b'"head": "lp"', b'"head": "random"'))
    path = shared_init(unprobed, place)
    network = restore_network(files.about(path), files.read(path)).eval()
    adam = torch.optim.Adam(network.head.parameters(), lr=spec.lr)
    augment = Augment(spec.task.image)
    best, kept = -1.0, network.head.weight.detach().clone()
    for step in range(spec.steps):
        images, labels = [], []
        for number, name in enumerate(["cartoon", "photo"]):
            domain, inner = shapes[name], shapes.split(name, trial=0).inner
            chance = np.random.RandomState(seed_hash(spec.seed, "probe", number, step))
            picks = inner[chance.randint(len(inner), size=spec.batch_size)]
            for position, view in zip(picks, chance.randint(2, size=32), strict=True):
                seed = seed_hash(spec.seed, "view", number, int(position), int(view))
                image = augment(domain.images[position], (40, 40), seed)
                images.append(torch.from_numpy(image.copy()).permute(2, 0, 1))
                labels.append(int(domain.labels[position]))
        with torch.no_grad():
            features = network.features(network.normalise(torch.stack(images)))
        loss = F.cross_entropy(network.head(features), torch.tensor(labels))
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % spec.eval_every == 0 or step == spec.steps - 1:
            score = _validated(network, shapes)
            if score > best:
                best, kept = score, network.head.weight.detach().clone()
    assert torch.allclose(probed["fc.weight"], kept, atol=1e-5)


def _validated(network: Network, shapes: Benchmark) -> float:
    from diwa.data.transforms import squash

    scores = []
    for name in ("cartoon", "photo"):
        domain, outer = shapes[name], shapes.split(name, trial=0).outer
        images = np.stack([squash(domain.images[p], (32, 32)) for p in outer])
        x = network.normalise(torch.from_numpy(images).permute(0, 3, 1, 2))
        with torch.no_grad():
            right = network(x).argmax(1).numpy() == domain.labels[outer]
        scores.append(right.mean())
    return float(np.mean(scores))


def test_the_encoder_stays_as_it_was(spec: InitSpec, shapes: Benchmark, tmp_path: Path) -> None:
    place = _place(shapes, tmp_path / "store")
    unprobed = InitSpec.from_json(spec.to_json().replace(b'"head": "lp"', b'"head": "random"'))
    before, after = files.read(shared_init(unprobed, place)), files.read(shared_init(spec, place))
    for name in before:
        assert torch.equal(before[name], after[name]) != name.startswith("fc."), name


def test_each_view_goes_through_the_encoder_once(
    spec: InitSpec, shapes: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    features = Network.features

    def counting(self: Network, x: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        assert not torch.is_grad_enabled() or torch.is_inference_mode_enabled()
        seen += len(x)
        return features(self, x)

    monkeypatch.setattr(Network, "features", counting)
    shared_init(spec, _place(shapes, tmp_path / "store"))
    inner = sum(len(shapes.split(name, trial=0).inner) for name in ("cartoon", "photo"))
    outer = sum(len(shapes.split(name, trial=0).outer) for name in ("cartoon", "photo"))
    assert seen <= inner * spec.views + outer
    # Twelve steps of 64 draw nearly all of the 40 views, and would be 768 without the file.
    assert seen > inner


def test_goes_on_where_its_features_end(
    spec: InitSpec, shapes: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_CHUNK", 4)
    whole = shared_init(spec, _place(shapes, tmp_path / "whole")).read_bytes()

    class _Died(BaseException):
        pass

    features, left = Network.features, 5

    def dying(self: Network, x: torch.Tensor) -> torch.Tensor:
        nonlocal left
        left -= 1
        if not left:
            raise _Died
        return features(self, x)

    place = _place(shapes, tmp_path / "broken")
    monkeypatch.setattr(Network, "features", dying)
    with pytest.raises(_Died):
        shared_init(spec, place)
    scratch = next((tmp_path / "broken").rglob("features.f32"))
    size = scratch.stat().st_size
    assert size >= 4 * 4 * 4
    with scratch.open("ab") as file:
        file.write(b"torn")  # half a row, as a kill may leave it
    half = scratch.with_name(".weights.safetensors.1-0.part")
    half.write_bytes(b"half")
    calls = 0

    def counting(self: Network, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return features(self, x)

    monkeypatch.setattr(Network, "features", counting)
    assert shared_init(spec, place).read_bytes() == whole
    assert not scratch.exists()
    assert not half.exists()
    assert calls < 10 + 2, "what was computed before was computed again"


def test_no_weights_file_where_one_is_needed(
    spec: InitSpec, shapes: Benchmark, tmp_path: Path
) -> None:
    from diwa.errors import StoreError

    text = spec.to_json().replace(b'"weights": "none"', b'"weights": "' + b"a" * 64 + b'"')
    lost = InitSpec.from_json(text)
    with pytest.raises(StoreError, match="--weights"):
        shared_init(lost, _place(shapes, tmp_path / "store"))
