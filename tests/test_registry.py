"""Names of plug-ins: built-ins, entry points, and what a typo gets to hear."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diwa.errors import SpecError
from diwa.registry import Registry

GROUP = "diwa.tests.shapes"


def shapes(**more: str) -> Registry:
    return Registry("shape", {"path": "pathlib:Path", **more}, group=GROUP)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another package, which adds 'square' and claims to have a better 'path'."""
    (tmp_path / "other_shapes.py").write_text("class Square: pass\nPath = None\n")
    about = tmp_path / "other_shapes-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-shapes\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{GROUP}]\nsquare = other_shapes:Square\npath = other_shapes:Path\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "other_shapes", raising=False)
    return tmp_path


def test_a_built_in_is_imported_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "diwa_lazy_shape.py").write_text("class Circle: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = shapes(circle="diwa_lazy_shape:Circle")
    assert registry.names() == ["circle", "path"]
    assert "diwa_lazy_shape" not in sys.modules
    circle = registry.get("circle")
    assert circle is sys.modules.pop("diwa_lazy_shape").Circle


def test_the_list_is_a_copy() -> None:
    built_in = {"path": "pathlib:Path"}
    registry = Registry("shape", built_in, group=GROUP)
    built_in["more"] = "pathlib:PurePath"
    assert registry.names() == ["path"]


@pytest.mark.usefixtures("installed")
def test_other_packages_add_theirs_by_entry_point() -> None:
    registry = shapes()
    assert registry.names() == ["path", "square"]
    assert "other_shapes" not in sys.modules
    assert registry.get("square").__name__ == "Square"


@pytest.mark.usefixtures("installed")
def test_no_package_replaces_a_built_in() -> None:
    assert shapes().get("path") is Path


@pytest.mark.usefixtures("installed")
def test_an_entry_point_of_another_group_is_unknown() -> None:
    with pytest.raises(SpecError, match="no shape is called 'square'"):
        Registry("shape", {}, group=GROUP + ".others").get("square")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("typo", "meant"), [("paht", "path"), ("sqare", "square")])
def test_a_typo_gets_the_nearest_name_and_all_of_them(typo: str, meant: str) -> None:
    with pytest.raises(SpecError) as caught:
        shapes().get(typo)
    assert str(caught.value) == (
        f"no shape is called '{typo}'; did you mean '{meant}'? known: path, square"
    )


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(SpecError) as caught:
        shapes().get("zzzzzz")
    assert str(caught.value) == "no shape is called 'zzzzzz'; known: path"
