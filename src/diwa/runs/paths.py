"""The only file that knows the names of files in a store."""

from __future__ import annotations

from pathlib import Path


class RunPaths:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = folder / "spec.json"
        self.history = folder / "history.json"
        self.weights = folder / "weights.safetensors"
        self.result = folder / "result.json"
        self.state = folder / "state.safetensors"
        self.lock = folder / ".lock"

    def best(self, step: int) -> Path:
        """The best weights so far, while the run goes on."""
        return self.folder / f"best-{step}.safetensors"

    def all_best(self) -> list[Path]:
        """Every file of best weights that is there."""
        return list(self.folder.glob("best-*.safetensors"))

    def kept(self, which: str) -> Path:
        """Weights that a finished run keeps: "best", "last", or those of one of its averages."""
        return self.weights if which == "best" else self.folder / f"weights-{which}.safetensors"

    def part(self, average: str, what: str, number: int) -> Path:
        """What one of the averages keeps while the run goes on."""
        return self.folder / f"part-{average}-{what}-{number}.safetensors"

    def passing(self) -> list[Path]:
        """Every file of weights that only a run under way needs; what a kill left half written."""
        # Not the specification: another process may be writing it, which takes no lock.
        halves = [half for half in self.halves() if not half.name.startswith(f".{self.spec.name}.")]
        return [*self.all_best(), *self.folder.glob("part-*.safetensors"), *halves]

    def halves(self) -> list[Path]:
        """What a kill left half written, and what is being written."""
        return _halves(self.folder)


class InitPaths:
    """The files of one initialisation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = folder / "spec.json"
        self.weights = folder / "weights.safetensors"
        self.lock = folder / ".lock"

    def halves(self) -> list[Path]:
        """What a kill left half written."""
        return _halves(self.folder)


class SoupPaths:
    """The files of one soup and its scores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uniform = folder / "soup.safetensors"
        self.restricted = folder / "restricted.safetensors"
        self.results = folder / "results.json"


class RetrainedPaths:
    """The files that last-layer retraining makes of one pool of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results.json"

    def model(self, percent: int) -> Path:
        """The average with the last layer that so much of the domain trained."""
        return self.folder / f"soup-{percent}.safetensors"


def _halves(folder: Path) -> list[Path]:
    return list(folder.glob(".*.part"))


class StorePaths:
    """The folders of a store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.about = root / "store.json"
        self.lock = root / ".store.json.lock"
        self.runs = root / "runs"
        self.inits = root / "inits"
        self.retrained = root / "retrained"

    def begun(self, path: Path) -> bool:
        """Whether something in the folder only shows that a store was being made there."""
        return path.name.startswith(f".{self.about.name}.")

    def run(self, key: str) -> RunPaths:
        """The files of the run with that key."""
        return RunPaths(self.runs / key)

    def init(self, key: str) -> InitPaths:
        """The files of the initialisation with that key."""
        return InitPaths(self.inits / key)

    def soup(self, name: str) -> SoupPaths:
        """The files of the soup with that name."""
        return SoupPaths(self.root / "soups" / name)

    def features(self, key: str) -> Path:
        """The features with that key."""
        return self.root / "features" / f"{key}.safetensors"
