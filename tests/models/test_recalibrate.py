"""Statistics of batch norm from data, against all of a layer's inputs pooled by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from diwa.errors import ModelError
from diwa.models.backbones import FROM_NOWHERE
from diwa.models.batchnorm import batch_norms, fold, freeze
from diwa.models.network import ModelSpec, build_network
from diwa.models.recalibrate import recalibrate_batchnorm

Batches = list[torch.Tensor]


def numbers(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3 + 1


def cut(x: torch.Tensor, *sizes: int) -> Batches:
    assert sum(sizes) == len(x)
    return list(x.split(list(sizes)))


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


def oracle(model: nn.Module, batches: Batches) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Keeps everything that every layer is given, then takes mean and variance of it all."""
    model = copy.deepcopy(model).eval()
    given: dict[str, Batches] = {}
    for name, norm in norms(model).items():
        norm.train()

        def keep(_: Any, inputs: tuple[torch.Tensor, ...], name: str = name) -> None:
            flat = inputs[0].detach().transpose(0, 1).flatten(1)
            given.setdefault(name, []).append(flat)

        norm.register_forward_pre_hook(keep)
    for batch in batches:
        model(batch)
    pooled = {name: torch.cat(parts, dim=1) for name, parts in given.items()}
    return {name: (every.mean(1), every.var(1)) for name, every in pooled.items()}


def assert_right(model: nn.Module, expected: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    assert norms(model).keys() == expected.keys()
    for name, norm in norms(model).items():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = expected[name]
        torch.testing.assert_close(norm.running_mean, mean, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(norm.running_var, variance, rtol=1e-11, atol=1e-12)


def states(model: nn.Module) -> dict[str, Any]:
    """Everything a model is, but for its tensors' identity."""
    return {
        "modes": [m.training for m in model.modules()],
        "momenta": [norm.momentum for norm in norms(model).values()],
        "folded": [vars(m).get("forward") for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "gradients": [(p.requires_grad, p.grad is None) for p in model.parameters()],
    }


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


SHAPES: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: nn.BatchNorm1d(3), (20, 3)),
    (lambda: nn.BatchNorm1d(3), (20, 3, 5)),
    (lambda: nn.BatchNorm2d(3), (20, 3, 4, 5)),
    (lambda: nn.BatchNorm3d(3), (20, 3, 2, 3, 4)),
    (lambda: nn.SyncBatchNorm(3), (20, 3, 4)),
    (lambda: nn.BatchNorm2d(3, affine=False), (20, 3, 4, 5)),
    (lambda: nn.BatchNorm2d(3, momentum=None), (20, 3, 4, 5)),
]


@pytest.mark.parametrize(("layer", "shape"), SHAPES)
@pytest.mark.parametrize("sizes", [(20,), (10, 10), (8, 8, 4), (2, 17, 1)])
def test_a_layer_gets_the_statistics_of_all_its_inputs(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Exactly those, however the data are cut into batches."""
    if len(shape) == 2 and 1 in sizes:
        sizes = (2, 16, 2)
    model, x = layer().double(), numbers(*shape)
    recalibrate_batchnorm(model, cut(x, *sizes))
    every = x.transpose(0, 1).flatten(1)
    assert_right(model, {"": (every.mean(1), every.var(1))})
    assert model.num_batches_tracked == len(sizes)


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.BatchNorm1d(5),
    ).double()


def test_layers_behind_one_another() -> None:
    model, batches = deep(), cut(numbers(20, 3, 8, 8), 8, 8, 4)
    expected = oracle(model, batches)
    assert_right(recalibrate_batchnorm(model, batches), expected)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_byobnet"])
def test_timms(name: str) -> None:
    """Norms with an activation inside are timm's own class."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3).double()
    batches = cut(numbers(7, 3, 32, 32), 4, 3)
    expected = oracle(model, batches)
    assert len(expected) > 10
    assert_right(recalibrate_batchnorm(model, batches), expected)


def test_as_torch_does_it_where_that_is_right() -> None:
    """Of one batch without dropout, torch's way and ours agree; of equal ones, in the means."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=0).double()
    x = numbers(8, 3, 32, 32)
    for batches in ([x], cut(x, 4, 4)):
        theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
        update_bn(batches, theirs)
        recalibrate_batchnorm(ours, batches)
        for name, tensor in theirs.state_dict().items():
            if len(batches) == 1 or not name.endswith("running_var"):
                torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-11, atol=1e-12)


def test_better_than_torch_where_batches_differ() -> None:
    """As they do where each is of one class or domain: what differs between them is variance."""
    x = numbers(40, 3).sort(dim=0).values
    theirs, ours = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    batches = cut(x, 10, 10, 10, 10)
    update_bn(batches, theirs)
    recalibrate_batchnorm(ours, batches)
    assert theirs.running_var is not None
    assert ours.running_var is not None
    assert (theirs.running_var < 0.5 * x.var(0)).all()
    torch.testing.assert_close(ours.running_var, x.var(0))


def test_means_far_from_zero_keep_their_digits() -> None:
    x = numbers(64, 2, dtype=torch.float32) + 10_000
    model = recalibrate_batchnorm(nn.BatchNorm1d(2), cut(x, 16, 16, 32))
    assert model.running_var is not None
    torch.testing.assert_close(model.running_var, x.double().var(0).float(), rtol=1e-3, atol=0)


def test_only_the_statistics_change() -> None:
    model = deep().train()
    model[1].eval()
    model[4].requires_grad_(False)
    before, was = tensors(model), states(model)
    rng = torch.get_rng_state()
    assert recalibrate_batchnorm(model, [numbers(4, 3, 8, 8)]) is model
    assert states(model) == was
    assert torch.equal(torch.get_rng_state(), rng), "dropout is off"
    changed = {n for n, t in tensors(model).items() if not torch.equal(t, before[n])}
    assert changed == {
        f"{layer}.{name}"
        for layer in (1, 5, 8)
        for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_what_was_there_before_does_not_matter() -> None:
    batches = cut(numbers(20, 3, 8, 8), 8, 12)
    one, other = deep(), deep()
    for norm in norms(other).values():
        for buffer in norm.buffers():
            buffer.fill_(float("nan") if buffer.is_floating_point() else 99)
    assert same(
        tensors(recalibrate_batchnorm(one, batches)), tensors(recalibrate_batchnorm(other, batches))
    )
    assert same(tensors(recalibrate_batchnorm(one, batches)), tensors(other)), "nor a first time"


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, 3), lambda x: [x, "label"]])
def test_kinds_of_batches(wrap: Callable[[torch.Tensor], Any]) -> None:
    batches = cut(numbers(20, 3, 8, 8), 8, 12)

    def loader() -> Iterator[Any]:
        yield from map(wrap, batches)

    assert same(
        tensors(recalibrate_batchnorm(deep(), loader())),
        tensors(recalibrate_batchnorm(deep(), batches)),
    )


def test_a_real_loader_with_an_uneven_end() -> None:
    x = numbers(10, 3)
    data = torch.utils.data.TensorDataset(x, torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model = recalibrate_batchnorm(nn.BatchNorm1d(3).double(), loader)
    assert_right(model, {"": (x.mean(0), x.var(0))})


def test_a_layer_that_runs_twice_sees_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) + self.norm(5 * x[:2])[:1]

    x = numbers(20, 3)
    model = recalibrate_batchnorm(Twice().double(), cut(x, 12, 8))
    every = torch.cat([x, 5 * x[:2], 5 * x[12:14]])
    assert_right(model, {"norm": (every.mean(0), every.var(0))})


def test_a_layer_that_does_not_run_keeps_what_it_has() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = Half()
    for norm in (model.used, model.unused):
        assert norm.running_mean is not None
        norm.running_mean.fill_(7)
    recalibrate_batchnorm(model, [numbers(5, 3, dtype=torch.float32)])
    assert 7 not in model.used.state_dict()["running_mean"]
    assert model.unused.state_dict()["running_mean"].tolist() == [7, 7, 7]
    assert model.unused.num_batches_tracked == 0


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(3, 2),
        nn.Sequential(),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.InstanceNorm1d(3, track_running_stats=True),
    ],
    ids=str,
)
def test_models_without_statistics_are_left_alone(model: nn.Module) -> None:
    before = tensors(model)
    data = [numbers(4, 3, 5, dtype=torch.float32), "never looked at"]
    assert recalibrate_batchnorm(model, data) is model  # pyright: ignore[reportArgumentType]
    assert same(tensors(model), before)


# -- our own network


def network(size: int = 32) -> nn.Module:
    torch.manual_seed(0)
    spec = ModelSpec(backbone="test_resnet", size=(size, size), channels=3, classes=("a", "b"))
    return build_network(spec, weights=FROM_NOWHERE, dropout=0.5).double()


def test_frozen_and_folded_norms_are_computed_unfolded() -> None:
    model = network()
    assert any("forward" in vars(norm) for norm in batch_norms(model))
    plain = copy.deepcopy(model)
    for module in plain.modules():
        vars(module).pop("forward", None)
    batches = cut(numbers(9, 3, 32, 32), 5, 4)
    expected = oracle(plain, batches)
    was = states(model)
    assert_right(recalibrate_batchnorm(model, batches), expected)
    assert states(model) == was, "folded and frozen again"
    assert not any(norm.training for norm in batch_norms(model.train()))
    # The folded network computes with the new statistics.
    recalibrate_batchnorm(plain, batches)
    x = numbers(3, 3, 32, 32, seed=2)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=1e-9, atol=1e-9)


def test_a_copy_of_a_folded_network() -> None:
    """Its layers are folded onto each other, not onto those of the original."""
    model = network()
    copied = copy.deepcopy(model)
    before = tensors(model)
    batches = [numbers(5, 3, 32, 32)]
    recalibrate_batchnorm(copied, batches)
    assert same(tensors(model), before)
    assert same(tensors(copied), tensors(recalibrate_batchnorm(model, batches)))


def test_a_forward_of_somebody_elses_stays() -> None:
    """As hooks of other libraries are put on; ours are told from theirs."""
    model = nn.Sequential(nn.BatchNorm1d(3))
    norm, calls = model[0], []
    original = norm.forward
    norm.forward = lambda x: calls.append(len(x)) or original(x)
    theirs = norm.forward
    recalibrate_batchnorm(model, [numbers(5, 3, dtype=torch.float32)])
    assert calls == [5]
    assert norm.forward is theirs


# -- what goes wrong leaves everything as it was


def refused(model: nn.Module, loader: Any, *words: str) -> None:
    before, was = tensors(model), states(model)
    with pytest.raises(ModelError) as caught:
        recalibrate_batchnorm(model, loader)
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert word in said
    assert same(tensors(model), before)
    assert states(model) == was


def test_an_empty_loader() -> None:
    refused(deep(), [], "no batch", "give a loader with data")
    refused(network(), iter(()), "no batch")


@pytest.mark.parametrize("batch", [{"x": 1}, "text", (), ("text", torch.ones(1))])
def test_batches_that_are_none(batch: Any) -> None:
    refused(deep(), [numbers(4, 3, 8, 8), batch], "a batch is a ", "tuples that start with one")


def test_one_value_per_channel() -> None:
    refused(deep(), [numbers(4, 3, 8, 8), numbers(1, 3, 8, 8)], "a batch of 1 ", "drop_last=True")


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_number(odd: float) -> None:
    batches = cut(numbers(20, 3, 8, 8), 8, 12)
    batches[0][0, 0, 0, 0] = odd
    refused(deep(), batches, "batch norm '1': ", "NaN or infinite")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, ValueError])
def test_an_error_of_the_loaders(error: type[BaseException]) -> None:
    def loader() -> Iterator[torch.Tensor]:
        yield numbers(4, 3, 32, 32)
        raise error("stop")

    model = network()
    before, was = tensors(model), states(model)
    with pytest.raises(error, match="stop"):
        recalibrate_batchnorm(model, loader())
    assert same(tensors(model), before)
    assert states(model) == was


def test_an_error_of_the_models() -> None:
    model = deep()
    before = tensors(model)
    with pytest.raises(RuntimeError, match="channels"):
        recalibrate_batchnorm(model, [numbers(4, 3, 8, 8), numbers(4, 2, 8, 8)])
    assert same(tensors(model), before)


def test_synchronised_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    refused(nn.Sequential(nn.SyncBatchNorm(3)), [numbers(4, 3)], "'0'", "in one process")


def test_what_it_is_for() -> None:
    """The mean of two networks with live statistics, before and after."""
    x, batches = numbers(64, 3, 8, 8), cut(numbers(64, 3, 8, 8), 32, 32)
    one, other = deep(), deep()
    with torch.no_grad():
        for number, model in enumerate([one, other]):
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    chance = torch.Generator().manual_seed(number * 100 + len(name))
                    noise = torch.randn(parameter.shape, generator=chance, dtype=parameter.dtype)
                    parameter.add_(noise, alpha=0.3)
            recalibrate_batchnorm(model, batches)
    mean = copy.deepcopy(one)
    with torch.no_grad():
        for tensor, second in zip(
            mean.state_dict().values(), other.state_dict().values(), strict=True
        ):
            if tensor.is_floating_point():
                tensor.add_(second).div_(2)

    def spread(model: nn.Module) -> float:
        """How far the last layer's outputs are from mean 0 and variance 1."""
        with torch.no_grad():
            out = model.eval()(x)
        return float(((out.var(0) - 1).abs() + out.mean(0).abs()).max())

    assert spread(mean) > 0.2
    assert spread(recalibrate_batchnorm(mean, batches)) < 0.05


def test_folding_after_it_is_the_same() -> None:
    """A network calibrated live and folded then is one folded and calibrated."""
    model = timm.create_model("test_resnet", num_classes=0).double()
    batches = [numbers(6, 3, 32, 32)]
    recalibrate_batchnorm(model, batches)
    freeze(model)
    assert fold(model, numbers(1, 3, 32, 32)) == 15
    before = tensors(model)
    recalibrate_batchnorm(model, batches)
    for name, tensor in tensors(model).items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-11, atol=1e-12)
