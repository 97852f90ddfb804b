"""A folder for a soup: names of shards, their index, and what lay beside the first's weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from diwa.errors import DiwaError
from diwa.weights.header import TensorInfo
from diwa.weights.kinds import Kind
from diwa.weights.member import Member, said_by
from diwa.weights.source import PICKLED, open_source

_CONFIG = "config.json"
#: Where transformers says of which kind the weights are, nowadays and before.
_DTYPES = {"dtype", "torch_dtype"}
_INDEX = "model.safetensors.index.json"
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
#: What holds weights, in a safetensors file or not, and is no configuration.
WEIGHTS = frozenset({*PICKLED, ".safetensors", ".h5", ".msgpack", ".onnx", ".gguf"})

#: A file to copy, or what to write instead.
Kept: TypeAlias = Path | bytes


def beside(members: Sequence[Member], kind: Kind | None = None) -> dict[str, Kept]:
    """What belongs to the first member with a configuration, but for its weights: by name.

    All files of a model's folder do; of a folder of several models, or of other things, only the
    configuration.

    Args:
        members: in the order of the arguments.
        kind: what the weights are written as, where that is not the first member's own: the
            configuration says so, too, for transformers would turn them back.
    """
    for member in members:
        folder = member.path if member.path.is_dir() else member.path.parent
        if (folder / _CONFIG).is_file():
            held = folder.iterdir() if _is_model(folder, member) else [folder / _CONFIG]
            kept: dict[str, Kept] = {file.name: file for file in held if _is_kept(file)}
            # Nothing computes in kinds of one byte; such weights are turned to what is told.
            if kind is not None and kind.bytes > 1:
                kept[_CONFIG] = _told(folder / _CONFIG, kind)
            return kept
    return {}


def _told(config: Path, kind: Kind) -> Kept:
    """A configuration that tells of another kind of numbers; as it was if it tells of none."""

    def changed(held: dict[str, Any]) -> dict[str, Any]:
        known = {name for name in _DTYPES & held.keys() if isinstance(held[name], str)}
        return {**held, **dict.fromkeys(known, kind.torch)}

    text = config.read_bytes()
    try:
        said, told = json.loads(text), json.loads(text, object_hook=changed)
    except (ValueError, RecursionError):
        return config
    return config if told == said else (json.dumps(told, indent=2) + "\n").encode()


def _is_model(folder: Path, member: Member) -> bool:
    try:
        return open_source(folder).files == member.source.files
    except DiwaError:
        return False


def _is_kept(file: Path) -> bool:
    weights = file.suffix.lower() in WEIGHTS or file.name.endswith(".index.json")
    return file.is_file() and not weights and not file.name.startswith(".")


def in_the_way(folder: Path, kept: Mapping[str, Kept]) -> str:
    """What would be lost with a folder, in words: nothing if it holds an earlier soup and no more.

    Args:
        folder: one that is there.
        kept: files that will be in the new folder, by name.
    """
    try:
        source = open_source(folder)
        weights = set(source.files)
        if "soup" not in said_by(source) or not all(map(_OURS.fullmatch, weights)):
            return "other things"
    except DiwaError:
        return "other things"
    for file in sorted(folder.iterdir()):
        if file.name in kept and not _equal(file, kept[file.name]):
            return f"another {file.name}"
        if file.name not in {*weights, _INDEX, *kept}:
            return file.name
    return ""


def _equal(file: Path, other: Kept) -> bool:
    content = other if isinstance(other, bytes) else other.read_bytes()
    return file.is_file() and file.read_bytes() == content


def shards(infos: Mapping[str, TensorInfo], size: int | None) -> dict[str, list[str]]:
    """Which tensors go into which file, none of which is larger than told if it can be helped."""
    parts: list[list[str]] = [[]]
    held = 0
    for name in sorted(infos):
        if size is not None and parts[-1] and held + infos[name].bytes > size:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += infos[name].bytes
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    count = len(parts)
    return {f"model-{n:05}-of-{count:05}.safetensors": part for n, part in enumerate(parts, 1)}


def complete(
    folder: Path,
    files: Mapping[str, Sequence[str]],
    infos: Mapping[str, TensorInfo],
    kept: Mapping[str, Kept],
) -> None:
    """Adds to a folder of weights what makes it a model's: the index, and what is kept."""
    if len(files) > 1:
        size = sum(info.bytes for info in infos.values())
        place = {name: file for file, names in files.items() for name in names}
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(place.items()))}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    for name, file in kept.items():
        if isinstance(file, bytes):
            (folder / name).write_bytes(file)
        else:
            shutil.copyfile(file, folder / name)
