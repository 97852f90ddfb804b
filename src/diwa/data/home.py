"""Where data sets that are known by name live."""

from __future__ import annotations

import os
from pathlib import Path

#: What diwa notes inside a folder that it made; hidden, so it is neither a domain nor an image.
MARK = ".diwa.json"


def data_home(told: Path | None = None) -> Path:
    """The folder of data sets: `told`, else `$DIWA_DATA`, else the user's data folder.

    Laid out as DomainBed lays out its own, so that one folder can serve both.
    """
    if told is not None:
        return told
    if named := os.environ.get("DIWA_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "diwa"
