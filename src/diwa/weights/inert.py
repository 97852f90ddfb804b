"""What checkpoints hold besides tensors: read into objects that can do nothing.

Sweeps leave NumPy scalars, arrays, paths and parsed arguments beside their weights, and torch
refuses the whole file for one of them. Instead of allowing NumPy's functions, which were never
meant for bytes that can't be trusted, their names are given to classes that only keep what they
are told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

_NUMPYS = ("numpy.core.multiarray", "numpy._core.multiarray")
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath")
_NUMBER = re.compile(r"[fiub][1248]|[SU][1-9]\d{0,4}")


class Inert:
    """Keeps what it is made of and what it is told."""

    # Of the class, for a pickle may make one without calling __init__.
    made_of: tuple[Any, ...] = ()
    told: Any = None

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of

    def __setstate__(self, told: Any) -> None:
        self.told = told

    def plain(self) -> Any:
        """It as text, a number or a dictionary; None if it is nothing of the kind."""
        return None


class _Path(Inert):
    def plain(self) -> str | None:
        parts = [part for part in self.made_of if isinstance(part, str)]
        return "/".join(parts).replace("//", "/") or None


class _Arguments(Inert):
    def plain(self) -> Mapping[Any, Any] | None:
        return self.told if isinstance(self.told, dict) else None


class _Scalar(Inert):
    def plain(self) -> Any:
        kind, content = self.made_of if len(self.made_of) == 2 else (None, None)
        if not isinstance(kind, Inert) or not kind.made_of or not isinstance(content, bytes):
            return None
        code = kind.made_of[0]
        if not isinstance(code, str) or not _NUMBER.fullmatch(code):
            return None
        import numpy as np

        order = kind.told[1] if isinstance(kind.told, tuple) and len(kind.told) > 1 else "<"
        dtype = np.dtype(code).newbyteorder(">" if order == ">" else "<")
        if dtype.itemsize != len(content):
            return None
        found = np.frombuffer(content, dtype)[0].item()
        return found if isinstance(found, str | int | float) else None


@cache
def stand_ins() -> list[Any]:
    """The classes by which torch is to replace what it finds named in a pickle."""
    named: list[tuple[str, str, type[Inert]]] = [
        ("argparse", "Namespace", _Arguments),
        ("numpy", "dtype", Inert),
        ("numpy", "ndarray", Inert),
    ]
    for module in _NUMPYS:
        named += [(module, "scalar", _Scalar), (module, "_reconstruct", Inert)]
    for module in ("pathlib", "pathlib._local"):
        named += [(module, name, _Path) for name in _PATHS]
    # Torch knows what to replace by the class's own name and module.
    return [type(name, (base,), {"__module__": module}) for module, name, base in named]
