"""A store: a folder of runs and of the initialisations they share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from diwa.atomic import write_bytes
from diwa.errors import StoreError
from diwa.runs.paths import RunPaths, StorePaths
from diwa.runs.spec import InitSpec, RunSpec
from diwa.spec import Spec
from diwa.weights.member import Member

_FORMAT = 1


class Scored(Spec, frozen=True, kw_only=True):
    """How well an average of a run's iterates does."""

    accuracy: dict[str, float]
    """Of every source domain's validation split."""
    unseen: dict[str, float] = msgspec.field(default_factory=dict)
    """Of the unseen domains' 20 %, where the run was told to look."""

    @property
    def score(self) -> float:
        """The unweighted mean of the source domains' accuracies."""
        return sum(self.accuracy.values()) / len(self.accuracy)


class Averaged(Spec, frozen=True, kw_only=True):
    """How one of the averages of a run's iterates came out."""

    first: int | None = None
    """The step of the first iterate in it; None if there is no such average."""
    last: int | None = None
    """That of the last one."""
    scored: Scored | None = None
    """How well it does."""
    missing: str = ""
    """Why there is none."""


class RunResult(Spec, frozen=True, kw_only=True):
    """How a finished run came out; written last, so its being there means finished."""

    step: int
    """The step whose weights were kept."""
    score: float
    """The mean of the source domains' validation accuracies at that step."""
    accuracy: dict[str, float]
    """Per source domain."""
    averages: dict[str, Averaged] = msgspec.field(default_factory=dict)
    """What came of the averages of its iterates, by name."""


class Row(Spec, frozen=True, kw_only=True):
    """One validation of a run."""

    step: int
    """After which update."""
    loss: float | None
    """The mean training loss since the row before; None if that is no finite number."""
    accuracy: dict[str, float]
    """Of every source domain's validation split."""
    losses: dict[str, float | None] = msgspec.field(default_factory=dict)
    """The mean cross-entropy there, of the same predictions; None if that is no finite number."""
    unseen: dict[str, float] = msgspec.field(default_factory=dict)
    """Of the unseen domains' 20 %, where the run was told to look."""
    averages: dict[str, Scored] = msgspec.field(default_factory=dict)
    """How well those averages of the iterates do that are scored at every validation."""

    @property
    def score(self) -> float:
        """The unweighted mean of the source domains' accuracies."""
        return sum(self.accuracy.values()) / len(self.accuracy)

    @property
    def validation_loss(self) -> float:
        """The unweighted mean of the source domains' losses, which SWAD goes by.

        NaN for a run that has diverged.

        Raises:
            StoreError: if the row is of a version that did not note them.
        """
        if not self.losses:
            raise StoreError(f"the validation at step {self.step} has no losses")
        known = (math.nan if loss is None else loss for loss in self.losses.values())
        return sum(known) / len(self.losses)


class Run:
    """One run on disk."""

    def __init__(self, spec: RunSpec, paths: RunPaths) -> None:
        self.spec = spec
        self.paths = paths

    @property
    def name(self) -> str:
        """The run's key, which is its folder's name."""
        return self.paths.folder.name

    @property
    def finished(self) -> bool:
        """Whether its weights are there for good."""
        return self.paths.result.is_file()

    @property
    def result(self) -> RunResult:
        """How it came out.

        Raises:
            StoreError: if it has not finished.
        """
        if not self.finished:
            raise StoreError(
                f"{self.paths.folder}: not finished", remedy="run the same sweep again"
            )
        return RunResult.from_file(self.paths.result)

    @property
    def history(self) -> list[Row]:
        """Its validations, once it has finished."""
        if not self.paths.history.is_file():
            return []
        return read_rows(self.paths.history.read_bytes(), where=str(self.paths.history))

    def member(self, which: str = "best") -> Member:
        """Weights that it kept, as a member of an average.

        Args:
            which: "best" for those of its best validation; "ma" or "swad" for an average of its
                iterates; "last" or "ma-last" for the end, where it tracked the unseen domain.

        Raises:
            StoreError: if it has not finished, or did not keep them.
        """
        result = self.result
        path = self.paths.kept(which)
        average = result.averages.get(which.removesuffix("-last"))
        if average is not None and average.missing:
            raise StoreError(f"{self.paths.folder}: has no {which} ({average.missing})")
        if not path.is_file():
            remedy = "--track-unseen" if "last" in which else f"--averages {which}"
            raise StoreError(
                f"{self.paths.folder}: did not keep {which!r}",
                remedy=f"train it with {remedy}" if which != "best" else "",
            )
        member = Member.from_file(path)
        score = result.score if which == "best" else member.score
        return replace(member, name=self.name, score=score)

    def tidy(self) -> Run:
        """Removes what only a run under way needs; a kill may leave it in a finished one."""
        if self.finished:
            for path in [self.paths.state, *self.paths.passing(), *self.paths.halves()]:
                path.unlink(missing_ok=True)
        return self

    @contextmanager
    def hold(self, *, wait: bool) -> Iterator[bool]:
        """Keeps other processes from working on this run; gives whether that succeeded."""
        self.paths.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.paths.lock)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


class Store:
    """A folder of runs.

    Args:
        root: the folder; made when something is first written.

    Raises:
        StoreError: if the folder holds something else, or a store of a later version.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.runs()
        []
    """

    def __init__(self, root: Path | str) -> None:
        self.paths = StorePaths(Path(root))
        # Looked at first: what another process begins meanwhile is then seen to be a store.
        taken = self.root.is_file() or self._holds_something()
        about = self._about()
        if about.get("format", _FORMAT) != _FORMAT:
            raise StoreError(
                f"{self.paths.about}: format {about['format']} is not known",
                remedy="update diwa, or choose another --store",
            )
        if taken and not about:
            raise StoreError(
                f"{self.root}: not a store", remedy="give the folder of a sweep, or a new one"
            )

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.paths.root

    def runs(self) -> list[Run]:
        """Every run that was started, by key.

        Raises:
            SpecError: for a run whose specification can't be read.
        """
        found = sorted(self.paths.runs.glob("*/spec.json"))
        return [Run(RunSpec.from_file(path), RunPaths(path.parent)) for path in found]

    def run(self, spec: RunSpec) -> Run:
        """The run with that specification, which may not have been started."""
        return Run(spec, self.paths.run(spec.key))

    def start(self, spec: RunSpec) -> Run:
        """The same, with its specification on disk."""
        self._begin()
        run = self.run(spec)
        if not run.paths.spec.is_file():
            write_bytes(run.paths.spec, spec.to_json())
        return run

    @contextmanager
    def make_init(self, spec: InitSpec) -> Iterator[tuple[Path, bool]]:
        """Gives the place of an initialisation, and whether it is still to be made.

        Of several processes that ask at once, one makes it and the others wait.
        """
        self._begin()
        paths = self.paths.init(spec.key)
        paths.folder.mkdir(parents=True, exist_ok=True)
        if paths.weights.is_file():
            yield paths.weights, False
            return
        with FileLock(paths.lock):
            for left in paths.halves():
                left.unlink()
            if not paths.spec.is_file():
                write_bytes(paths.spec, spec.to_json())
            yield paths.weights, not paths.weights.is_file()

    def note(self, **known: Any) -> None:
        """Remembers something that is no part of any run, e.g. where the images were.

        Mappings are added to what is noted under that name, and lists lengthened by what they lack:
        several processes may note something at once, and nothing of it is lost.

        Raises:
            StoreError: if the store can't be written.
        """
        known["format"] = _FORMAT
        if (held := self._about()) == _joined(held, known):
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with FileLock(self.paths.lock):
                about = _joined(self._about(), known)
                write_bytes(self.paths.about, json.dumps(about, indent=2).encode() + b"\n")
        except OSError as error:
            raise StoreError(
                f"{self.root}: can't be written ({error.strerror or error})",
                remedy="choose another --store",
            ) from error

    def noted(self, name: str) -> Any:
        """What `note` remembered under that name; None if nothing."""
        return self._about().get(name)

    def _begin(self) -> None:
        if not self.paths.about.is_file():
            self.note()

    def _holds_something(self) -> bool:
        """Whether there is more than what a process leaves that was killed as it began a store."""
        if not self.root.is_dir():
            return False
        return not all(self.paths.begun(path) for path in self.root.iterdir())

    def _about(self) -> dict[str, Any]:
        try:
            about = json.loads(self.paths.about.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.paths.about}: can't be read ({error})") from error
        if not isinstance(about, dict):
            raise StoreError(f"{self.paths.about}: is not the note of a store")
        return about


def _joined(old: Any, new: Any) -> Any:
    """What was noted before, and what is noted now."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _joined(old.get(name), value) for name, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return list(dict.fromkeys([*old, *new]))
    return new


def read_rows(text: bytes | str, *, where: str) -> list[Row]:
    """Validations from JSON.

    Raises:
        StoreError: if it does not hold any.
    """
    try:
        return msgspec.json.decode(text, type=list[Row])
    except msgspec.MsgspecError as error:
        raise StoreError(f"{where}: {error}") from error
