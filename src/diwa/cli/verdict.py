"""A verdict for people: short tables and lines, at most 100 columns wide."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from diwa.analysis.compare import obstacle, origin, percent, usual_distance
from diwa.analysis.evidence import Evidence, PairFacts
from diwa.analysis.verdict import Verdict
from diwa.cli.console import say

_WIDTH = 100
#: Of more pairs than this, only the notable ones are shown.
_PAIRS = 10
_MEMBERS = 30
_NAME = 34
#: The columns that a narrow terminal can best do without, the first before the others.
_LEAST = ("sigma", "correlation", "angle", "norm", "from mean")
_REMARKS = {
    "tensors": "other tensors",
    "origin": "other origin",
    "heads": "heads apart",
    "barrier": "loss rises",
    "far": "far apart",
    None: "",
}


def show_verdict(verdict: Verdict) -> None:
    """Prints what was measured and what it means."""
    evidence = verdict.evidence
    _show_members(evidence)
    _show_pairs(evidence, notable(verdict))
    for line in _facts(evidence):
        _say(line)
    for note in verdict.notes:
        _say(f"note: {note}")
    for one in verdict.leave_out:
        _say(f"leave out {one.name}: {one.why}")
    say("")
    _say(verdict.sentence)
    if verdict.gains:
        _show_command(verdict)


def _show_members(evidence: Evidence) -> None:
    land = evidence.landscape
    columns: list[tuple[str, list[str]]] = [
        ("", [_short(f"{n} {one.name}") for n, one in enumerate(evidence.members, 1)]),
        ("norm", [_number(one.norm, ".4g") for one in evidence.members]),
        ("from mean", [_share(one.from_mean) for one in evidence.members]),
        ("from base", [_share(one.from_base) for one in evidence.members]),
        ("validation", [_share(one.score) for one in evidence.members]),
    ]
    if land:
        known = [land.members.get(one.name) for one in evidence.members]
        columns.append(("accuracy", [_share(p.accuracy if p else None) for p in known]))
        columns.append(("loss", [_number(p.loss if p else None, ".3f") for p in known]))
    columns += [
        (name, [_number(one.hparams.get(name), "g") for one in evidence.members])
        for name in evidence.spread()
    ]
    _table(columns, _MEMBERS, "members")


def _show_pairs(evidence: Evidence, shown: Sequence[PairFacts]) -> None:
    usual = usual_distance(evidence)
    places = {one.name: str(number) for number, one in enumerate(evidence.members, 1)}
    columns: list[tuple[str, list[str]]] = [
        ("pair", [f"{places[pair.one]} - {places[pair.other]}" for pair in shown]),
        ("apart", [_share(pair.distance) for pair in shown]),
        ("angle", [_number(pair.angle, ".1f", "°") for pair in shown]),
        ("from base", [_number(pair.base_angle, ".0f", "°") for pair in shown]),
        ("one origin", [_origin(pair) for pair in shown]),
        ("correlation", [_number(pair.correlation, ".3f") for pair in shown]),
        ("sigma", [_number(pair.sigma, ".0f") for pair in shown]),
        ("barrier", [_number(pair.barrier, ".3f") for pair in shown]),
        ("", [_REMARKS[obstacle(evidence, pair, usual)] for pair in shown]),
    ]
    _table(columns, _PAIRS, "pairs")
    left = len(evidence.pairs) - len(shown)
    if left:
        say(f"and {left} more pairs; --json has all")


def notable(verdict: Verdict) -> list[PairFacts]:
    """All pairs if they are few; else what the verdict rests on.

    That is the nearest and the farthest of those to merge, and for each one to leave out the
    nearest of those.
    """
    evidence = verdict.evidence
    if len(evidence.pairs) <= _PAIRS:
        return evidence.pairs
    group = set(verdict.merge)

    def nearest_first(pairs: Iterable[PairFacts]) -> list[PairFacts]:
        return sorted(pairs, key=lambda pair: (pair.distance is None, pair.distance))

    within = nearest_first(p for p in evidence.pairs if {p.one, p.other} <= group)
    some = [*within[:2], *within[-2:]] or nearest_first(evidence.pairs)[:_PAIRS]
    for out in verdict.leave_out:
        ends = [{out.name, name} for name in group]
        some += nearest_first(pair for pair in evidence.pairs if {pair.one, pair.other} in ends)[:1]
    return [pair for pair in evidence.pairs if pair in some[:_PAIRS]]


def _facts(evidence: Evidence) -> list[str]:
    """What concerns all of them."""
    lines = [f"tensors: {text}" for text in evidence.disagreements]
    for member in evidence.members:
        if member.broken:
            lines.append(f"{member.name}: holds NaN or infinity in {member.broken!r}")
    if evidence.matrices:
        lines.append(
            f"origin: {_origins(evidence)} ({evidence.matrices} matrices compared; siblings "
            "correlate by almost 1, strangers by 0)"
        )
    if evidence.ratio is not None:
        count = len(evidence.members)
        lines.append(
            f"norm of the mean: {evidence.ratio:.3f} of the members' (siblings keep almost 1, "
            f"{count} strangers {count**-0.5:.2f})"
        )
    if evidence.hot_spots:
        spots = [
            f"{spot.tensor} ({percent(spot.change)}, {percent(spot.share)} of all distance)"
            for spot in evidence.hot_spots[:3]
        ]
        lines.append(f"changed most: {', '.join(spots)}")
    land = evidence.landscape
    if land:
        lines.append(
            f"measured on {land.images} images of {', '.join(land.domains)}: the mean of all "
            f"{len(land.members)} scores {percent(land.mean.accuracy)}, loss {land.mean.loss:.3f}; "
            f"barrier on the way to it at most {max(way.barrier for way in land.to_mean):.3f}"
        )
    return lines


def _origins(evidence: Evidence) -> str:
    """How sure it is that all descend from one initialisation."""
    words = {origin(pair) for pair in evidence.pairs if pair.distance is not None}
    if "no sign of it" in words:
        some = words & {"certain", "likely"}
        return "no sign that all descend from one initialisation" + (
            ", but some do" if some else ""
        )
    told = all(pair.same_init for pair in evidence.pairs)
    word = next((w for w in ("can't tell", "likely", "certain") if w in words), "can't tell")
    how = "their files say so" if told else "from the weights"
    return f"{word}, {how}: one initialisation" if word != "can't tell" else word


def _origin(pair: PairFacts) -> str:
    return "" if pair.distance is None else origin(pair)


def _show_command(verdict: Verdict) -> None:
    """The command that does what the verdict says, to be copied."""
    paths = {member.name: member.path for member in verdict.evidence.members}
    words = [shlex.quote(_plain(paths[name])) for name in verdict.merge]
    line = "next: diwa merge"
    for word in [*words, "--out merged.safetensors"]:
        if len(line) + len(word) + 3 > _width():
            say(f"{line} \\")
            line = " "
        line += f" {word}"
    say(line)


def _table(columns: Sequence[tuple[str, list[str]]], most: int, what: str) -> None:
    """Prints the columns that hold anything, as many as fit."""
    from rich.console import Console
    from rich.markup import escape

    from diwa.report.table import rows_table

    kept = [column for column in columns if any(column[1])]
    least = [column for name in _LEAST for column in kept if column[0] == name]
    while kept and sum(map(_room, kept)) > _width():
        kept.remove(least.pop(0) if least else kept[-1])
    rows = list(zip(*(cells for _, cells in kept), strict=True))
    table = rows_table(
        [escape(heading) for heading, _ in kept],
        [[escape(cell) for cell in row] for row in rows[:most]],
    )
    # Of a file, rich would make as little as of an old terminal.
    Console(highlight=False, width=_width()).print(table)
    if len(rows) > most:
        say(f"and {len(rows) - most} more {what}; --json has all")


def _room(column: tuple[str, list[str]]) -> int:
    """The characters that a column takes, with the space around it."""
    heading, cells = column
    return max(map(len, [heading, *cells])) + 3


def _width() -> int:
    """Of the terminal, up to a limit; a file gets all of that."""
    return min(_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDTH


def _say(text: str) -> None:
    # A number and its unit stay on one line.
    bound = _plain(text).replace(" %", "\0%")
    for line in textwrap.wrap(bound, _width(), subsequent_indent="  ", break_on_hyphens=False):
        say(line.replace("\0", " "))


def _plain(text: str) -> str:
    """Text from a file, with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _short(name: str) -> str:
    plain = _plain(name)
    return plain if len(plain) <= _NAME else f"{plain[: _NAME // 3]}…{plain[-(_NAME * 2 // 3) :]}"


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
