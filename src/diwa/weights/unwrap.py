"""Finding the one dictionary of tensors in what a training script saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diwa.errors import WeightsError
from diwa.weights.header import check_name
from diwa.weights.inert import Inert

#: The first of these that holds tensors is taken: the weights as trained before their moving
#: average, which `wrapping=` asks for by name.
WRAPPINGS = (
    "state_dict",
    "model_state_dict",
    "model_dict",
    "model",
    "module",
    "net",
    "network",
    "params",
    "state_dict_ema",
    "model_state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema_model",
    "ema",
    "params_ema",
)
_DEEPEST = 8
#: Parts of names that only a wrapper puts there, wherever in the network it sits.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_LIGHTNING = "pytorch-lightning_version"
_LONGEST_TEXT = 4096
_MOST_TEXTS = 64

IsTensor = Callable[[object], bool]


@dataclass
class Unwrapped:
    """What was found.

    Args:
        tensors: name -> tensor, in the file's order.
        way: what was taken off, outermost first.
        left_out: what holds tensors and was not taken.
        ignored: entries among the tensors that are none.
        known: text that stood beside them.
    """

    tensors: dict[str, Any]
    way: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """All but the tensors, as text by name."""
        notes = {
            "unwrapped": "/".join(self.way),
            "left_out": ", ".join(self.left_out),
            "ignored": ", ".join(self.ignored),
        }
        return {**self.known, **{name: text for name, text in notes.items() if text}}


def unwrap(held: Any, path: Path, is_tensor: IsTensor, *, wrapping: str = "") -> Unwrapped:
    """Takes off the usual wrappings, and the prefixes that wrappers of networks leave.

    Args:
        held: what the file holds.
        path: which file, for errors.
        is_tensor: tells tensors from anything else.
        wrapping: the entry to take, where the file has several.

    Raises:
        WeightsError: if there is no dictionary of tensors in it, or names that become the same.

    Example:
        >>> held = {"epoch": 3, "state_dict": {"module.w": 1.0, "module.b": 2.0}}
        >>> found = unwrap(held, Path("a.pt"), lambda value: isinstance(value, float))
        >>> found.tensors, found.metadata()
        ({'w': 1.0, 'b': 2.0}, {'epoch': '3', 'unwrapped': 'state_dict/module.'})
    """
    found = Unwrapped({})
    lightning = False
    while len(found.way) < _DEEPEST:
        if not isinstance(held, dict):
            raise WeightsError(
                f"{path}: holds a {type(held).__name__}, not a dictionary of tensors",
                remedy="save a state_dict",
            )
        lightning = lightning or _LIGHTNING in held
        entry = _entry(held, is_tensor, wrapping if not found.way else "", path)
        if entry is None:
            break
        for name, value in held.items():
            if name != entry:
                _note(found, name, value, is_tensor)
        found.way.append(entry)
        held = held[entry]
    found.tensors = _only_tensors(held, found, path, is_tensor)
    _strip(found, path, ("model.", "net.", "network.", "module.") if lightning else ())
    return found


def _entry(held: dict[Any, Any], is_tensor: IsTensor, wanted: str, path: Path) -> str | None:
    if wanted:
        if isinstance(held.get(wanted), dict):
            return wanted
        raise WeightsError(
            f"{path}: has no dictionary {wanted!r}", remedy=f"it has {_listed(held)}"
        )
    for name in WRAPPINGS:
        if isinstance(held.get(name), dict) and _holds(held[name], is_tensor):
            return name
    return None


def _only_tensors(held: Any, found: Unwrapped, path: Path, is_tensor: IsTensor) -> dict[str, Any]:
    tensors = {}
    for name, value in held.items():
        if is_tensor(value):
            check_name(name, path)
            tensors[name] = value
        elif _holds(value, is_tensor):
            raise WeightsError(
                f"{path}: '{_shown(name)}' is no tensor but holds some",
                remedy="save the state_dict alone",
            )
        else:
            found.ignored.append(_shown(name))
            _note(found, name, value, is_tensor)
    if not tensors:
        has = f"it has only {_listed(held)}" if held else "it is empty"
        raise WeightsError(
            f"{path}: not a dictionary of tensors ({has})", remedy="save a state_dict"
        )
    return tensors


def _strip(found: Unwrapped, path: Path, lightning: tuple[str, ...]) -> None:
    """Takes prefixes off the names; a plain prefix only where every tensor has it."""
    for wrapper in _WRAPPERS:
        _rename(found, f"{wrapper}.", path, lambda name, w=wrapper: _without(name, w))
    # What torch's AveragedModel counts beside its module.
    count = found.tensors.get("n_averaged")
    rest = [name for name in found.tensors if name != "n_averaged"]
    if count is not None and rest and all(_starts(name, "module.") for name in rest):
        del found.tensors["n_averaged"]
        found.ignored.append("n_averaged")
    for prefix in lightning:
        if all(_starts(name, prefix) for name in found.tensors):
            _rename(found, prefix, path, lambda name, p=prefix: name.removeprefix(p))
            break
    while all(_starts(name, "module.") for name in found.tensors):
        _rename(found, "module.", path, lambda name: name.removeprefix("module."))
    for name in found.tensors:
        if _starts(name, "module.") and name.removeprefix("module.") in found.tensors:
            raise WeightsError(
                f"{path}: holds two tensors of one name, {name!r} with and without 'module.'",
                remedy="save the state_dict of one network",
            )


def _rename(found: Unwrapped, what: str, path: Path, bare: Callable[[str], str]) -> None:
    renamed = {bare(name): tensor for name, tensor in found.tensors.items()}
    if renamed.keys() == found.tensors.keys():
        return
    if len(renamed) < len(found.tensors):
        raise WeightsError(
            f"{path}: holds two tensors of one name, with and without {what!r}",
            remedy="save the state_dict of one network",
        )
    found.tensors = renamed
    found.way.append(what)


def _without(name: str, wrapper: str) -> str:
    parts = name.split(".")
    return ".".join(part for part in parts[:-1] if part != wrapper) + (
        f".{parts[-1]}" if any(part != wrapper for part in parts[:-1]) else parts[-1]
    )


def _starts(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name != prefix


def _holds(value: Any, is_tensor: IsTensor) -> bool:
    """Whether there is a tensor anywhere in it."""
    return any(is_tensor(one) for one in _inside(value))


def _inside(value: Any) -> Iterator[Any]:
    """It and all it contains, each once: what a pickle holds may contain itself."""
    seen, left = set(), [value]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple | set):
            left.extend(one)
        elif isinstance(one, Inert):
            left.extend([one.told, *one.made_of])


def _note(found: Unwrapped, name: Any, value: Any, is_tensor: IsTensor) -> None:
    """Remembers what stands beside the tensors: hyperparameters, versions, scores."""
    if is_tensor(value) or _holds(value, is_tensor):
        found.left_out.append(_shown(name))
        return
    if not _is_text(name, 100) or len(found.known) >= _MOST_TEXTS:
        return
    told = _plain(value)
    if isinstance(told, Mapping):
        flat = {key: _plain(one) for key, one in told.items() if _is_text(key, 100)}
        flat = {key: one for key, one in flat.items() if isinstance(one, str | int | float | list)}
        told = json.dumps(flat, sort_keys=True) if flat else None
    elif isinstance(told, int | float | list):
        told = json.dumps(told)
    # What diwa itself knows of weights stands in files of its own only.
    if isinstance(told, str) and _is_text(told, _LONGEST_TEXT) and name != "diwa":
        found.known[name] = told


def _plain(value: Any) -> Any:
    if isinstance(value, Inert):
        value = value.plain()
    if isinstance(value, list | tuple):
        every = [one.plain() if isinstance(one, Inert) else one for one in value[:33]]
        simple = all(isinstance(one, str | int | float) for one in every)
        return every if simple and len(every) < 33 else None
    return value


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()


def _shown(name: object) -> str:
    return ascii(name).strip("'\"")[:80] if isinstance(name, str | int) else type(name).__name__


def _listed(held: Mapping[Any, Any]) -> str:
    names = [_shown(name) for name in held]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "nothing"
