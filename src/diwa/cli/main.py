"""The entry point: verbs, errors as one line, exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from diwa.errors import DiwaError, SpecError
from diwa.registry import Registry

#: Every verb: where it lives, and what it does in a line. A new one is a file and a line here.
_VERBS = {
    "quickstart": (
        "diwa.cli.quickstart:quickstart",
        "the whole road on a small benchmark, in minutes",
    ),
    "data": ("diwa.cli.data:show", "check a folder of images, and decode it into the cache"),
    "data list": ("diwa.cli.data_list:listing", "the data sets that are known by name"),
    "data get": ("diwa.cli.data_get:get", "fetch one of them"),
    "data add": ("diwa.cli.data_add:add", "take what you have of one, archive or folder"),
    "data cache": ("diwa.cli.data:cache", "show or empty the cache of decoded images"),
    "sweep": ("diwa.cli.sweep:sweep", "fine-tune several models from one shared start"),
    "train": ("diwa.cli.train:train", "do a single run of a sweep, as a job among many"),
    "recipes": ("diwa.cli.recipes:recipes", "list the sweeps of the paper's tables, or print one"),
    "soup": ("diwa.cli.soup:soup", "average a sweep's runs and score the unseen domain"),
    "report": ("diwa.cli.report:report", "print the paper's tables, of stores or DomainBed's runs"),
    "retrain": ("diwa.cli.retrain:retrain", "train the last layer again on some of the target"),
    "merge": ("diwa.cli.merge:command", "merge checkpoints of any origin into one model"),
    "check": ("diwa.cli.check:check", "say beforehand whether merging makes sense"),
    "show": ("diwa.cli.show:show", "show what a file of weights holds, and what it is made of"),
    "eval": ("diwa.cli.eval:evaluate", "score a soup or a run on the domains of a folder"),
}
#: Verbs that, stopped on the way, keep what is done.
_GOES_ON = {"quickstart", "data", "sweep", "train", "soup", "retrain"}
#: Flags that may be given again and again.
_REPEATED = {"--take-from"}
VERBS = Registry("verb", {name: home for name, (home, _) in _VERBS.items()}, group="diwa.verbs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: what follows `diwa`; those of the process by default.

    Returns:
        0 for success, 1 for an error, 2 for wrong flags, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
    except DiwaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        more = "; the same command goes on where this one stopped"
        print(f"stopped{more if _GOES_ON & {*given[:1]} else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has closed it; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    return code


def entry() -> None:
    """The `diwa` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no sign for a degree shows another one.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(main())


def _run(given: list[str]) -> int:
    if given[:1] in (["--version"], ["-V"]):
        import diwa

        print(f"diwa {diwa.__version__}")
        return 0
    if not given or given[0] in ("--help", "-h", "help"):
        print(_help())
        return 0 if given else 2
    words = 2 if " ".join(given[:2]) in VERBS else 1
    verb, rest = " ".join(given[:words]), given[words:]
    if given[:2] == ["data", "show"]:
        rest = given[2:]
    try:
        call = VERBS.get(verb)
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if getattr(call, "flags_depend_on_arguments", False):
        call = call(rest)
    if twice := _given_twice(rest, call):
        told = f"name all its values after one, as in {twice} A B"
        print(f"error: {twice}: given twice; {told}", file=sys.stderr)
        return 2
    import tyro  # after what a verb begins before its flags are read

    done = tyro.cli(call, prog=f"diwa {verb}", args=rest, config=(tyro.conf.FlagCreatePairsOff,))
    return done if isinstance(done, int) else 0


def _given_twice(arguments: Sequence[str], call: Callable[..., Any]) -> str:
    """A flag of several values that stands there twice: the second would silently undo the first.

    Of flags with one value the last counts, as everywhere, so that scripts can add to commands.
    """
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    counts = Counter(flag.replace("_", "-") for flag in flags)
    again = [flag for flag, count in counts.items() if count > 1 and flag not in _REPEATED]
    if not again:
        return ""
    several = {f"--{name.replace('_', '-')}" for name in _several(get_type_hints(call))}
    return next((flag for flag in again if flag in several), "")


def _several(hints: Mapping[str, Any]) -> Iterator[str]:
    """The names of what takes several values, those within specifications among them."""
    for name, hint in hints.items():
        if get_origin(hint) in (tuple, list, dict):
            yield name
        elif isinstance(hint, type) and hasattr(hint, "__struct_fields__"):
            yield from _several(get_type_hints(hint))


def _help() -> str:
    width = max(map(len, VERBS.names()))
    lines = [
        f"  {name:<{width}}  {_VERBS[name][1] if name in _VERBS else 'from another package'}"
        for name in [*_VERBS, *(name for name in VERBS.names() if name not in _VERBS)]
    ]
    return "\n".join(
        [
            "usage: diwa VERB ...",
            "",
            "Fine-tune several models from one start, average their weights, and get one model",
            "that withstands distribution shift better than any of them.",
            "",
            *lines,
            "",
            "diwa VERB --help says more. New here? diwa quickstart.",
        ]
    )
