"""What can be made of a pool of runs: models to score, and methods that are blends of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from diwa.errors import StoreError
from diwa.evaluate.predict import Weights
from diwa.progress import Progress
from diwa.runs.paths import SoupPaths
from diwa.runs.store import Run
from diwa.soup.greedy import greedy
from diwa.soup.soup import Soup
from diwa.soup.uniform import uniform
from diwa.sweep.judge import Blend, Judge
from diwa.sweep.pools import Pool
from diwa.weights.member import Member

RESTRICTED, UNIFORM, DAGGER = "diwa-restricted", "diwa-uniform", "diwa-dagger"
ENSEMBLE, ENSEMBLE_DAGGER = "ens-diwa", "ens-dagger"
#: Every method, in the order of tables.
METHODS = (
    *("mean", "erm", "swad", "ma", "eoa", "dens", "ens", ENSEMBLE_DAGGER),
    *(RESTRICTED, UNIFORM, DAGGER, ENSEMBLE),
)
_NO_START = "each run has a start of its own, so averages are scored for comparison only"
_NO_SHARED = "runs of several trials have no validation images that none of them was trained on"


@dataclass
class Choices:
    """What was chosen of a pool, before the unseen domain is scored.

    Args:
        pool: the runs.
        models: everything that is scored, by name.
        methods: what they are blended to, in the order of tables.
        validation: what methods score on the images that choices were made by.
        missing: methods that can't be had, and why.
        ranked: the runs in the order of the scores that they were chosen by.
        kept: the runs that the restricted soup kept.
        soup: the file of the uniform average, if there is one.
        restricted: that of the restricted one.
    """

    pool: Pool
    models: dict[str, Weights] = field(default_factory=dict)
    methods: dict[str, Blend] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ranked: tuple[Run, ...] = ()
    kept: frozenset[str] = frozenset()
    soup: Path | None = None
    restricted: Path | None = None


class Chooser:
    """Chooses among the runs of a pool.

    Args:
        pool: the runs.
        paths: where soups go.
        judge: gives the judge, if one is needed at all.
        progress: who hears how it goes.
        oracle: whether to choose by the unseen domain's 20 %, among last checkpoints.

    Raises:
        StoreError: if the runs did not keep what is asked for.
    """

    def __init__(
        self,
        pool: Pool,
        paths: SoupPaths,
        judge: Callable[[], Judge],
        progress: Progress,
        *,
        oracle: bool = False,
    ) -> None:
        self._paths, self._judge, self._progress = paths, judge, progress
        self._oracle = oracle
        scores = {run.name: self._score(run) for run in pool.runs}
        ranked = sorted(pool.runs, key=lambda run: (-scores[run.name], run.name))
        self._members = {
            run.name: replace(
                run.member("last" if oracle else "best"), name=run.name, score=scores[run.name]
            )
            for run in ranked
        }
        self._found = Choices(pool, ranked=tuple(ranked))

    def choose(self) -> Choices:
        """Makes all choices, and writes the soups."""
        {
            "start": self._start,
            "apart": self._apart,
            "several": self._several,
            "trials": self._trials,
        }[self._found.pool.kind]()
        made = self._found.methods
        self._found.methods = {name: made[name] for name in METHODS if name in made}
        return self._found

    def _start(self) -> None:
        """Everything that one pool of runs from one start is good for."""
        found, everyone = self._found, list(self._members.values())
        judge = self._judge()
        trial = found.ranked[0].spec.task.trial
        candidates = iter(range(1, len(everyone) + 1))
        whole = uniform(everyone)
        chosen = greedy(
            everyone,
            score=lambda weights: judge.validation(
                weights,
                trial,
                f"restricted: {next(candidates)} of {len(everyone)}",
                oracle=self._oracle,
            ),
        )
        whole.save(self._paths.uniform)
        chosen.save(self._paths.restricted)
        found.soup, found.restricted = self._paths.uniform, self._paths.restricted
        found.kept = frozenset(member.name for member in chosen.members)
        found.validation = {
            "erm": chosen.trace[0].score,
            RESTRICTED: max(tried.score for tried in chosen.trace if tried.kept),
            UNIFORM: judge.validation(
                dict(whole.tensors()), trial, "uniform: validation", oracle=self._oracle
            ),
        }
        self._single_runs("ens")
        self._along_runs()
        for name, soup in ((RESTRICTED, chosen), (UNIFORM, whole)):
            found.models[name] = soup
            found.methods[name] = Blend((name,))

    def _apart(self) -> None:
        """Runs that each have a start of their own: their average is scored, but nobody's to keep.

        It shows what sharing a start is good for.
        """
        if self._found.pool.trial is None:
            self._all_trials(uniform(list(self._members.values())))
            return
        self._single_runs("dens")
        self._along_runs()
        self._found.models[UNIFORM] = uniform(list(self._members.values()))
        self._found.methods[UNIFORM] = Blend((UNIFORM,))
        self._found.missing[RESTRICTED] = _NO_START

    def _several(self) -> None:
        """The average of each start's runs; their predictions are averaged."""
        by_start: dict[str, list[Member]] = {}
        for run in self._found.ranked:
            by_start.setdefault(run.spec.init.key, []).append(self._members[run.name])
        trial = self._found.pool.trial
        # Other trials have other averages of the same starts.
        soups = {
            f"average of {key[:8]} in trial {trial}": uniform(held)
            for key, held in by_start.items()
        }
        self._found.models.update(soups)
        self._found.methods[ENSEMBLE] = Blend(tuple(soups), together=True)

    def _trials(self) -> None:
        """All runs from one start, whatever each was trained on."""
        whole = uniform(list(self._members.values()))
        whole.save(self._paths.uniform, progress=self._progress)
        self._found.soup = self._paths.uniform
        self._all_trials(whole)

    def _all_trials(self, whole: Soup) -> None:
        names = tuple(self._members)
        self._found.models |= {**self._members, DAGGER: whole}
        self._found.methods[ENSEMBLE_DAGGER] = Blend(names, together=True)
        self._found.methods[DAGGER] = Blend((DAGGER,))
        self._found.missing[RESTRICTED] = _NO_SHARED

    def _single_runs(self, ensemble: str) -> None:
        names = tuple(self._members)
        self._found.models.update(self._members)
        self._found.methods |= {
            "mean": Blend(names),
            "erm": Blend(names[:1]),
            ensemble: Blend(names, together=True),
        }

    def _along_runs(self) -> None:
        """The averages of their own iterates that runs kept: the best, and for MA all of them."""
        for average in ("swad", "ma"):
            asked = [run for run in self._found.ranked if average in run.spec.averages]
            held = [run for run in asked if not run.result.averages[average].missing]
            if asked and not held:
                why = asked[0].result.averages[average].missing
                self._found.missing[average] = f"none of {len(asked)} runs has it; {why}"
            if not held:
                continue
            best = max(held, key=lambda run: self._score(run, average))
            wanted = held if average == "ma" else [best]
            which = "ma-last" if self._oracle and average == "ma" else average
            models = {f"{run.name} ({average})": run.member(which) for run in wanted}
            self._found.models |= models
            self._found.methods[average] = Blend((f"{best.name} ({average})",))
            if average == "ma" and len(held) > 1:
                self._found.methods["eoa"] = Blend(tuple(models), together=True)

    def _score(self, run: Run, average: str = "") -> float:
        """What a run, or one of its averages, is chosen by."""
        if average:
            scored = run.result.averages[average].scored
            if self._oracle and average == "ma":
                scored = run.history[-1].averages[average]
            assert scored is not None
            return self._oracle_score(run, scored.unseen) if self._oracle else scored.score
        if self._oracle:
            return self._oracle_score(run, run.history[-1].unseen if run.history else {})
        return run.result.score

    def _oracle_score(self, run: Run, unseen: Mapping[str, float]) -> float:
        if not unseen:
            raise StoreError(
                f"{run.paths.folder}: did not track the unseen domain",
                remedy="train it with --track-unseen",
            )
        return sum(unseen.values()) / len(unseen)
