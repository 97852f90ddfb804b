"""Statistics of batch norm for averaged weights, from data.

Averaging weights changes what every layer gives, so the statistics of members that were trained
with live ones, averaged or not, fit the average badly. Members trained with frozen statistics all
have the same ones and need nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from diwa.errors import ModelError
from diwa.models import batchnorm

Model = TypeVar("Model", bound=nn.Module)


def recalibrate_batchnorm(
    model: Model,
    loader: Iterable[torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]],
    *,
    device: torch.device | str | None = None,
) -> Model:
    """Computes the statistics of every batch norm anew; nothing else in the model changes.

    In one pass over the data, each layer normalises every batch by the batch's own statistics, as
    in training, while dropout is off. The layer's mean and variance are then those of all values
    it has seen, pooled: a short last batch counts by its size, and what differs from batch to
    batch counts as variance. (`torch.optim.swa_utils.update_bn` takes the mean of the batches'
    variances, whatever their sizes, with dropout on.) Layers that keep no statistics, or that the
    model does not use, stay as they are.

    A `Network` of ours is computed unfolded meanwhile, and its frozen batch norms get new
    statistics, too.

    Args:
        model: any module; changed in place.
        loader: batches as the model takes them, or tuples that start with one.
        device: where the batches go; where the model is, if left out.

    Returns:
        The model.

    Raises:
        ModelError: if there is no batch, or one a layer can't get statistics from. The model then
            is as it was.

    Example:
        >>> data = [torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[4.0], [5.0]])]
        >>> norm = recalibrate_batchnorm(nn.BatchNorm1d(1), data)
        >>> norm.running_mean.item(), norm.running_var.item()
        (3.0, 2.5)
    """
    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    }
    if not norms:
        return model
    _check_alone(norms)
    if device is None:
        device = next(iter([*model.parameters(), *model.buffers()])).device
    pooled = {name: _Pooled(name) for name in norms}
    with _measuring(model, norms, pooled), torch.no_grad():
        empty = True
        for batch in loader:
            _run(model, _first(batch).to(device))
            empty = False
        if empty:
            raise ModelError("no batch to get statistics from", remedy="give a loader with data")
        found = {name: one.result() for name, one in pooled.items() if one.count}
    for name, (mean, variance, batches) in found.items():
        norm = norms[name]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(batches)
    return model


class _Pooled:
    """The mean and the variance of everything a layer has seen, batch by batch, in float64."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.count = 0
        self._batches = 0

    def add(self, norm: _BatchNorm, count: int) -> None:
        """Takes in a batch, whose statistics the layer was just made to keep as they are."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, unbiased = norm.running_mean.double(), norm.running_var.double()
        spread = unbiased * (count - 1)
        if not self.count:
            self._mean, self._spread = mean.clone(), spread
        else:
            total = self.count + count
            apart = mean - self._mean
            self._mean += apart * (count / total)
            self._spread += spread + apart.square() * (self.count * count / total)
        self.count += count
        self._batches += 1

    def result(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Mean, unbiased variance and the number of batches.

        Raises:
            ModelError: if they are no numbers.
        """
        variance = self._spread / (self.count - 1)
        if not (self._mean.isfinite().all() and variance.isfinite().all()):
            raise ModelError(
                f"batch norm {self._name!r}: what it gets is NaN or infinite",
                remedy="check the weights and the data",
            )
        return self._mean, variance, self._batches


@contextmanager
def _measuring(
    model: nn.Module, norms: dict[str, _BatchNorm], pooled: dict[str, _Pooled]
) -> Iterator[None]:
    """Lets the layers compute as in training, note their statistics, and puts everything back."""
    modes = [(module, module.training) for module in model.modules()]
    folded = [
        (module, vars(module)["forward"]) for module in model.modules() if _is_folding(module)
    ]
    kept = {name: [buffer.clone() for buffer in norm.buffers()] for name, norm in norms.items()}
    momenta = {name: norm.momentum for name, norm in norms.items()}
    hooks = []
    try:
        for module, _ in folded:
            del vars(module)["forward"]
        # Not by train() and eval(), which some networks override to keep their batch norms frozen.
        for module, _ in modes:
            module.training = False
        for name, norm in norms.items():
            norm.training = True
            # The layer then keeps of each batch what it computes anyway, and nothing else.
            norm.momentum = 1.0
            norm.reset_running_stats()
            hooks.append(norm.register_forward_hook(partial(_note, pooled[name])))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name, norm in norms.items():
            norm.momentum = momenta[name]
            for buffer, old in zip(norm.buffers(), kept[name], strict=True):
                buffer.copy_(old)
        for module, forward in folded:
            vars(module)["forward"] = forward
        for module, training in modes:
            module.training = training


def _is_folding(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func in (batchnorm._folded, batchnorm._after)


def _note(pooled: _Pooled, norm: nn.Module, _: object, output: torch.Tensor) -> None:
    assert isinstance(norm, _BatchNorm)
    pooled.add(norm, output.numel() // output.shape[1])


def _first(batch: object) -> torch.Tensor:
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(first, torch.Tensor):
        raise ModelError(
            f"a batch is a {type(first).__name__}",
            remedy="let the loader give tensors, or tuples that start with one",
        )
    return first


def _run(model: nn.Module, batch: torch.Tensor) -> None:
    try:
        model(batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ModelError(
            f"a batch of {len(batch)} leaves a batch norm one value per channel, "
            "which has no variance",
            remedy="use drop_last=True or another batch size",
        ) from error


def _check_alone(norms: dict[str, _BatchNorm]) -> None:
    """Among several processes, each would see the statistics of all and the sizes of its own."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_world_size() == 1:
        return
    for name, norm in norms.items():
        if isinstance(norm, nn.SyncBatchNorm):
            raise ModelError(
                f"batch norm {name!r}: is synchronised among processes",
                remedy="recalibrate in one process, on the data of all",
            )
