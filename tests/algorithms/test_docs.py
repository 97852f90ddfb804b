"""docs/objectives.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from diwa.algorithms import ALGORITHMS, WRAPPERS
from diwa.algorithms.erm import SHARED
from diwa.algorithms.hparams import Between, Choice, Distribution, Hyperparameter, PowerOf

TEXT = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()


def spelt(held: Distribution | None) -> str:
    if held is None:
        return ""
    if isinstance(held, Choice):
        return "{" + ", ".join(f"{value:g}" for value in held.values) + "}"
    assert isinstance(held, PowerOf | Between)
    text = f"U({held.low:g}, {held.high:g})"
    if isinstance(held, PowerOf):
        text = f"{held.base:g}^{text}"
    return f"int({text})" if held.whole else text


def row(of: str, name: str, held: Hyperparameter) -> str:
    cells = [
        of,
        f"`{name}`",
        f"{held.default:g}",
        spelt(held.mild),
        spelt(held.extreme),
        f"`{held.seed_name or name}`",
    ]
    return "| " + " | ".join(cells).replace("|  |", "| |") + " |"


def test_every_hyperparameter_has_its_row_and_no_other_has_one() -> None:
    expected = {row("all", name, held) for name, held in SHARED.items()}
    for algorithm in ALGORITHMS.names():
        known = SHARED
        if algorithm in WRAPPERS:
            known = ALGORITHMS.get("ERM").space
        for name, held in ALGORITHMS.get(algorithm).space.items():
            same = known.get(name)
            # A stricter bound on a shared one needs no row: nothing else is drawn.
            if same is None or (same.mild, same.seed_name) != (held.mild, held.seed_name):
                expected.add(row(f"`{algorithm}`", name, held))
    _, _, table = TEXT.partition("## Hyperparameters")
    found = [line for line in table.splitlines() if line.startswith(("| `", "| all"))]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_every_objective_has_its_formula() -> None:
    table, _, _ = TEXT.partition("## Hyperparameters")
    names = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    plain = {name for name in ALGORITHMS.names() if name not in WRAPPERS}
    assert names == plain | {f"{wrapper}+NAME" for wrapper in WRAPPERS.names()}
