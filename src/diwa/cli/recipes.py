"""`diwa recipes`: the sweeps of the paper's tables, by name."""

from __future__ import annotations

from typing import Annotated

import tyro

from diwa.cli.console import say, show_json


def recipes(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None,
    /,
    *,
    json: bool = False,
) -> None:
    """List the recipes that come with diwa, or print one as a start for your own.

    Each holds the sweeps of one of the paper's tables, and has a twin, -small, for a laptop. Then:
    diwa sweep --recipe NAME --dry-run.

    Args:
        name: the recipe to print.
        json: print as JSON, in full.
    """
    import msgspec

    from diwa.sweep.recipe import find_recipe, packaged, read_recipe

    if name is not None and not json:
        say(find_recipe(name).read_text(encoding="utf-8").rstrip())
        return
    paths = packaged().values() if name is None else [find_recipe(name)]
    read = [read_recipe(path) for path in paths]
    if json:
        show_json(msgspec.json.format(msgspec.json.encode(read), indent=2))
        return
    width = max(len(recipe.name) for recipe in read)
    for recipe in read:
        say(f"{recipe.name:<{width}}  {recipe.about}")
