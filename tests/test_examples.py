"""Every example in a docstring, and the ones in the README, run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import diwa

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(diwa.__path__, "diwa.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, folder: Path, make_member: Callable[..., Path]) -> None:
    given = {
        "example_folder": folder,
        "example_members": [make_member("a", w=[1.0, 2.0]), make_member("b", w=[3.0, 4.0])],
    }
    result = doctest.testmod(importlib.import_module(name), extraglobs=given)
    assert result.failed == 0


def test_the_readme_in_python(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block runs as it stands but for the network, which must be small and local here."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    assert len(blocks) == 1
    code = blocks[0]
    small = {
        'diwa.open_folder("photos")': "diwa.open_folder('photos', size=(32, 32), "
        "allow_small_domains=True)",
        "runs=20": "runs=2, steps=3, backbone='test_resnet', weights='none', size=(32,)",
    }
    for written, here in small.items():
        assert code.count(written) == 1
        code = code.replace(written, here)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(folder)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "soup.safetensors").is_file()
