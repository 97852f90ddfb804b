"""Diverse weight averaging: many fine-tuned models in, one more robust model out.

Every public name is listed here and imported when it is first used, so that `import diwa` is
instant and a program pays only for what it does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diwa.analysis.check import check as check
    from diwa.analysis.verdict import Verdict as Verdict
    from diwa.data.benchmark import Benchmark as Benchmark
    from diwa.data.benchmark import Domain as Domain
    from diwa.data.benchmark import open_folder as open_folder
    from diwa.data.get import get_data as get_data
    from diwa.data.install import add_data as add_data
    from diwa.data.known import open_data as open_data
    from diwa.data.sets import DATASETS as DATASETS
    from diwa.data.split import Split as Split
    from diwa.data.split import split as split
    from diwa.data.transforms import ImageSpec as ImageSpec
    from diwa.errors import DiwaError as DiwaError
    from diwa.evaluate.predict import predict as predict
    from diwa.evaluate.predictions import Predictions as Predictions
    from diwa.evaluate.predictions import ensemble as ensemble
    from diwa.evaluate.retrain import Retrained as Retrained
    from diwa.evaluate.retrain import retrain as retrain
    from diwa.models.network import ModelSpec as ModelSpec
    from diwa.models.network import Network as Network
    from diwa.models.network import build_network as build_network
    from diwa.models.network import restore_network as restore_network
    from diwa.models.recalibrate import recalibrate_batchnorm as recalibrate_batchnorm
    from diwa.report.record import Record as Record
    from diwa.report.report import Report as Report
    from diwa.report.report import tabulate as tabulate
    from diwa.runs.spec import InitSpec as InitSpec
    from diwa.runs.spec import RunSpec as RunSpec
    from diwa.runs.spec import TaskSpec as TaskSpec
    from diwa.runs.store import Run as Run
    from diwa.runs.store import Store as Store
    from diwa.soup.greedy import greedy as greedy
    from diwa.soup.merge import merge as merge
    from diwa.soup.methods.base import Method as Method
    from diwa.soup.methods.base import Stretch as Stretch
    from diwa.soup.soup import Soup as Soup
    from diwa.soup.uniform import uniform as uniform
    from diwa.sweep.harvest import Harvest as Harvest
    from diwa.sweep.harvest import harvest as harvest
    from diwa.sweep.plan import plan as plan
    from diwa.sweep.retrain import RetrainedPool as RetrainedPool
    from diwa.sweep.retrain import retrain_runs as retrain_runs
    from diwa.sweep.run import run_sweep as run_sweep
    from diwa.sweep.spec import SweepSpec as SweepSpec
    from diwa.train.loop import train_run as train_run
    from diwa.train.workplace import Workplace as Workplace
    from diwa.weights.describe import Description as Description
    from diwa.weights.describe import describe as describe
    from diwa.weights.member import Member as Member
    from diwa.weights.running import RunningMean as RunningMean
    from diwa.weights.source import Source as Source
    from diwa.weights.source import open_source as open_source

__version__ = "0.1.0"

_HOMES = {
    "Benchmark": "diwa.data.benchmark",
    "DATASETS": "diwa.data.sets",
    "Description": "diwa.weights.describe",
    "DiwaError": "diwa.errors",
    "Domain": "diwa.data.benchmark",
    "Harvest": "diwa.sweep.harvest",
    "ImageSpec": "diwa.data.transforms",
    "InitSpec": "diwa.runs.spec",
    "Member": "diwa.weights.member",
    "Method": "diwa.soup.methods.base",
    "ModelSpec": "diwa.models.network",
    "Network": "diwa.models.network",
    "Predictions": "diwa.evaluate.predictions",
    "Record": "diwa.report.record",
    "Report": "diwa.report.report",
    "Retrained": "diwa.evaluate.retrain",
    "RetrainedPool": "diwa.sweep.retrain",
    "Run": "diwa.runs.store",
    "RunSpec": "diwa.runs.spec",
    "RunningMean": "diwa.weights.running",
    "Soup": "diwa.soup.soup",
    "Source": "diwa.weights.source",
    "Split": "diwa.data.split",
    "Store": "diwa.runs.store",
    "Stretch": "diwa.soup.methods.base",
    "SweepSpec": "diwa.sweep.spec",
    "TaskSpec": "diwa.runs.spec",
    "Verdict": "diwa.analysis.verdict",
    "Workplace": "diwa.train.workplace",
    "add_data": "diwa.data.install",
    "build_network": "diwa.models.network",
    "check": "diwa.analysis.check",
    "describe": "diwa.weights.describe",
    "ensemble": "diwa.evaluate.predictions",
    "get_data": "diwa.data.get",
    "greedy": "diwa.soup.greedy",
    "harvest": "diwa.sweep.harvest",
    "merge": "diwa.soup.merge",
    "open_data": "diwa.data.known",
    "open_folder": "diwa.data.benchmark",
    "open_source": "diwa.weights.source",
    "plan": "diwa.sweep.plan",
    "predict": "diwa.evaluate.predict",
    "recalibrate_batchnorm": "diwa.models.recalibrate",
    "restore_network": "diwa.models.network",
    "retrain": "diwa.evaluate.retrain",
    "retrain_runs": "diwa.sweep.retrain",
    "run_sweep": "diwa.sweep.run",
    "split": "diwa.data.split",
    "tabulate": "diwa.report.report",
    "train_run": "diwa.train.loop",
    "uniform": "diwa.soup.uniform",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diwa' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
