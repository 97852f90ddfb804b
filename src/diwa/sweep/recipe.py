"""Sweeps written down: one TOML file holds one sweep or several, by the names of the flags."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from diwa.errors import SpecError, guess
from diwa.spec import Spec
from diwa.sweep import choices
from diwa.sweep.spec import SweepSpec

#: What a recipe's table may say besides the settings of a sweep.
_OWN = ("name", "data")


class Part(Spec, frozen=True, kw_only=True):
    """One sweep of a recipe, on one data set."""

    name: str
    """What the recipe calls it."""
    data: str
    """The data set: a name or a folder; empty if the recipe leaves it open."""
    spec: SweepSpec
    """The sweep."""
    table: str = ""
    """The table of the recipe that says so; empty if it has no tables."""


class Recipe(Spec, frozen=True, kw_only=True):
    """What a recipe's file says."""

    name: str
    """The file's name, without its ending."""
    about: str
    """What it is for, in a line."""
    parts: tuple[Part, ...]
    """Its sweeps, in the order to do them."""


def packaged() -> dict[str, Path]:
    """The recipes that come with diwa, by name."""
    folder = Path(str(files("diwa"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"), key=lambda path: path.stem)}


def find_recipe(named: str) -> Path:
    """The file that a name stands for: one of ours, or a path.

    Raises:
        SpecError: if there is none.

    Example:
        >>> find_recipe("main-table").name
        'main-table.toml'
        >>> find_recipe("mian-table")
        Traceback (most recent call last):
        ...
        diwa.errors.SpecError: no recipe is called 'mian-table'; did you mean 'main-table'? diwa \
recipes lists them, a FILE.toml is one of your own
    """
    known = packaged()
    if named in known:
        return known[named]
    path = Path(named)
    if path.is_file():
        return path
    if path.suffix == ".toml":
        raise SpecError(
            f"{path}: no such recipe", remedy="give a file, or a name that diwa recipes lists"
        )
    raise SpecError(
        f"no recipe is called {named!r}",
        remedy=f"{guess(named, known)}diwa recipes lists them, a FILE.toml is one of your own",
    )


def read_recipe(path: Path, *, target: tuple[str, ...] = ()) -> Recipe:
    """Reads a recipe.

    Args:
        path: the file.
        target: stands in where the recipe names no target.

    Raises:
        SpecError: for what is unknown, missing or of the wrong type; it names file, table, field.
    """
    try:
        return parse_recipe(path.read_bytes(), where=str(path), name=path.stem, target=target)
    except OSError as error:
        raise SpecError(f"{path}: can't be read ({error.strerror})") from error


def parse_recipe(
    text: bytes | str, *, where: str = "recipe", name: str = "recipe", target: tuple[str, ...] = ()
) -> Recipe:
    r"""Reads a recipe from text.

    Args:
        text: TOML.
        where: what to call the text in messages.
        name: what to call the recipe.
        target: stands in where the recipe names no target.

    Raises:
        SpecError: for what is unknown, missing or of the wrong type; it names the table and field.

    Example:
        >>> recipe = parse_recipe('target = "sketch"\n[hparams]\nlr = {low=1e-5, high=1e-4}')
        >>> recipe.parts[0].spec.hparams
        {'lr': Range(low=1e-05, high=0.0001, log=False)}
        >>> parse_recipe('target = "sketch"\n[[sweep]]\nstpes = 5')
        Traceback (most recent call last):
        ...
        diwa.errors.SpecError: recipe: [[sweep]] 1: has no field 'stpes'; did you mean 'steps'?
    """
    try:
        said = msgspec.toml.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{where}: {error}", remedy="mend the TOML") from error
    about, tables = said.pop("about", ""), said.pop("sweep", [{}])
    if not isinstance(about, str):
        raise SpecError(f"{where}: about: {about!r}", remedy="give a line of text")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SpecError(f"{where}: sweep: is no list of tables", remedy="write [[sweep]]")
    _check_names(said, where, "about", "sweep")
    parts: list[Part] = []
    for number, table in enumerate(tables, 1):
        called = "" if len(tables) == 1 and not table else f"[[sweep]] {number}"
        place = f"{where}: {called}" if called else where
        _check_names(table, place)
        alone = len(tables) == 1
        own = _parts({**said, **table}, place, name if alone else str(number), target)
        parts += [msgspec.structs.replace(part, table=called) for part in own]
    pairs = [(part.name, part.data) for part in parts]
    twice = [pair for pair in pairs if pairs.count(pair) > 1]
    if twice:
        raise SpecError(f"{where}: two sweeps are called {twice[0][0]!r}", remedy="name them apart")
    return Recipe(name=name, about=about, parts=tuple(parts))


def _check_names(table: Mapping[str, Any], where: str, *more: str) -> None:
    known = [*more, *_OWN, *SweepSpec.__struct_fields__]
    for name in table:
        if name not in known:
            raise SpecError(
                f"{where}: has no field {name!r}",
                remedy=guess(name, known).strip() or f"it has {', '.join(known)}",
            )


def _parts(table: dict[str, Any], where: str, called: str, target: tuple[str, ...]) -> list[Part]:
    """One table on each of its data sets."""
    name, data = table.pop("name", called), table.pop("data", "")
    if not isinstance(name, str) or not name:
        raise SpecError(f"{where}: name: {name!r}", remedy="give a word")
    data = [data] if isinstance(data, str) else data
    if not isinstance(data, list) or not data or not all(isinstance(one, str) for one in data):
        raise SpecError(f"{where}: data: {data!r}", remedy="name a data set, or several in a list")
    if "target" not in table:
        if not target:
            raise SpecError(
                f"{where}: no target", remedy='name the domain to leave unseen, or "all"'
            )
        table["target"] = target
    try:
        own = table.get("hparams", {})
        if not isinstance(own, dict):
            raise SpecError(f"hparams: {own!r}", remedy="write [hparams], then lr = [1e-4, 2e-4]")
        table["hparams"] = {key: choices.read(key, value) for key, value in own.items()}
        _check_words(table)
        spec = SweepSpec(**table)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error
    return [Part(name=name, data=one, spec=spec) for one in data]


def _check_words(table: Mapping[str, Any]) -> None:
    """Says which words there are, where a field takes only certain ones."""
    for field in msgspec.structs.fields(SweepSpec):
        known = get_args(field.type) if get_origin(field.type) is Literal else ()
        if field.name in table and known and table[field.name] not in known:
            words = [str(word) for word in known]
            near = guess(str(table[field.name]), words)
            raise SpecError(
                f"{field.name}: {table[field.name]!r}",
                remedy=f"{near}choose one of {', '.join(words)}",
            )
