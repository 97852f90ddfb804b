"""Which tensors are averaged, and where the others come from."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from diwa.errors import SpecError
from diwa.spec import Spec
from diwa.weights.kinds import FLOATS, KINDS, Kind


class Rules(Spec, frozen=True, kw_only=True):
    """Per-tensor rules, by pattern: `*` stands for any text, `?` for a character.

    Example:
        >>> rules = Rules(skip=("fc.*",))
        >>> rules.averaged("fc.bias"), rules.averaged("conv1.weight")
        (False, True)
    """

    only: tuple[str, ...] = ()
    """Average only tensors whose names match a pattern, e.g. 'blocks.*'; others: the first's."""
    skip: tuple[str, ...] = ()
    """Don't average tensors whose names match a pattern, e.g. 'head.*'; they are the first's."""
    dtype: str = ""
    """What to write: fp64, fp32, fp16, bf16, fp8_e4m3, fp8_e5m2; as the first unless given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype and self.dtype not in FLOATS:
            raise SpecError(f"dtype {self.dtype!r}", remedy=f"choose one of {', '.join(FLOATS)}")

    def averaged(self, name: str) -> bool:
        """Whether a tensor of that name is averaged."""
        return (not self.only or matches(name, self.only)) and not matches(name, self.skip)

    @property
    def target(self) -> Kind | None:
        """The kind of numbers that was asked for."""
        return KINDS[FLOATS[self.dtype]] if self.dtype else None

    def kind(self, own: Kind) -> Kind:
        """What a tensor is written as that is stored as `own`."""
        return self.target if self.target and own.floating else own

    def check(self, names: Iterable[str]) -> None:
        """Makes sure that every pattern stands for something.

        Raises:
            SpecError: naming the pattern that matches no tensor.
        """
        names = list(names)
        for flag, patterns in (("only", self.only), ("skip", self.skip)):
            for pattern in patterns:
                check_pattern(flag, pattern, names)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns stands for the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_pattern(flag: str, pattern: str, names: Iterable[str]) -> None:
    """Makes sure that a pattern stands for something.

    Raises:
        SpecError: if it matches no name.
    """
    names = list(names)
    if not any(fnmatchcase(name, pattern) for name in names):
        shown = ", ".join(repr(name) for name in names[:3])
        raise SpecError(
            f"{flag} {pattern!r}: matches none of the {len(names)} tensors",
            remedy=f"names look like {shown}; diwa show FILE lists them",
        )
