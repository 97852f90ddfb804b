"""Compiles `sums.c` while the package is installed or its wheel is made, if that can be done here.

Where it can't, nothing is missing but speed: NumPy adds up to the same bits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOM = Path("src/diwa/weights")
#: Without contraction, or some machines would round once where NumPy rounds twice.
_FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-shared", "-fPIC")
_SECONDS = 120


class CompiledSums(BuildHookInterface):
    """The hook that hatch calls before it makes a wheel, also one for an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Puts the library beside its source, and marks the wheel as one for this platform."""
        del version
        room = Path(self.root) / ROOM
        library = room / "sums.compiled"  # of no kind that Python takes for a module
        trouble = compiled(room / "sums.c", library)
        if trouble:
            self.app.display_warning(
                f"{ROOM}/sums.c was not compiled, merges are slower: {trouble}"
            )
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"/{ROOM.as_posix()}/{library.name}")


def compiled(source: Path, library: Path) -> str:
    """Compiles, and says what went wrong; nothing if all is well, no library if it is not.

    Raises:
        OSError: if an old library is there that can't be removed, and might be another one's.
    """
    if library.exists():
        library.unlink()
    if os.name == "nt":
        return "not on Windows"
    trouble = "no C compiler"
    try:
        with tempfile.TemporaryDirectory() as name:
            made = Path(name) / library.name
            for compiler in _compilers():
                # Copies for several kinds of processor are not to be had everywhere.
                for copies in (["-DDIWA_CLONES"], []):
                    words = [*compiler, *_FLAGS, *copies, str(source), "-o", str(made)]
                    done = subprocess.run(  # noqa: S603 - the compiler of whoever installs this
                        words, check=False, capture_output=True, text=True, timeout=_SECONDS
                    )
                    if done.returncode == 0:
                        _put(made, library)
                        return ""
                    trouble = (done.stderr.strip() or f"{compiler[0]} failed").splitlines()[0]
    except (OSError, subprocess.SubprocessError) as error:
        trouble = str(error)
    return trouble


def _put(made: Path, library: Path) -> None:
    """Beside its place and renamed, for who loads half a library crashes."""
    part = library.with_suffix(f".{os.getpid()}.part")
    try:
        shutil.copyfile(made, part)
        part.replace(library)
    finally:
        part.unlink(missing_ok=True)


def _compilers() -> Iterator[list[str]]:
    said = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang")
    words = [shlex.split(one) for one in said if one]
    for one in dict.fromkeys(tuple(one) for one in words if one):
        if shutil.which(one[0]):
            yield list(one)
