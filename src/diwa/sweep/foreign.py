"""Folders that DiWA's own code wrote: their runs as members of soups, like runs of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diwa.atomic import write_bytes
from diwa.data.sets import full_names
from diwa.data.transforms import ImageSpec
from diwa.errors import ModelError, StoreError
from diwa.models.network import ModelSpec
from diwa.progress import QUIET, Progress
from diwa.runs.domainbed import DomainBedRun, environments, read_runs
from diwa.runs.paths import RunPaths, SoupPaths, StorePaths
from diwa.runs.spec import InitSpec, RunSpec, TaskSpec
from diwa.runs.store import Run, RunResult, Store
from diwa.seeding import seed_hash
from diwa.soup.uniform import uniform
from diwa.sweep.harvest import Harvest, MemberScore, harvest
from diwa.sweep.pools import pools
from diwa.weights.member import Member
from diwa.weights.source import Source, open_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diwa.data.benchmark import Benchmark
    from diwa.weights.header import TensorInfo

#: Where soups go in such a folder; DomainBed's own tables pass over it.
PLACE = "diwa"
_SIDE = (224, 224)
#: Of a checkpoint, the tensors of the network that predicts; beside them may be a discriminator.
_RESNET = ("conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.", "fc.")
#: Blocks of the third layer, and whether blocks have a third convolution.
_DEPTHS = {(2, False): "resnet18.tv_in1k", (6, True): "resnet50.tv_in1k"}


#: Opens the images of a data set, by DomainBed's name for it.
OpenImages = Callable[[str], "Benchmark"]


class ForeignRun(Run):
    """A finished run of DiWA's code, seen as one of ours."""

    def __init__(self, held: DomainBedRun, benchmark: Benchmark | None) -> None:
        assert held.best is not None
        row, score = held.best
        names = environments(row.data, len(row.outer)) if benchmark is None else benchmark.names
        if len(names) != len(row.outer):
            raise StoreError(
                f"{held.folder}: has {len(row.outer)} domains, its images {len(names)}",
                remedy=f"pass --data with the images of {row.data}",
            )
        task = TaskSpec(
            data=row.data if benchmark is None else benchmark.name,
            digest="" if benchmark is None else benchmark.digest,
            unseen=tuple(names[number] for number in row.unseen),
            holdout=held.holdout,
            image=ImageSpec(size=_SIDE),
        )
        # Runs that name another file, or none, did not start alike.
        init = InitSpec(task=task, weights="domainbed", seed=seed_hash(held.init))
        spec = RunSpec(
            init=init,
            algorithm=row.algorithm,
            hparams=held.hparams or {},
            hparams_seed=row.draw,
            steps=max(one.step for one in held.rows) + 1,
            # Runs of several trials may name one file.
            trial=row.trial or None,
        )
        super().__init__(spec, RunPaths(held.folder))
        self.held = held
        self._classes = None if benchmark is None else benchmark.classes
        self._result = RunResult(
            step=row.step,
            score=score,
            accuracy={
                name: accuracy
                for number, (name, accuracy) in enumerate(zip(names, row.outer, strict=True))
                if number not in row.unseen
            },
        )

    @property
    def finished(self) -> bool:
        """Always; the others are left out before."""
        return True

    @property
    def result(self) -> RunResult:
        """How it came out, by its lines of results."""
        return self._result

    def member(self, which: str = "best") -> Member:
        """Its kept weights; they can be scored if they are a ResNet's and its classes are known.

        Raises:
            StoreError: if others than those of the best validation are asked for.
        """
        if which != "best":
            raise StoreError(f"{self.paths.folder}: did not keep {which!r}")
        source = _network_in(open_source(self.held.weights))
        about = {} if self._classes is None else {"model": _model(source, self._classes)}
        return Member(name=self.name, source=source, score=self._result.score, about=about)


def harvest_foreign(
    folder: Path,
    *,
    images: OpenImages | None = None,
    targets: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    score_target: bool = True,
    out: Path | None = None,
    device: str = "auto",
    progress: Progress = QUIET,
) -> list[Harvest]:
    """Averages the runs of DiWA's code that share data set, unseen domains, trial and start.

    With images, like `harvest`: uniformly and greedily, and scored on the unseen domain.
    Without, only uniformly, for nothing else can be known.

    Args:
        folder: what its sweep wrote to.
        images: opens those of a data set.
        targets: only these unseen domains; all by default.
        leave_out: runs to leave out, by the beginning of their folder's name.
        score_target: whether to score the unseen domain at all.
        out: where soups and results go; a new folder in `folder` by default.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        progress: who hears how it goes.

    Returns:
        One result for each; each also lies beside its soup as results.json.

    Raises:
        DiwaError: if no run can be averaged, or the runs and the images don't belong together.
    """
    held, notes = usable_runs(folder, leave_out)
    for note in notes:
        progress.say(note)
    by_data: dict[str, list[DomainBedRun]] = {}
    for run in held:
        by_data.setdefault(run.rows[0].data, []).append(run)
    results: list[Harvest] = []
    found = 0
    for data, runs in by_data.items():
        benchmark = None if images is None else images(data)
        wanted = [
            run
            for run in (ForeignRun(one, benchmark) for one in runs)
            if not targets or _leaves_out(run, targets)
        ]
        found += len(wanted)
        place = out / data if out is not None and len(by_data) > 1 else out
        if wanted and benchmark is not None:
            store = Store(folder / PLACE)
            store.note()
            results += harvest(
                store,
                benchmark,
                runs=wanted,
                score_target=score_target,
                out=place,
                device=device,
                progress=progress,
            )
        elif wanted:
            results += _averaged(folder, wanted, place, progress)
    if not found:
        raise StoreError(
            f"{folder}: none of its runs leaves {', '.join(targets)} out",
            remedy="choose with --target among their domains",
        )
    return results


def _leaves_out(run: ForeignRun, targets: Sequence[str]) -> bool:
    """Whether a run leaves such domains unseen, by their short names or their folders'."""
    task = run.spec.task
    wanted = full_names(task.data, tuple(targets))
    return full_names(task.data, task.unseen) <= wanted


def usable_runs(
    folder: Path, leave_out: Sequence[str] = ()
) -> tuple[list[DomainBedRun], list[str]]:
    """The finished runs that kept their best weights, by name, and why others are left out.

    Raises:
        StoreError: if there are none.
    """
    every, notes = read_runs(folder)
    held: list[DomainBedRun] = []
    out: dict[str, int] = {}
    for run in sorted(every, key=lambda one: one.folder.name):
        if run.folder.name.startswith(tuple(leave_out) or ("-",)):
            continue
        why = _unusable(run)
        if why:
            out[why] = out.get(why, 0) + 1
        else:
            held.append(run)
    left = [f"{folder}: left out {count} that {why}" for why, count in out.items()]
    if not held:
        more = f" ({', '.join(f'{count} {why}' for why, count in out.items())})" if out else ""
        raise StoreError(
            f"{folder}: has no finished run with weights{more}",
            remedy="let DiWA's train.py finish, without --skip_model_save",
        )
    if any(run.init is None for run in held):
        left.append(
            f"{folder}: runs without --path_for_init have heads that were drawn apart; "
            "diwa check says whether they can be averaged"
        )
    return held, [*notes, *left]


def _unusable(run: DomainBedRun) -> str:
    if not run.done or run.best is None:
        return "did not finish"
    if not run.weights.is_file():
        return f"kept no {run.weights.name}"
    # It trains one network and validates another, which never changes.
    return (
        "are MA's, whose checkpoint is of another network" if run.rows[0].algorithm == "MA" else ""
    )


def _averaged(
    folder: Path, runs: Sequence[ForeignRun], out: Path | None, progress: Progress
) -> list[Harvest]:
    """Uniform averages, of runs that nothing can be scored on."""
    found = [pool for pool in pools(runs) if pool.kind in ("start", "trials")]
    store = StorePaths(folder / PLACE)
    if out is None:
        Store(store.root).note()
    results = []
    for pool in found:
        task, members = pool.runs[0].spec.task, pool.runs
        name = f"{task.data}-{pool.name}"
        paths = store.soup(name)
        if out is not None:
            paths = SoupPaths(out if len(found) == 1 else out / name)
        progress.say(f"{name}: averages {len(members)} runs")
        uniform([run.member() for run in members]).save(paths.uniform, progress=progress)
        result = Harvest(
            data=task.data,
            target="+".join(task.unseen),
            trial=pool.trial,
            init=pool.runs[0].spec.init.key,
            images=0,
            methods={},
            methods_80={},
            validation={},
            members=[
                MemberScore(
                    run=run.name,
                    algorithm=run.spec.algorithm,
                    hparams=run.spec.hparams,
                    trial=run.spec.task.trial,
                    validation=run.result.score,
                    target=None,
                    restricted=False,
                )
                for run in members
            ],
            soup=str(paths.uniform),
            restricted_soup="",
        )
        write_bytes(paths.results, result.to_json())
        results.append(result)
    return results


class _Network(Source):
    """A checkpoint without what is not part of the network that predicts."""

    def __init__(self, held: Source) -> None:
        super().__init__(held.path)
        self._source = held
        self._infos = {n: info for n, info in held.tensors.items() if n.startswith(_RESNET)}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Those of the network."""
        return self._infos

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the checkpoint says."""
        return self._source.metadata

    @property
    def files(self) -> Mapping[str, Path]:
        """The checkpoint."""
        return self._source.files

    def array(self, name: str) -> NDArray:
        """A tensor."""
        return self._source.array(name)


def _network_in(source: Source) -> Source:
    """A ResNet without discriminators and the like; anything else as it is."""
    return _Network(source) if "layer4.0.conv1.weight" in source.tensors else source


def _model(source: Source, classes: Sequence[str]) -> dict[str, Any]:
    """Which network a checkpoint is of, as our files would say.

    Raises:
        ModelError: if it is none that DomainBed gives to images of this size.
    """
    names = source.tensors
    blocks = sum(f"layer3.{number}.conv1.weight" in names for number in range(40))
    backbone = _DEPTHS.get((blocks, "layer3.0.conv3.weight" in names))
    head = names.get("fc.weight")
    if backbone is None or head is None:
        raise ModelError(
            f"{source.path}: not a ResNet-18 or -50 with a linear head, so it can't be scored",
            remedy="leave --data out to average without scores",
        )
    if head.shape[0] != len(classes):
        raise ModelError(
            f"{source.path}: is for {head.shape[0]} classes, the images have {len(classes)}",
            remedy="pass --data with the images it was trained on",
        )
    spec = ModelSpec(backbone=backbone, size=_SIDE, channels=3, classes=tuple(classes))
    return msgspec.to_builtins(spec)
