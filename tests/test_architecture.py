"""The rules of the house, as tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import diwa

SOURCE = Path(diwa.__file__).parent

#: A room may import rooms of lower floors and itself; rooms of one floor never each other.
FLOORS = [
    {"atomic", "errors", "progress", "registry", "seeding", "spec"},
    {"weights", "data", "models", "algorithms"},
    {"runs", "evaluate", "soup"},
    {"train"},
    {"sweep"},
    {"analysis", "report"},
    {"cli"},
]


def _floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def _imports(path: Path) -> set[str]:
    """Every room that a file imports, wherever in the file."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("diwa.")}
    return rooms - {"__version__"}


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in _imports(path) - {room}:
        # The ground floor's files may use each other.
        same = _floor(room) == _floor(other) == 0
        assert same or _floor(other) < _floor(room), f"{room} must not import {other}"


def test_the_rule_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from diwa.cli import main\n    import diwa.sweep.plan\n")
    assert _imports(bad) == {"cli", "sweep"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_is_past_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def _loaded(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after running `code`."""
    program = f"{code}\nimport sys; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(run.stdout.decode().split())


def test_importing_diwa_is_light() -> None:
    assert not _loaded("import diwa") & {"torch", "numpy", "torchvision", "timm", "rich", "tyro"}


def test_averaging_files_loads_no_vision_library() -> None:
    code = "import diwa\ndiwa.uniform, diwa.Member, diwa.greedy, diwa.Soup"
    assert not _loaded(code) & {"torchvision", "timm", "matplotlib", "ray", "PIL"}


def test_merging_files_loads_no_torch(make_member: Callable[..., Path], tmp_path: Path) -> None:
    paths = [str(make_member(name, w=[1.0])) for name in "ab"]
    code = f"import diwa\ndiwa.merge({paths}).save({str(tmp_path / 'o.safetensors')!r})"
    heavy = {"torch", "torchvision", "timm", "matplotlib", "ray", "PIL", "rich", "tyro", "pandas"}
    assert not _loaded(code) & heavy


def test_help_loads_no_torch() -> None:
    code = "from diwa.cli.main import main\nmain(['--help'])"
    assert not _loaded(code) & {"torch", "torchvision", "timm"}


def test_every_public_name_is_there_and_documented() -> None:
    for name in diwa.__all__:
        assert getattr(diwa, name) is not None
        assert name == "__version__" or getattr(diwa, name).__doc__


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    seen = {
        f"{node.module}:{alias.asname}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("diwa.")
        for alias in node.names
    }
    assert seen == {f"{home}:{name}" for name, home in diwa._HOMES.items()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sup'"):
        diwa.sup  # noqa: B018
