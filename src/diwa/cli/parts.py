"""The sweeps that a command line asks for: those of its recipe, changed by its flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import tyro

from diwa.cli.options import DataOptions, Flat, open_data
from diwa.errors import DiwaError, SpecError, guess
from diwa.sweep.forecast import Asked
from diwa.sweep.plan import plan
from diwa.sweep.recipe import Part, Recipe, find_recipe, read_recipe
from diwa.sweep.spec import SweepSpec
from diwa.sweep.suit import suited, told_apart

if TYPE_CHECKING:
    from diwa.data.benchmark import Benchmark
    from diwa.progress import Progress
    from diwa.runs.store import Store

DataSet = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")]
Named = Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE.toml")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]

_CONFIG = (tyro.conf.FlagCreatePairsOff,)


class Order:
    """What a command line asks for, before its data sets are opened.

    Args:
        arguments: the command line.

    Raises:
        SpecError: for a recipe that is not there or makes no sense.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        named = _value(self._arguments, "--recipe")
        target = ("all",) if _value(self._arguments, "--target") is not None else ()
        self.path = None if named is None else find_recipe(named)
        self.recipe: Recipe | None = (
            None if self.path is None else read_recipe(self.path, target=target)
        )

    def defaults_of(self, verb: Callable[..., None]) -> Callable[..., None]:
        """The verb, whose flags' defaults are what the recipe says."""
        if self.recipe is not None:
            given: Any = verb
            given.__kwdefaults__["spec"] = self.recipe.parts[0].spec
        return verb

    def parts(self, spec: SweepSpec, data: str | None, only: Sequence[str]) -> list[Part]:
        """The sweeps, as the flags have them.

        Args:
            spec: what the flags say, on top of the recipe's first sweep if there is a recipe.
            data: a data set to use instead of the recipe's.
            only: the sweeps' names; all of them if none is named.

        Raises:
            SpecError: for a name that the recipe lacks, or if no data set is named.
        """
        parts = [Part(name="", data="", spec=spec)] if self.recipe is None else self._changed()
        names = dict.fromkeys(part.name for part in parts)
        for name in only:
            if name not in names:
                known = f"it has {', '.join(names)}" if self.recipe else "give a --recipe"
                raise SpecError(
                    f"no sweep is called {name!r}", remedy=f"{guess(name, names)}{known}"
                )
        parts = [part for part in parts if not only or part.name in only]
        if data is not None:
            # Of a sweep on several data sets, one is left.
            parts = [msgspec.structs.replace(part, data=data) for part in parts]
            parts = [part for place, part in enumerate(parts) if part not in parts[:place]]
        if not all(part.data for part in parts):
            raise SpecError("no data set", remedy="give a folder of domain/class/image, or a name")
        return parts

    def where(self, part: Part) -> str:
        """What to call a sweep in messages: the recipe's table, unless flags have changed it."""
        if self.recipe is None:
            return ""
        said = [one.spec for one in self.recipe.parts if one.table == part.table]
        if part.spec in said:
            return ": ".join(filter(None, [str(self.path), part.table]))
        return f"sweep {part.name}" if len(self.recipe.parts) > 1 else ""

    def _changed(self) -> list[Part]:
        assert self.recipe is not None
        changed: dict[bytes, SweepSpec] = {}
        for part in self.recipe.parts:
            told = part.spec.to_json()
            if told not in changed:
                # Parsed anew for each: a flag may say what is one sweep's default, not another's.
                parsed: Any = tyro.cli(
                    Annotated[SweepSpec, Flat],
                    args=self._arguments,
                    default=part.spec,
                    return_unknown_args=True,
                    config=_CONFIG,
                )
                changed[told] = parsed[0]
        return [
            msgspec.structs.replace(part, spec=changed[part.spec.to_json()])
            for part in self.recipe.parts
        ]


def opened(
    order: Order, parts: Sequence[Part], options: DataOptions, progress: Progress
) -> list[Asked]:
    """The sweeps with their images; each data set is opened once."""
    known: dict[tuple[object, ...], Benchmark] = {}
    asked = []
    for part in parts:
        spec = part.spec
        place = (part.data, spec.shape, spec.channels)
        if place not in known:
            known[place] = open_data(
                Path(part.data),
                options,
                size=spec.shape,
                channels=spec.channels,
                progress=progress,
            )
        fitting = suited(spec, known[place])
        if fitting != spec:
            progress.say(told_apart(spec, fitting, known[place]))
        asked.append(Asked(part.name, fitting, known[place], order.where(part)))
    return asked


def check(asked: Sequence[Asked], *, device: str) -> None:
    """Plans every sweep, so that a mistake in any of them leaves no store behind.

    Raises:
        DiwaError: for what is wrong; of a recipe's sweep, it names file and table.
    """
    for one in asked:
        try:
            plan(one.spec, one.benchmark, device=device)
        except DiwaError as error:
            if not one.where:
                raise
            raise type(error)(f"{one.where}: {error}") from error


def remember(store: Store, benchmark: Benchmark, data: Path, options: DataOptions) -> None:
    """Notes where these images are and how they were opened, so `diwa soup` need not be told."""
    from diwa.data.known import whereabouts

    if options.cache_dir is not None:
        options = msgspec.structs.replace(options, cache_dir=options.cache_dir.resolve())
    place = {
        "data": whereabouts(data),
        "options": msgspec.to_builtins(options, enc_hook=str),
    }
    store.note(images={benchmark.digest: place})


def _value(arguments: Sequence[str], flag: str) -> str | None:
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else " ".join(arguments[place + 1 : place + 2])
    return None
