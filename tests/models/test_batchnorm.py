"""Folded batch norm against the same network left as it is, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from timm.layers.drop import DropPath
from timm.layers.std_conv import StdConv2d
from torch import nn

from diwa.models.batchnorm import batch_norms, fold, freeze


def lively(network: nn.Module, seed: int = 0) -> nn.Module:
    """Gives every batch norm statistics, scales and shifts that can't be mistaken for none."""
    chance = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for name, tensor in module.state_dict().items():
                if name in ("weight", "running_var"):
                    tensor.uniform_(0.6, 1.4, generator=chance)
                elif name in ("bias", "running_mean"):
                    tensor.normal_(generator=chance).mul_(0.3)
    return network.double()


def frozen(network: nn.Module) -> nn.Module:
    """A lively network in training mode with frozen batch norm, as it is when it is trained."""
    lively(network).train()
    freeze(network)
    return network


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(network: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The output, and the gradient of every parameter and of the input for a random loss."""
    network.zero_grad()
    x = x.clone().requires_grad_()
    output = network(x)
    direction = torch.randn(
        output.shape, generator=torch.Generator().manual_seed(9), dtype=output.dtype
    )
    (output * direction).sum().backward()
    found = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return output.detach(), {**found, "input": x.grad}


def assert_same(folded: nn.Module, plain: nn.Module, x: torch.Tensor) -> None:
    output, found = gradients(folded, x)
    expected, wanted = gradients(plain, x)
    assert output.abs().max() > 0
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
    assert found.keys() == wanted.keys()
    # Relative to the largest of all: some gradients vanish in exact arithmetic.
    largest = max(one.abs().max().item() for one in wanted.values())
    for name, gradient in wanted.items():
        assert gradient.shape == found[name].shape
        own = gradient.abs().max().item()
        torch.testing.assert_close(
            found[name],
            gradient,
            rtol=1e-8,
            atol=1e-9 * own + 1e-13 * largest,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def is_folded(module: nn.Module) -> bool:
    return "forward" in vars(module)


def assert_untouched(network: nn.Module, plain: nn.Module, x: torch.Tensor) -> None:
    """Not only right: computed by the very same operations."""
    assert not any(is_folded(module) for module in network.modules())
    with torch.no_grad():
        assert torch.equal(network(x), plain(x))


# -- timm's networks


@pytest.mark.parametrize(
    ("name", "folded", "norms"),
    [
        ("test_resnet", 15, 15),
        ("test_efficientnet", 13, 13),
        ("test_byobnet", 14, 14),
        # The first norm of each of its 58 layers and four after them follow a concatenation.
        ("densenet121", 59, 121),
        # TensorFlow's padding, and norms with an activation inside.
        ("tf_efficientnet_lite0", 49, 49),
    ],
)
def test_folds_those_of_timm(name: str, folded: int, norms: int) -> None:
    torch.manual_seed(0)
    plain = frozen(timm.create_model(name, num_classes=0))
    network = copy.deepcopy(plain)
    assert len(batch_norms(network)) == norms
    assert fold(network, images(1, 3, 48, 48)) == folded
    assert sum(is_folded(norm) for norm in batch_norms(network)) == folded
    # Another number of images of another, uneven size than what the folding was seen on.
    x = images(2, 3, 39, 64, seed=5)
    if norms > 60:
        x = x[:1]
    assert_same(network, plain, x)
    network.eval()
    plain.eval()
    with torch.no_grad():
        torch.testing.assert_close(network(x), plain(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["test_resnet", "tf_efficientnet_lite0"])
def test_names_parameters_and_statistics_stay(name: str) -> None:
    network = frozen(timm.create_model(name, num_classes=0))
    names = [name for name, _ in network.named_modules()]
    parameters = {name: id(p) for name, p in network.named_parameters()}
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    assert fold(network, images(1, 3, 32, 32)) > 0
    assert [name for name, _ in network.named_modules()] == names
    assert {name: id(p) for name, p in network.named_parameters()} == parameters
    assert list(network.state_dict()) == list(before)
    for key, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    assert [module.training for module in network.modules()] == modes


def test_folds_what_the_weights_are_when_it_runs() -> None:
    """The kernel is made in each pass: weights loaded later count, statistics too."""
    torch.manual_seed(0)
    network = frozen(timm.create_model("test_resnet", num_classes=0))
    assert fold(network, images(1, 3, 32, 32)) == 15
    torch.manual_seed(1)
    other = lively(timm.create_model("test_resnet", num_classes=0), seed=2).train()
    freeze(other)
    network.load_state_dict(other.state_dict())
    assert_same(network, other, images(2, 3, 32, 32))


def test_a_copy_is_folded_onto_itself() -> None:
    """A moving average copies the network: the copy must not compute with the original."""
    network = frozen(timm.create_model("test_resnet", num_classes=0))
    fold(network, images(1, 3, 32, 32))
    x = images(2, 3, 32, 32)
    copied = copy.deepcopy(network)
    expected = network(x)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.zero_()
    assert torch.equal(copied(x), expected)
    assert not network(x).any()


def test_folding_again_finds_nothing_more_and_breaks_nothing() -> None:
    plain = frozen(timm.create_model("tf_efficientnet_lite0", num_classes=0))
    network = copy.deepcopy(plain)
    example = images(1, 3, 32, 32)
    assert [fold(network, example) for _ in range(3)] == [49, 0, 0]
    assert sum(is_folded(norm) for norm in batch_norms(network)) == 49
    assert_same(network, plain, images(1, 3, 40, 40))


# -- networks made by hand


class Net(nn.Module):
    """Layers by name, and what to do with them."""

    def __init__(
        self, compute: Callable[[Net, torch.Tensor], torch.Tensor], **layers: nn.Module
    ) -> None:
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)

    def __getattr__(self, name: str) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__getattr__(name)  # pyright: ignore[reportReturnType]


def conv(inputs: int = 4, outputs: int = 4, **more: object) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, **{"padding": 1, **more})  # pyright: ignore[reportArgumentType]


def made(compute: Callable[[Net, torch.Tensor], torch.Tensor], **layers: nn.Module) -> Net:
    torch.manual_seed(0)
    for layer in layers.values():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    network = frozen(Net(compute, **layers))
    assert isinstance(network, Net)
    return network


@pytest.mark.parametrize(
    "layer",
    [
        conv(bias=False),
        conv(bias=True),
        conv(stride=2, padding=0),
        conv(dilation=2, padding=2),
        conv(groups=2),
        conv(groups=4, bias=False),
        conv(outputs=8, padding="same"),
        conv(padding=(0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_every_kind_of_convolution(layer: nn.Conv2d, eps: float) -> None:
    plain = made(
        lambda net, x: net.norm(net.conv(x)),
        conv=layer,
        norm=nn.BatchNorm2d(layer.out_channels, eps=eps),
    )
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 1
    assert is_folded(network.conv)
    assert is_folded(network.norm)
    assert_same(network, plain, images(3, 4, 9, 7))


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda y, norm: norm(y) + y,
        lambda y, norm: torch.cat([norm(y), y.mean(dim=(2, 3), keepdim=True).expand_as(y)], 1),
        lambda y, norm: norm(y) * y.sigmoid(),
        lambda y, norm: norm(y) + 0.05 * y.amax(dim=1, keepdim=True),
    ],
)
def test_a_convolution_that_somebody_else_reads_is_left_alone(
    elsewhere: Callable[[torch.Tensor, nn.Module], torch.Tensor],
) -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        return elsewhere(net.conv(x), net.norm)

    plain = made(compute, conv=conv(), norm=nn.BatchNorm2d(4))
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 0
    assert_untouched(network, plain, images(2, 4, 8, 8))
    assert_same(network, plain, images(2, 4, 8, 8))


def test_one_that_somebody_else_reads_in_a_branch_that_may_be_dropped() -> None:
    """Whether the branch is dropped while the folding is tried must not decide."""

    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        y = net.conv(x)
        return x + net.drop(net.norm(y) + y)

    plain = made(compute, conv=conv(), norm=nn.BatchNorm2d(4), drop=DropPath(0.9))
    for seed in range(20):
        network = copy.deepcopy(plain)
        torch.manual_seed(seed)
        assert fold(network, images(1, 4, 8, 8)) == 0
        assert not is_folded(network.conv)


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), nn.Dropout2d(0.5), DropPath(0.5)])
def test_a_network_that_drops_is_folded_all_the_same(drop: nn.Module) -> None:
    plain = made(
        lambda net, x: net.drop(net.norm(net.conv(x))),
        conv=conv(),
        norm=nn.BatchNorm2d(4),
        drop=drop,
    )
    for seed in range(5):
        network = copy.deepcopy(plain)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        assert fold(network, images(1, 4, 8, 8)) == 1
        assert torch.equal(torch.get_rng_state(), before), "others' random numbers are theirs"
        assert network.drop.training
        assert_same(network.eval(), copy.deepcopy(plain).eval(), images(2, 4, 8, 8))


def test_dropout_between_the_two_is_not_moved_behind_them() -> None:
    """In evaluation mode it can't be seen, in training mode it would drop after the shift."""
    plain = made(
        lambda net, x: net.norm(net.drop(net.conv(x))),
        conv=conv(),
        norm=nn.BatchNorm2d(4),
        drop=nn.Dropout(0.5),
    )
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 0
    assert_untouched(network.eval(), plain.eval(), images(2, 4, 8, 8))


def test_a_layer_that_runs_twice_is_left_alone_and_the_others_are_folded() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = net.norm(net.conv(x)).relu()
        x = net.norm(net.conv(x)).relu()
        return net.other_norm(net.other(x))

    plain = made(
        compute,
        conv=conv(),
        norm=nn.BatchNorm2d(4),
        other=conv(),
        other_norm=nn.BatchNorm2d(4),
    )
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 1
    assert [is_folded(m) for m in (network.conv, network.norm)] == [False, False]
    assert [is_folded(m) for m in (network.other, network.other_norm)] == [True, True]
    assert_same(network, plain, images(2, 4, 8, 8))


@pytest.mark.parametrize(
    "compute",
    [
        # one norm after two convolutions
        lambda net, x: net.norm(net.conv(x)) + net.norm(net.other(x)),
        # two norms after one convolution, run twice
        lambda net, x: net.norm(net.conv(x)) + net.other_norm(net.conv(2 * x)),
        # two norms read one output
        lambda net, x: sum(norm(y) for y in [net.conv(x)] for norm in (net.norm, net.other_norm)),
        # one norm reads one output twice
        lambda net, x: sum(net.norm(y) for y in [net.conv(x)] * 2),
        # the second time, nobody normalises
        lambda net, x: net.norm(net.conv(x)) + net.conv(2 * x),
        # the second time, it normalises something else
        lambda net, x: net.norm(net.conv(x)) + net.norm(x),
    ],
)
def test_every_way_to_use_a_layer_twice(
    compute: Callable[[Net, torch.Tensor], torch.Tensor],
) -> None:
    layers = {"conv": conv(), "other": conv()}
    plain = made(compute, **layers, norm=nn.BatchNorm2d(4), other_norm=nn.BatchNorm2d(4))
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 0
    assert_untouched(network, plain, images(2, 4, 8, 8))


@pytest.mark.parametrize("inplace", [False, True])
def test_an_activation_between_the_two(inplace: bool) -> None:
    """Changed in place, the convolution's output is the same object with other numbers."""

    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        return net.norm(net.act(net.conv(x))) + net.other_norm(net.other(x))

    plain = made(
        compute,
        conv=conv(),
        act=nn.ReLU(inplace=inplace),
        norm=nn.BatchNorm2d(4),
        other=conv(),
        other_norm=nn.BatchNorm2d(4),
    )
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 1
    assert not is_folded(network.conv)
    assert is_folded(network.other)
    assert_same(network, plain, images(2, 4, 8, 8))


def test_an_activation_that_the_example_does_not_show() -> None:
    """On this example the outputs are positive; on others they are not."""
    plain = made(
        lambda net, x: net.norm(net.act(net.conv(x))),
        conv=conv(),
        act=nn.ReLU(inplace=True),
        norm=nn.BatchNorm2d(4),
    )
    with torch.no_grad():
        plain.conv.weight.abs_()  # pyright: ignore
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8).abs() + 1) == 0
    assert_untouched(network, plain, images(2, 4, 8, 8))


class Halved(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) / 2


class Doubled(nn.BatchNorm2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


@pytest.mark.parametrize(
    ("layer", "norm"),
    [
        (Halved(4, 4, 3), nn.BatchNorm2d(4)),
        (StdConv2d(4, 4, 3), nn.BatchNorm2d(4)),
        (conv(padding_mode="reflect"), nn.BatchNorm2d(4)),
        (nn.ConvTranspose2d(4, 4, 3), nn.BatchNorm2d(4)),
        (conv(), Doubled(4)),
        (conv(), nn.BatchNorm2d(4, affine=False)),
        (conv(), nn.BatchNorm2d(4, track_running_stats=False)),
        (conv(), nn.GroupNorm(2, 4)),
        (conv(), nn.InstanceNorm2d(4)),
    ],
    ids=str,
)
def test_layers_it_does_not_know_do_not_keep_it_from_the_others(
    layer: nn.Module, norm: nn.Module
) -> None:
    plain = made(
        lambda net, x: net.norm(net.conv(net.other_norm(net.other(x)))),
        conv=layer,
        norm=norm,
        other=conv(),
        other_norm=nn.BatchNorm2d(4),
    )
    network = copy.deepcopy(plain)
    assert fold(network, images(1, 4, 8, 8)) == 1
    assert [is_folded(m) for m in (network.conv, network.norm)] == [False, False]
    assert_same(network, plain, images(2, 4, 8, 8))


def test_a_norm_that_is_not_frozen_is_left_alone() -> None:
    network = made(lambda net, x: net.norm(net.conv(x)), conv=conv(), norm=nn.BatchNorm2d(4))
    network.train()
    before = {name: tensor.clone() for name, tensor in network.norm.state_dict().items()}
    assert fold(network, images(1, 4, 8, 8)) == 0
    assert not is_folded(network.conv)
    assert network.norm.training
    for name in ("weight", "bias"):
        assert torch.equal(network.norm.state_dict()[name], before[name])


def test_a_network_that_fails_is_left_as_it_was() -> None:
    class OnceTooOften(RuntimeError):
        pass

    runs = []

    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        if len(runs) == 2:
            raise OnceTooOften
        return net.norm(net.conv(x))

    network = made(compute, conv=conv(), norm=nn.BatchNorm2d(4))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(OnceTooOften):
        fold(network, images(1, 4, 8, 8))
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert network.conv.training
    assert not network.conv._forward_hooks
    assert not network.norm._forward_pre_hooks


def test_works_where_nothing_is_recorded() -> None:
    with torch.inference_mode():
        network = made(lambda net, x: net.norm(net.conv(x)), conv=conv(), norm=nn.BatchNorm2d(4))
        assert fold(network, images(1, 4, 8, 8)) == 1


# -- freezing


def test_freezes_every_batch_norm_and_nothing_else() -> None:
    network = nn.Sequential(
        nn.BatchNorm1d(2),
        nn.BatchNorm2d(2),
        nn.BatchNorm3d(2),
        nn.SyncBatchNorm(2),
        nn.Sequential(nn.BatchNorm2d(2)),
        nn.Dropout(0.5),
        nn.InstanceNorm2d(2),
        nn.Conv2d(2, 2, 1),
    ).train()
    freeze(network)
    assert [m.training for m in network] == [False] * 4 + [True] * 4
    nested = network[4]
    assert isinstance(nested, nn.Sequential)
    assert not nested[0].training
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_counts_two_dimensional_norms() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm2d(3)))
    assert [norm.num_features for norm in batch_norms(network)] == [2, 3]
    assert len(batch_norms(timm.create_model("tf_efficientnet_lite0"))) == 49
