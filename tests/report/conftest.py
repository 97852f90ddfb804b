"""Stores and DomainBed's folders from plain numbers, without any training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from diwa.runs.paths import RunPaths, StorePaths

DOMAINS = ("art", "cartoon", "photo", "sketch")


class FakeStore:
    """Writes the files of a store that `diwa report` reads."""

    def __init__(self, root: Path) -> None:
        self.paths = StorePaths(root)
        self.root = root
        self._write(self.paths.about, {"format": 1})

    def run(
        self,
        target: str | Sequence[str],
        trial: int = 0,
        number: int = 0,
        *,
        data: str = "PACS",
        head: str = "lp",
        algorithm: str = "ERM",
        steps: int = 5001,
        history: Sequence[Mapping[str, Any]] = (),
        finished: bool = True,
        domains: Sequence[str] = DOMAINS,
        seed: int = 0,
        **more: Any,
    ) -> str:
        """One run; its key comes back."""
        unseen = [target] if isinstance(target, str) else list(target)
        key = f"{data}-{'+'.join(unseen)}-{trial}-{number}-{head}-{algorithm}".replace("/", "")
        key += f"-{seed}" if seed else ""
        paths = RunPaths(self.paths.runs / key)
        image = {"size": [224, 224], "channels": 3, "augment": "domainbed"}
        task = {"data": data, "digest": "0", "unseen": unseen, "trial": trial, "image": image}
        init = {"task": task, "backbone": "resnet50.tv_in1k", "head": head, "seed": seed}
        spec = {"init": init, "algorithm": algorithm, "hparams": {"lr": 1e-5 * (number + 1)}}
        self._write(paths.spec, {**spec, "hparams_seed": number, "steps": steps, **more})
        if finished:
            seen = {name: 0.5 for name in domains if name not in unseen}
            rows = history or [{"step": 0, "loss": 0.0, "accuracy": seen}]
            self._write(paths.history, list(rows))
            self._write(paths.result, {"step": 0, "score": 0.5, "accuracy": seen})
        return key

    def soup(
        self,
        target: str,
        trial: int | None,
        scores: Mapping[str, float],
        runs: Sequence[str],
        *,
        data: str = "PACS",
        full: Mapping[str, float] | None = None,
        name: str = "",
        sweep: str = "",
    ) -> None:
        """The result of averaging some runs."""
        told = {
            "sweep": sweep,
            "data": data,
            "target": target,
            "trial": trial,
            "init": "0",
            "images": 100,
            "methods": dict(scores if full is None else full),
            "methods_80": dict(scores),
            "validation": {},
            "members": [{"run": run, "validation": 0.5, "restricted": True} for run in runs],
            "soup": "",
            "restricted_soup": "",
        }
        called = name or f"{sweep}{data}-{target}-t{trial}-{runs[0][-9:]}"
        self._write(self.paths.soup(called).results, told)

    def name(self, **sweeps: Sequence[str]) -> None:
        """Notes which runs belong to sweeps with names."""
        self._write(self.paths.about, {"format": 1, "sweeps": sweeps})

    def pool(
        self, target: str, trial: int, scores: Mapping[str, float], count: int = 2, **about: Any
    ) -> list[str]:
        """Runs and their soup."""
        keys = [self.run(target, trial, number, **about) for number in range(count)]
        self.soup(target, trial, scores, keys, data=about.get("data", "PACS"))
        return keys

    @staticmethod
    def _write(path: Path, told: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told))


@pytest.fixture
def fake_store(tmp_path: Path) -> Callable[..., FakeStore]:
    """Makes an empty store."""

    def made(name: str = "store") -> FakeStore:
        return FakeStore(tmp_path / name)

    return made
