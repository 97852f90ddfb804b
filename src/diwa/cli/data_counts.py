"""How `diwa data` shows a data set's images against the published numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diwa.cli.console import say, show

if TYPE_CHECKING:
    from diwa.data.published import Count


def show_count(count: Count) -> None:
    """Prints a table of domains and says plainly what differs."""
    from diwa.report.table import rows_table

    rows: list[tuple[object, ...]] = [
        (
            one.name if one.short in ("", one.name) else f"{one.name} ({one.short})",
            one.found,
            "?" if one.published is None else one.published,
            "" if one.published in (None, one.found) else f"{one.found - one.published:+,}",
        )
        for one in count.domains
    ]
    known = [one.published for one in count.domains if one.published is not None]
    found = sum(one.found for one in count.domains)
    rows.append(("all", found, sum(known) if known else "?", ""))
    show(rows_table([count.name, "found", "published", "differs by"], rows))
    for line in verdict(count):
        say(line)


def verdict(count: Count) -> list[str]:
    """Whether the numbers are the published ones, in words.

    Args:
        count: what was counted.
    """
    lines = []
    if count.as_published:
        lines.append(f"as published ({count.by})")
    elif count.differing:
        by = f" ({count.by})" if count.by else ""
        lines.append(f"not as published{by}: {', '.join(count.differing)}")
    for one in count.domains:
        if one.differing:
            told = ", ".join(
                f"{name} {one.classes[name]:,}, published {number:,}"
                for name, number in one.differing.items()
            )
            lines.append(f"  {one.name}: {told}")
    if count.missing_classes:
        lines.append(f"no image of {_some(count.missing_classes)}")
    if count.other_classes:
        lines.append(f"classes that {count.name} has not: {_some(count.other_classes)}")
    if not count.by:
        lines.append("no published numbers are known")
    return lines


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
