"""The public verb: files in, one soup out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from diwa.errors import SpecError, WeightsError
from diwa.soup.methods import METHODS
from diwa.soup.methods.base import Method
from diwa.soup.rules import Rules
from diwa.soup.soup import Soup
from diwa.weights.hub import SCHEME, fetch
from diwa.weights.member import Member
from diwa.weights.source import open_source

#: What a caller may name a set of weights by.
Weights = Member | Path | str


def merge(
    members: Sequence[Weights],
    *,
    method: str | Method = "uniform",
    base: Weights | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    take_from: Sequence[tuple[Weights, str]] = (),
    dtype: str = "",
    **settings: Any,
) -> Soup:
    """Merges files of weights; nothing is computed before the result is saved or looked at.

    Args:
        members: two or more files, folders or members of one architecture; one will do beside a
            base, or where tensors are taken from another file.
        method: how; a name of `diwa.methods`, or a method with its settings.
        base: what the members were fine-tuned from, for methods that need it.
        only: merge only tensors with names of these patterns; the others are the first member's.
        skip: don't merge tensors with names of these patterns.
        take_from: pairs of a file and a pattern: such tensors come from that file as they are,
            also those that no member has.
        dtype: the kind of numbers of the result: fp32, fp16, bf16, fp64, fp8_e4m3, fp8_e5m2.
        settings: those of the method, e.g. `weights=(1, 2)` or `density=0.3`.

    Raises:
        DiwaError: if a file can't be read, the members disagree, or a setting does not suit.

    Example:
        >>> import diwa
        >>> soup = diwa.merge(example_members, method="weighted", weights=(3, 1))
        >>> {name: array.tolist() for name, array in soup.arrays()}
        {'w': [1.5, 2.5]}
    """
    chosen = method if isinstance(method, Method) else _method(method, settings)
    if isinstance(method, Method) and settings:
        raise SpecError(f"settings {', '.join(settings)}", remedy="give them to the method itself")
    if isinstance(members, str | Path | Member):
        raise WeightsError(f"{members}: a single member", remedy="give a list of two or more")
    opened = tuple(as_member(member) for member in members)
    if len(opened) == 1 and not (chosen.wants_base or take_from):
        raise WeightsError(
            f"{opened[0].path}: a single member, nothing to merge it with",
            remedy="name two or more",
        )
    return Soup(
        chosen.name,
        opened,
        blending=chosen,
        base=None if base is None else as_member(base),
        rules=Rules(only=_several(only), skip=_several(skip), dtype=dtype),
        taken=tuple((as_member(member), pattern) for member, pattern in _pairs(take_from)),
    )


def as_member(weights: Weights) -> Member:
    """A member, or the one that a file, a folder or an address on the hub holds.

    Raises:
        WeightsError: if it is none of these, or can't be read.
    """
    if isinstance(weights, Member):
        return weights
    if isinstance(weights, str) and weights.startswith(SCHEME):
        return Member.from_source(open_source(fetch(weights)), weights)
    if not isinstance(weights, str | os.PathLike):
        raise WeightsError(
            f"a {type(weights).__name__} is no file of weights",
            remedy="give paths or members; for tensors in memory there is diwa.RunningMean",
        )
    return Member.from_file(weights)


def _pairs(given: Sequence[tuple[Weights, str]]) -> Sequence[tuple[Weights, str]]:
    for pair in given:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[1], str):
            raise SpecError(
                f"take_from {pair!r}", remedy="give a list of pairs: [(file, pattern), ...]"
            )
    return given


def _several(patterns: Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _method(name: str, settings: dict[str, Any]) -> Method:
    kind: type[Method] = METHODS.get(name)
    fields = msgspec.structs.fields(kind)
    known = [field.name for field in fields]
    unknown = [setting for setting in settings if setting not in known]
    if unknown:
        raise SpecError(
            f"{name} has no setting {unknown[0]!r}",
            remedy=f"it has {', '.join(known) or 'none'}",
        )
    missing = [field.name for field in fields if field.required and field.name not in settings]
    if missing:
        raise SpecError(f"{name} needs {missing[0]}", remedy=f"pass {missing[0]}=…")
    return kind(**settings)
