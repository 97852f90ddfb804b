"""The hub, as far as one gets without a network: its package stood in for by a small one."""

from __future__ import annotations

import fnmatch
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from diwa.errors import WeightsError
from diwa.weights import files
from diwa.weights.hub import HubAddress, fetch
from diwa.weights.source import open_source


class _HTTPError(OSError):
    """As the package has it: more kinds than these few, all of them this."""


class _NotFound(_HTTPError):
    pass


class _Gated(_NotFound):
    pass


class _NoRevision(_HTTPError):
    pass


class _NotHere(FileNotFoundError):
    pass


class _Invalid(ValueError):
    pass


class Hub:
    """What the package does: patterns, revisions, a cache that keeps what was asked for before."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.repos: dict[str, dict[str, bytes]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def snapshot_download(
        self,
        repo_id: str,
        *,
        revision: str | None = None,
        allow_patterns: list[str],
        ignore_patterns: str | None = None,
    ) -> str:
        self.calls.append((repo_id, revision, tuple(allow_patterns)))
        if self.error:
            raise self.error
        if repo_id not in self.repos:
            raise _NotFound("404 Client Error.\n\nRepository Not Found")
        if revision not in (None, "main", "refs/pr/1"):
            raise _NoRevision("404 Client Error.\n\nRevision Not Found")
        folder = self.cache / repo_id.replace("/", "--")
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.repos[repo_id].items():
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns)
            if wanted and not (ignore_patterns and fnmatch.fnmatch(name, ignore_patterns)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        return str(folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub(tmp_path / "cache")
    package: Any = ModuleType("huggingface_hub")
    package.snapshot_download = stand_in.snapshot_download
    errors: Any = ModuleType("huggingface_hub.errors")
    package.errors = errors
    errors.HfHubHTTPError = _HTTPError
    errors.RepositoryNotFoundError = _NotFound
    errors.GatedRepoError = _Gated
    errors.RevisionNotFoundError = _NoRevision
    errors.LocalEntryNotFoundError = _NotHere
    errors.HFValidationError = _Invalid
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return stand_in


def weights(folder: Path, value: float, *, pickled: bool = False) -> bytes:
    path = folder / "made"
    if pickled:
        torch.save({"w": torch.tensor(value)}, path)
    else:
        files.write(path, {"w": torch.tensor(value)}, {})
    content = path.read_bytes()
    path.unlink()
    return content


def refused(text: str, *words: str) -> None:
    with pytest.raises(WeightsError) as caught:
        fetch(text)
    said = str(caught.value)
    assert said.startswith(f"{text}: ")
    assert "\n" not in said
    for word in words:
        assert word in said, said


def test_our_stand_in_has_the_errors_of_the_real_package() -> None:
    """Else these tests would prove nothing of it."""
    errors = pytest.importorskip("huggingface_hub.errors")
    assert issubclass(errors.GatedRepoError, errors.RepositoryNotFoundError)
    assert issubclass(errors.RepositoryNotFoundError, errors.HfHubHTTPError)
    assert issubclass(errors.RevisionNotFoundError, errors.HfHubHTTPError)
    assert not issubclass(errors.RevisionNotFoundError, errors.RepositoryNotFoundError)
    assert issubclass(errors.LocalEntryNotFoundError, FileNotFoundError)
    assert issubclass(errors.HFValidationError, ValueError)


def test_the_real_package_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refused("hf://nobody/nothing-of-the-kind", "can't be downloaded", "check the network")
    refused("hf://nobody/nothing-of-the-kind/x.safetensors", "can't be downloaded")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://a/b", HubAddress("a/b")),
        ("hf://a-1/b.c_d", HubAddress("a-1/b.c_d")),
        ("hf://a/b@main", HubAddress("a/b", "main")),
        ("hf://a/b@refs%2Fpr%2F1", HubAddress("a/b", "refs/pr/1")),
        ("hf://a/b/x.safetensors", HubAddress("a/b", None, "x.safetensors")),
        ("hf://a/b@v1/sub/x.pt", HubAddress("a/b", "v1", "sub/x.pt")),
    ],
)
def test_addresses(text: str, address: HubAddress) -> None:
    assert HubAddress.parse(text) == address


@pytest.mark.parametrize(
    "text", ["hf://", "hf://a", "hf://a/", "hf:///b", "hf://a/b@", "hf://a/b@v/", "hf://a b/c"]
)
def test_what_is_no_address(text: str) -> None:
    refused(text, "not an address on the hub; write hf://owner/repo")


def test_a_model(hub: Hub, tmp_path: Path) -> None:
    hub.repos["a/b"] = {
        "model.safetensors": weights(tmp_path, 1.0),
        "config.json": b"{}",
        "pytorch_model.bin": b"not wanted",
        "onnx/model.safetensors": b"not wanted",
        "README.md": b"not wanted",
    }
    folder = fetch("hf://a/b")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert open_source(folder).array("w") == 1
    assert [call[:2] for call in hub.calls] == [("a/b", None)]


def test_a_sharded_model(hub: Hub, tmp_path: Path) -> None:
    hub.repos["a/b"] = {
        "model-00001-of-00001.safetensors": weights(tmp_path, 2.0),
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
        ).encode(),
    }
    assert open_source(fetch("hf://a/b@refs%2Fpr%2F1")).array("w") == 2
    assert hub.calls[0][:2] == ("a/b", "refs/pr/1")


def test_an_old_model_without_safetensors(hub: Hub, tmp_path: Path) -> None:
    hub.repos["a/b"] = {
        "pytorch_model.bin": weights(tmp_path, 3.0, pickled=True),
        "config.json": b"{}",
        "training_args.bin": b"not wanted",
    }
    folder = fetch("hf://a/b")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "pytorch_model.bin"]
    assert open_source(folder).array("w") == 3


def test_one_file(hub: Hub, tmp_path: Path) -> None:
    hub.repos["a/b"] = {
        "sub/x.safetensors": weights(tmp_path, 4.0),
        "model.safetensors": b"not wanted",
    }
    path = fetch("hf://a/b@main/sub/x.safetensors")
    assert open_source(path).array("w") == 4
    assert hub.calls == [("a/b", "main", ("sub/x.safetensors",))]
    assert not (path.parents[1] / "model.safetensors").exists()


def test_what_is_not_there(hub: Hub) -> None:
    hub.repos["a/b"] = {"README.md": b""}
    refused("hf://a/c", "no such repository", "hf auth login")
    refused("hf://a/b@v9", "a/b has no revision 'v9'")
    refused("hf://a/b/x.pt", "a/b has no file 'x.pt'")
    refused("hf://a/b", "neither safetensors nor pytorch_model.bin", "hf://owner/repo/file")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (_Gated("401\n\nask"), ["asked for access", "ask for it"]),
        (_NotHere("no connection\nat all"), ["can't be downloaded (no connection)", "network"]),
        (_HTTPError("503 Server Error\nlater"), ["can't be downloaded (503 Server Error)"]),
        (ConnectionError(""), ["can't be downloaded (ConnectionError)"]),
        (OSError(28, "No space left on device"), ["No space left on device"]),
        (_Invalid("Repo id must\nbe"), ["not an address on the hub"]),
    ],
)
def test_what_may_go_wrong(hub: Hub, error: Exception, words: list[str]) -> None:
    hub.error = error
    refused("hf://a/b", *words)
    refused("hf://a/b/x.pt", *words)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("hf://a/b", "needs the package huggingface_hub", "pip install 'diwa[hub]'")
