"""`diwa merge`: checkpoints in, one model out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from diwa.errors import SpecError
from diwa.soup.methods import METHODS
from diwa.weights.digests import ahead

if TYPE_CHECKING:
    from diwa.soup.methods.base import Method
    from diwa.soup.rules import Rules
    from diwa.weights.member import Member

_ABOUT = """Merge files of weights into one model, tensor by tensor, with little memory.

FILES are safetensors, folders of them (sharded or not), .pt .pth .bin .ckpt .pkl (read without
running any code), runs of a diwa store, hf://owner/repo, or patterns like 'runs/*.pt'.
Name them before the flags. Averages do not depend on their order; what is not averaged, such as
integers, is the first one's. diwa check FILE ... says beforehand whether merging makes sense.

Methods ({methods}): diwa merge --method NAME --help shows what each does and its settings.
{this}
Args:
    files: what to merge, two or more; one beside --base or --take-from.
    settings: those of the method.
    rules: which tensors are merged.
    out: a .safetensors file, or a folder, which gets the first model's config.json as well.
    base: what the members were fine-tuned from, for the methods that need it.
    take_from: tensors with such names come from that file as they are, e.g. b.pt 'head.*'.
    shard_size: split a folder's weights into files of this size, e.g. 2GB.
    method: how to merge.
    json: print what was done as JSON.
"""


def command(arguments: Sequence[str]) -> Callable[..., int]:
    """The verb, with the flags of the method that the arguments name.

    Raises:
        SpecError: for a method that nobody registered.
    """
    _check_patterns(arguments)
    # The files are hashed for the manifest while all else is still being imported.
    ahead(arguments)
    import tyro

    from diwa.cli.options import Flat
    from diwa.soup.rules import Rules

    kind: type[Method] = METHODS.get(_named(arguments))
    own = f"\n--method {kind.name}: {(kind.__doc__ or '').splitlines()[0]}\n"

    def merge(
        files: Any,
        /,
        settings: Any,
        rules: Any = Rules(),  # noqa: B008 - frozen
        *,
        out: Any,
        method: Any = "uniform",
        base: Any = "",
        take_from: Any = (),
        shard_size: Any = "",
        json: bool = False,
    ) -> int:
        del method
        return _merge(files, settings, rules, out, base, take_from, shard_size, json)

    merge.__annotations__.update(
        files=Annotated[
            tuple[str, ...],
            tyro.conf.Positional,
            tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(required)"),
        ],
        settings=Annotated[kind, Flat],
        rules=Annotated[Rules, Flat],
        out=Path,
        method=Annotated[str, tyro.conf.arg(metavar="NAME")],
        base=Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")],
        take_from=Annotated[
            tuple[tuple[str, str], ...],
            tyro.conf.arg(metavar="FILE PATTERN"),
            tyro.conf.UseAppendAction,
        ],
        shard_size=Annotated[str, tyro.conf.arg(metavar="SIZE", help_behavior_hint="")],
    )
    merge.__doc__ = _ABOUT.format(methods=_known(arguments), this=own)
    return merge


def _check_patterns(arguments: Sequence[str]) -> None:
    """Without a pattern, such a flag would mean the opposite of what it seems to."""
    for place, argument in enumerate(arguments):
        value = arguments[place + 1] if place + 1 < len(arguments) else "--"
        if argument in ("--only", "--skip") and value.startswith("--"):
            raise SpecError(f"{argument}: no pattern after it", remedy="give one, e.g. 'head.*'")


def _known(arguments: Sequence[str]) -> str:
    """Every method, for who asks; to look for those of other packages takes a while."""
    return ", ".join(METHODS.names()) if {"-h", "--help"} & set(arguments) else ""


def _named(arguments: Sequence[str]) -> str:
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == "--method":
            return value if equals else " ".join(arguments[place + 1 : place + 2])
    return "uniform"


def _merge(
    files: Sequence[str],
    settings: Method,
    rules: Rules,
    out: Path,
    base: str,
    take_from: Sequence[tuple[str, str]],
    shard_size: str,
    json: bool,
) -> int:
    from diwa.cli.console import progress, say, show_json
    from diwa.soup.merge import merge

    if not files:
        raise SpecError(
            "no FILE to merge", remedy="name them before the flags: diwa merge FILE FILE --out OUT"
        )
    soup = merge(
        members_of(files),
        method=settings,
        base=members_of([base])[0] if base else None,
        only=rules.only,
        skip=rules.skip,
        take_from=[(members_of([file])[0], pattern) for file, pattern in take_from],
        dtype=rules.dtype,
    )
    size = _bytes(shard_size) if shard_size else None
    try:
        place = soup.save(out, shard_size=size, progress=progress())
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    if json:
        import msgspec

        from diwa.weights.member import said_by
        from diwa.weights.source import open_source

        content = {"out": str(place), "notes": soup.notes, **said_by(open_source(place))}
        show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))
        return 0
    for note in soup.notes:
        say(f"note: {note}")
    count = len(soup.members)
    say(f"{place}: {soup.blending.name} merge of {count} {'file' if count == 1 else 'files'}")
    return 0


def members_of(texts: Sequence[str]) -> list[Member]:
    """What files, folders, patterns, runs and addresses stand for."""
    from diwa.runs.found import weights_in
    from diwa.weights.locate import locate
    from diwa.weights.member import Member

    found = locate(texts, folders=weights_in)
    return [Member.from_source(one.source, one.name) for one in found]


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20}
_UNITS["GIB"] = 2**30


def _bytes(text: str) -> int:
    number = text.rstrip("BKMGIbkmgi ")
    unit = text[len(number) :].strip().upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        size = 0
    if size < 1:
        raise SpecError(f"shard size {text!r}", remedy="give one like 500MB or 2GB")
    return size


command.flags_depend_on_arguments = True  # pyright: ignore[reportFunctionMemberAccess]
