"""Names for things: built-ins listed in the open, third parties by entry point."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diwa.errors import SpecError, guess

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Registry:
    """A family of plug-ins, imported when first asked for.

    Args:
        kind: what a member of the family is called in messages, e.g. "algorithm".
        built_in: name -> "module:attribute".
        group: the entry point group where other packages add theirs.

    Example:
        >>> shapes = Registry("shape", {"path": "pathlib:Path"}, group="diwa.examples")
        >>> shapes.get("path").__name__
        'Path'
        >>> shapes.get("paht")
        Traceback (most recent call last):
        ...
        diwa.errors.SpecError: no shape is called 'paht'; did you mean 'path'? known: path
    """

    def __init__(self, kind: str, built_in: Mapping[str, str], *, group: str) -> None:
        self.kind = kind
        self.group = group
        self._built_in = dict(built_in)

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted({*self._built_in, *(point.name for point in self._points())})

    def __contains__(self, name: str) -> bool:
        # Looking through all installed packages takes a while: only for names not built in.
        return name in self._built_in or any(point.name == name for point in self._points())

    def get(self, name: str) -> Any:
        """The object of that name.

        Raises:
            SpecError: for a name that nobody registered; it suggests the nearest.
        """
        if name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        for point in self._points():
            if point.name == name:
                return point.load()
        names = self.names()
        raise SpecError(
            f"no {self.kind} is called {name!r}",
            remedy=f"{guess(name, names)}known: {', '.join(names)}",
        )

    def _points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points  # a fair part of the start-up, seldom needed

        return list(entry_points(group=self.group))
