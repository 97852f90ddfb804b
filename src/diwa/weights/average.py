"""The mean of several sets of weights, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from diwa.errors import WeightsError
from diwa.weights import files
from diwa.weights.member import Member


def mean(members: Sequence[Member]) -> Iterator[tuple[str, torch.Tensor]]:
    """The members' mean, one tensor at a time, in the first one's types.

    Floating tensors are summed in float64 in an order that does not depend on that of the
    arguments; tensors of integers must agree.

    Raises:
        WeightsError: if the members' names, shapes or integers differ, or there are none.
    """
    if not members:
        raise WeightsError("no members to average", remedy="give at least one")
    check_alike(members)
    ordered = sorted(members, key=lambda member: (member.name, str(member.path)))
    streams = [member.tensors() for member in ordered]
    for together in zip(*streams, strict=True):
        name, first = together[0]
        tensors = [tensor for _, tensor in together]
        if not first.is_floating_point():
            for member, tensor in zip(ordered, tensors, strict=True):
                if not torch.equal(tensor, first):
                    raise WeightsError(
                        f"{member.path}: the integers of {name!r} differ from {ordered[0].path}",
                        remedy="average members of the same kind of run",
                    )
            yield name, first
            continue
        total = torch.zeros(first.shape, dtype=torch.float64)
        for member, tensor in zip(ordered, tensors, strict=True):
            wide = tensor.to(torch.float64)
            total += wide
            if not torch.isfinite(wide).all():
                raise WeightsError(
                    f"{member.path}: {name!r} holds NaN or infinity", remedy="leave that run out"
                )
        yield name, total.div_(len(ordered)).to(first.dtype)


def check_alike(members: Sequence[Member]) -> None:
    """Makes sure that all members have the same tensors, of one network where they say which.

    Raises:
        WeightsError: naming the member that differs and the first name or shape in which it does.
    """
    _check_networks(members)
    expected = _shapes(members[0])
    for member in members[1:]:
        shapes = _shapes(member)
        for name in sorted(expected.keys() | shapes.keys()):
            if expected.get(name) == shapes.get(name):
                continue
            has, wants = shapes.get(name, "no such tensor"), expected.get(name, "none")
            raise WeightsError(
                f"{member.path}: {name!r} is {has}, but {wants} in {members[0].path}",
                remedy="average checkpoints of one architecture with one number of classes",
            )


def _check_networks(members: Sequence[Member]) -> None:
    """Shapes don't show everything: classes in another order have heads of the same shape."""
    told = [member for member in members if "model" in member.about]
    for member in told[1:]:
        if member.about["model"] != told[0].about["model"]:
            raise WeightsError(
                f"{member.path}: says it is of another network or other classes than "
                f"{told[0].path}",
                remedy="average members of one backbone, image size and list of classes",
            )


def _shapes(member: Member) -> dict[str, tuple[int, ...]]:
    return files.shapes(member.path)
