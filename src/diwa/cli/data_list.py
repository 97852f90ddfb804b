"""`diwa data list`: the data sets that are known by name, and which of them are here."""

from __future__ import annotations

from pathlib import Path

from diwa.cli.console import say, show, show_json


def _where(place: Path | None, home: Path) -> str:
    if place is None:
        return "not here"
    return f"{place.relative_to(home)}/" if place.is_relative_to(home) else "in a package"


def listing(*, json: bool = False) -> None:
    """Show the data sets that are known by name: domains, sizes, and where they are.

    Args:
        json: print them as JSON.
    """
    import msgspec

    from diwa.data.home import data_home
    from diwa.data.sets import DATASETS
    from diwa.data.sets.base import DataSet

    home = data_home()
    sets: list[DataSet] = [DATASETS.get(name) for name in DATASETS.names()]
    here = {one.name: one.where(home / one.folder) for one in sets}
    if json:
        content = [
            {
                "name": one.name,
                "domains": dict(one.domains),
                "classes": len(one.classes),
                "published": dict(one.published[0].domains) if one.published else {},
                "root": str(here[one.name]) if here[one.name] else None,
            }
            for one in sets
        ]
        show_json(msgspec.json.format(msgspec.json.encode(content), indent=2))
        return
    from diwa.report.table import rows_table

    rows = [
        (
            one.name,
            ", ".join(one.domains.values()),
            len(one.classes),
            sum(one.published[0].domains.values()) if one.published else "?",
            one.size or "?",
            _where(here[one.name], home),
        )
        for one in sets
    ]
    show(rows_table(["name", "domains", "classes", "images", "to fetch", "where"], rows))
    say(f"they live in {home} (DIWA_DATA sets another folder)")
    say("diwa data get NAME fetches one, diwa data add NAME PATH takes what you have of it")
