"""The entry point: verbs, errors as one line, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from diwa.errors import DiwaError

#: What to say when Ctrl-C comes; every long verb picks up from its store.
_STOPPED = "stopped; the same command goes on where this one stopped"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: what follows `diwa`; those of the process by default.

    Returns:
        0 for success, 1 for an error, 130 after Ctrl-C. Wrong flags exit with 2.
    """
    import tyro

    given = _with_default_verb(list(sys.argv[1:] if arguments is None else arguments))
    if given and given[0] in ("--version", "-V"):
        import diwa

        print(f"diwa {diwa.__version__}")
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(
            _verbs(), prog="diwa", args=given, description=_DESCRIPTION, sort_subcommands=False
        )
    except DiwaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(_STOPPED, file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has closed it; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def entry() -> None:
    """The `diwa` command."""
    sys.exit(main())


_DESCRIPTION = """Fine-tune several models from one start, average their weights, get one model
that withstands distribution shift. Try: diwa quickstart. Then: diwa sweep, diwa soup."""


def _verbs() -> dict[str, Callable[..., Any]]:
    from diwa.cli.data import cache, show
    from diwa.cli.eval import evaluate
    from diwa.cli.quickstart import quickstart
    from diwa.cli.soup import soup
    from diwa.cli.sweep import sweep
    from diwa.cli.train import train

    return {
        "quickstart": quickstart,
        "data:show": show,
        "data:cache": cache,
        "train": train,
        "sweep": sweep,
        "soup": soup,
        "eval": evaluate,
    }


def _with_default_verb(given: list[str]) -> list[str]:
    """`diwa data FOLDER` means `diwa data show FOLDER`."""
    if len(given) > 1 and given[0] == "data":
        if given[1] in ("show", "cache"):
            return [f"data:{given[1]}", *given[2:]]
        return ["data:show", *given[1:]]
    return ["data:show", "--help"] if given == ["data"] else given
