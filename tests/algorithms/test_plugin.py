"""An objective from another package, found, run, wrapped, and shown in the documentation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional as F

from diwa.algorithms import ALGORITHMS
from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError
from diwa.runs.store import Store
from diwa.sweep.plan import plan
from diwa.train.loop import train_run
from diwa.train.workplace import Workplace

Fixture = Callable[..., Any]
PLUGIN = Path(__file__).parent / "plugin"
DOCS = Path(__file__).parents[2] / "docs" / "objectives.md"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installer would leave of the package, from its own pyproject.toml."""
    project = (PLUGIN / "pyproject.toml").read_text()
    (name,) = re.findall(r'^name = "(.*)"$', project, flags=re.M)
    ((group, points),) = re.findall(
        r'^\[project\.entry-points\."(.*)"\]\n((?:.+\n)+)', project, flags=re.M
    )
    about = tmp_path / "site" / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{points.replace(chr(34), '')}")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(PLUGIN)
    monkeypatch.delitem(sys.modules, "spectral_decoupling", raising=False)


def test_without_it_the_name_is_unknown() -> None:
    with pytest.raises(SpecError, match="no algorithm is called 'SpectralDecoupling'"):
        ALGORITHMS.get("SpectralDecoupling")


@pytest.mark.usefixtures("installed")
def test_it_is_found_and_known_by_name() -> None:
    assert "SpectralDecoupling" in ALGORITHMS.names()
    assert "SAM+SpectralDecoupling" in ALGORITHMS
    kind = ALGORITHMS.get("SpectralDecoupling")
    assert kind.__module__ == "spectral_decoupling"
    assert {"strength", "rho", "lr"} <= set(ALGORITHMS.get("SAM+SpectralDecoupling").space)
    with pytest.raises(SpecError, match="did you mean 'SpectralDecoupling'"):
        ALGORITHMS.get("SAM+SpectralDecopling")


@pytest.mark.usefixtures("installed")
def test_its_loss(make: Fixture, batch: Fixture) -> None:
    held = batch(0, (4, 3))
    made = make("SpectralDecoupling", 2, strength=0.3)
    logits = made.network(held.x)
    expected = F.cross_entropy(logits, held.y) + 0.3 * (logits**2).sum() / 21
    assert made.loss(held, 0).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["SpectralDecoupling", "SAM+SpectralDecoupling"])
def test_a_run_of_it(name: str, shapes: Benchmark, tiny_sweep: Fixture, tmp_path: Path) -> None:
    here = Workplace(benchmark=shapes, store=Store(tmp_path / "store"), device="cpu")
    first, second = plan(tiny_sweep(algorithm=name, space="extreme"), shapes, device="cpu")
    assert first.hparams["strength"] != second.hparams["strength"]
    assert train_run(first, here).finished


def test_the_documentation_shows_just_this_package() -> None:
    blocks = re.findall(r"^```(toml|python)\n(.*?)^```", DOCS.read_text(), flags=re.M | re.S)
    files = {"toml": "pyproject.toml", "python": "spectral_decoupling.py"}
    assert [kind for kind, _ in blocks] == ["toml", "python"]
    for kind, shown in blocks:
        assert shown == (PLUGIN / files[kind]).read_text()
