"""Batch norm with frozen statistics, and folded into the convolution before it.

With frozen statistics a batch norm is a scale and a shift per channel. Applying both to the
convolution's kernel instead of to its output saves reading and writing every activation twice,
forwards and backwards; autograd carries the gradients through to the kernel, the scale and the
shift, so the result is that of the two layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from timm.layers.conv2d_same import Conv2dSame, conv2d_same
from torch import nn

_Forward = Callable[[torch.Tensor], torch.Tensor]


def batch_norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    """The network's 2-d batch norms, timm's with an activation inside among them."""
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def freeze(network: nn.Module) -> None:
    """Keeps the statistics of batch norm as they are; scale and shift still learn."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def fold(network: nn.Module, example: torch.Tensor) -> int:
    """Folds each frozen batch norm into the convolution that feeds it and nothing else.

    Names, parameters and the state dictionary stay as they are; only the way of computing
    changes. Which pairs belong together is seen from one forward pass, and the folding is kept
    only if the output for `example` is the same with all statistics and scales made random and
    nothing dropped.

    Args:
        network: its batch norms must be frozen.
        example: an input of any size the network takes.

    Returns:
        How many batch norms were folded: all that follow a convolution, or none.
    """
    pairs = [pair for pair in _pairs(network, example) if "forward" not in vars(pair[0])]
    with _random_norms(network), _nothing_dropped(network), torch.no_grad():
        expected = network(example)
        for convolution, norm in pairs:
            _fold_pair(convolution, norm)
        furthest = (network(example) - expected).abs().max()
        same = bool(furthest <= 1e-3 * expected.abs().max())
    if same:
        return len(pairs)
    for module in (module for pair in pairs for module in pair):
        del vars(module)["forward"]
    return 0


class _random_norms:  # noqa: N801 - a context manager that reads like a verb
    """Makes the statistics and scales of every batch norm random, and puts them back."""

    def __init__(self, network: nn.Module) -> None:
        self._norms = batch_norms(network)

    def __enter__(self) -> None:
        chance = torch.Generator().manual_seed(0)
        self._kept = [{k: v.clone() for k, v in n.state_dict().items()} for n in self._norms]
        for norm in self._norms:
            for name, tensor in norm.state_dict().items():
                if name == "num_batches_tracked":
                    continue
                noise = torch.rand(tensor.shape, generator=chance).to(tensor)
                tensor.copy_(0.5 + noise if name in ("weight", "running_var") else noise - 0.5)

    def __exit__(self, *_: object) -> None:
        for norm, kept in zip(self._norms, self._kept, strict=True):
            norm.load_state_dict(kept)


@contextmanager
def _nothing_dropped(network: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while: two passes give the same, and no branch is left out."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _pairs(network: nn.Module, example: torch.Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    made_by: dict[int, tuple[nn.Conv2d, torch.Tensor, int]] = {}
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def conv_done(module: nn.Module, _: object, output: torch.Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        # The output is kept alive with the note of who made it, so that no other tensor can
        # get its identity meanwhile; its version tells whether it was changed in place.
        made_by[id(output)] = (module, output, output._version)

    def norm_starts(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(module, nn.BatchNorm2d)
        maker, _, version = made_by.get(id(inputs[0]), (None, None, 0))
        if maker is not None and inputs[0]._version == version:
            pairs.append((maker, module))

    hooks = []
    for module in network.modules():
        if type(module) in (nn.Conv2d, Conv2dSame) and module.padding_mode == "zeros":
            hooks.append(module.register_forward_hook(conv_done))
        elif _is_plain(module):
            hooks.append(module.register_forward_pre_hook(norm_starts))
    try:
        # In the mode the network is in, where a dropout shows; its draws are nobody's business.
        # Tensors have versions outside of inference mode only.
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
            network(example)
    finally:
        for hook in hooks:
            hook.remove()
    # A layer that runs twice in a pass can't be told apart by its outputs: leave it alone.
    convolutions, norms = [c for c, _ in pairs], [n for _, n in pairs]
    return [(c, n) for c, n in pairs if convolutions.count(c) == 1 and norms.count(n) == 1]


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is a batch norm that `_after` knows how to finish."""
    if not isinstance(module, nn.BatchNorm2d) or module.training:
        return False
    if not module.track_running_stats or not module.affine:
        return False
    return type(module) is nn.BatchNorm2d or (hasattr(module, "act") and hasattr(module, "drop"))


def _fold_pair(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    same_padding = isinstance(convolution, Conv2dSame)
    # On the instances, so that names and the state dictionary stay as they are.
    vars(convolution)["forward"] = partial(_folded, convolution, norm, same_padding)
    vars(norm)["forward"] = partial(_after, norm)


def _folded(
    convolution: nn.Conv2d, norm: nn.BatchNorm2d, same_padding: bool, x: torch.Tensor
) -> torch.Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    kernel = convolution.weight * scale[:, None, None, None]
    offset = -norm.running_mean
    if convolution.bias is not None:
        offset = offset + convolution.bias
    shift = norm.bias + offset * scale
    if same_padding:
        return conv2d_same(
            x,
            kernel,
            shift,
            convolution.stride,  # pyright: ignore[reportArgumentType]
            convolution.padding,  # pyright: ignore[reportArgumentType]
            convolution.dilation,  # pyright: ignore[reportArgumentType]
            convolution.groups,
        )
    return convolution._conv_forward(x, kernel, shift)


def _after(norm: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    """What is left of a folded batch norm: nothing, or timm's dropout and activation."""
    if type(norm) is nn.BatchNorm2d:
        return x
    return norm.act(norm.drop(x))  # pyright: ignore[reportCallIssue]
