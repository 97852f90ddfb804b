"""Names of algorithms, among them those of wrapped ones: "SAM+CORAL"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from diwa.errors import SpecError
from diwa.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from diwa.algorithms.base import Algorithm
    from diwa.algorithms.hparams import Space, Values
    from diwa.algorithms.wrapper import Wrapper


class Kind(Protocol):
    """What makes algorithms: a subclass of `Algorithm`, or a wrapper around one."""

    @property
    def space(self) -> Space:
        """All its hyperparameters."""
        ...

    def __call__(self, network: nn.Module, hparams: Values, domains: int) -> Algorithm:
        """An algorithm that trains the network."""
        ...


@dataclass(frozen=True)
class Composed:
    """A wrapper around a kind of algorithm.

    Args:
        wrapper: what wraps.
        inner: what is wrapped.
        name: both, for messages.

    Raises:
        SpecError: if both have a hyperparameter of one name.
    """

    wrapper: type[Wrapper]
    inner: Kind
    name: str

    def __post_init__(self) -> None:
        both = [name for name in self.wrapper.space if name in self.inner.space]
        if both:
            raise SpecError(
                f"{self.name}: both sides of the first + have a hyperparameter {both[0]!r}",
                remedy="wrap another algorithm",
            )

    @property
    def space(self) -> Space:
        """The algorithm's hyperparameters and those that the wrapper adds."""
        return {**self.inner.space, **self.wrapper.space}

    def __call__(self, network: nn.Module, hparams: Values, domains: int) -> Algorithm:
        """The algorithm, wrapped."""
        return self.wrapper(self.inner(network, hparams, domains), hparams)


class AlgorithmRegistry(Registry):
    """Algorithms by name; a wrapper's name and a + before it wraps one.

    A wrapper's name alone means the plain algorithm, wrapped.

    Args:
        built_in: name -> "module:attribute".
        wrappers: the wrappers by name.
        plain: which algorithm a lone wrapper wraps.
        group: the entry point group where other packages add theirs.

    Example:
        >>> from diwa.algorithms import ALGORITHMS
        >>> list(ALGORITHMS.get("SAM+CORAL").space)
        ['lr', 'weight_decay', 'dropout', 'batch_size', 'gamma', 'rho']
        >>> ALGORITHMS.get("SAM") == ALGORITHMS.get("SAM+ERM")
        True
    """

    def __init__(
        self, built_in: Mapping[str, str], *, wrappers: Registry, plain: str, group: str
    ) -> None:
        super().__init__("algorithm", built_in, group=group)
        self.wrappers = wrappers
        self._plain = plain

    def names(self) -> list[str]:
        """Every known name without a +, sorted."""
        return sorted({*super().names(), *self.wrappers.names()})

    def __contains__(self, name: str) -> bool:
        wrappers, last = self._parsed(name)
        return super().__contains__(last) and all(part in self.wrappers for part in wrappers)

    def get(self, name: str) -> Any:
        """The kind of algorithm of that name: see `Kind`.

        Raises:
            SpecError: for a name that nobody registered; it suggests the nearest.
        """
        wrappers, last = self._parsed(name)
        kind = super().get(last)
        for part in reversed(wrappers):
            last = f"{part}+{last}"
            kind = Composed(self.wrappers.get(part), kind, last)
        return kind

    def _parsed(self, name: str) -> tuple[list[str], str]:
        """Wrappers from the outermost on, and what they wrap."""
        if super().__contains__(name):
            return [], name
        *wrappers, last = name.split("+")
        if not super().__contains__(last) and last in self.wrappers:
            return [*wrappers, last], self._plain
        return wrappers, last
