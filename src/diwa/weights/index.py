"""The index of weights that are split into several files, read without trust."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diwa.errors import WeightsError
from diwa.weights.disk import open_file, unreadable
from diwa.weights.header import check_name

_LONGEST_NAME = 255


@dataclass(frozen=True)
class Index:
    """Which tensor is in which file.

    Args:
        path: the index itself.
        place: name of a tensor -> name of the file beside the index.
        metadata: text by name.
    """

    path: Path
    place: dict[str, str]
    metadata: dict[str, str]

    def shards(self) -> Iterator[Path]:
        """The files, sorted by name.

        Raises:
            WeightsError: if one is not there.
        """
        for name in sorted(set(self.place.values())):
            shard = self.path.with_name(name)
            if not shard.is_file():
                raise WeightsError(
                    f"{shard}: no such file, though {self.path.name} names it",
                    remedy="copy or download the folder again",
                )
            yield shard


def read_index(path: Path) -> Index:
    """Reads and checks an index.

    Raises:
        WeightsError: if it is none, or names what can't be a tensor or a file beside it.
    """
    try:
        with open_file(path) as file:
            said = json.loads(file.read())
        place = said["weight_map"]
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(
            f"{path}: not an index of shards ({error})", remedy="copy or make it again"
        ) from error
    if not isinstance(place, dict) or not place:
        raise WeightsError(f"{path}: places no tensors", remedy="copy or make it again")
    for name, shard in place.items():
        check_name(name, path)
        if not _is_beside(shard):
            raise WeightsError(
                f"{path}: names the shard {repr(shard)[:100]}, which is not a file beside it",
                remedy="mistrust the folder, or mend its index",
            )
    about = said.get("metadata")
    texts = about if isinstance(about, dict) else {}
    return Index(path, place, {key: text for key, text in texts.items() if isinstance(text, str)})


def _is_beside(shard: Any) -> bool:
    return (
        isinstance(shard, str)
        and 0 < len(shard) <= _LONGEST_NAME
        and shard.isprintable()
        and Path(shard).name == shard
        and shard not in (".", "..")
    )
