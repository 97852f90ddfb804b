"""The loop: what it computes, when it validates, and that nothing can break it off for good."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.transforms import v2

from diwa.data.benchmark import Benchmark, Domain
from diwa.errors import DataError, StoreError
from diwa.evaluate.predictions import Predictions
from diwa.runs.spec import RunSpec
from diwa.runs.store import Row, Run, Store
from diwa.seeding import seed_hash
from diwa.sweep.plan import plan
from diwa.sweep.spec import SweepSpec
from diwa.train.init import shared_init
from diwa.train.loop import train_run
from diwa.train.workplace import Workplace
from diwa.weights import files

Sweep = Callable[..., SweepSpec]


def outcome(run: Run) -> dict[str, bytes]:
    """Every byte that a finished run left, by file."""
    return {path.name: path.read_bytes() for path in run.paths.folder.iterdir() if path.is_file()}


@pytest.fixture
def spec(shapes: Benchmark, tiny_sweep: Sweep) -> RunSpec:
    return plan(tiny_sweep(), shapes, device="cpu")[0]


@pytest.fixture
def place(shapes: Benchmark, tmp_path: Path) -> Workplace:
    return Workplace(benchmark=shapes, store=Store(tmp_path / "store"), device="cpu")


def test_a_finished_run_holds_just_its_results(spec: RunSpec, place: Workplace) -> None:
    run = train_run(spec, place)
    assert set(outcome(run)) == {
        ".lock",
        "spec.json",
        "history.json",
        "weights.safetensors",
        "result.json",
    }
    assert RunSpec.from_file(run.paths.spec) == spec
    assert run.name == spec.key


def test_validates_by_the_protocols_schedule(spec: RunSpec, place: Workplace) -> None:
    run = train_run(spec, place)
    assert [row.step for row in run.history] == [0, 2, 4]
    longer = RunSpec.from_json(spec.to_json().replace(b'"steps": 5,', b'"steps": 4,'))
    assert [row.step for row in train_run(longer, place).history] == [0, 2, 3]


def test_equals_a_naive_loop(spec: RunSpec, place: Workplace, shapes: Benchmark) -> None:
    """The protocol written down plainly: timm's own network, nothing folded, plain Adam."""
    init = shared_init(spec.init, place)
    network: Any = timm.create_model("test_resnet", num_classes=2)
    network.load_state_dict(files.read(init))
    network.train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    adam = torch.optim.Adam(
        network.parameters(), lr=1e-3, weight_decay=spec.hparams["weight_decay"]
    )
    augment = v2.Compose(
        [
            v2.RandomResizedCrop((32, 32), scale=(0.7, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.3, 0.3, 0.3, 0.3),
            v2.RandomGrayscale(0.1),
        ]
    )
    mean = torch.tensor(network.pretrained_cfg["mean"]).view(1, 3, 1, 1)
    std = torch.tensor(network.pretrained_cfg["std"]).view(1, 3, 1, 1)
    losses = []
    for step in range(spec.steps):
        images, labels = [], []
        for number, name in enumerate(["cartoon", "photo"]):
            domain = shapes[name]
            inner = shapes.split(name, trial=0).inner
            seed = seed_hash(spec.seed, "batch", number, step)
            for pick in np.random.RandomState(seed).randint(len(inner), size=4).tolist():
                torch.manual_seed(seed_hash(spec.seed, "augment", step, len(images)))
                seen = augment(Image.fromarray(domain.images[int(inner[pick])]))
                images.append(torch.from_numpy(np.array(seen)).permute(2, 0, 1))
                labels.append(int(domain.labels[inner[pick]]))
        x = (torch.stack(images).float() / 255 - mean) / std
        torch.manual_seed(seed_hash(spec.seed, "step", step))
        features = network.forward_head(network.forward_features(x), pre_logits=True)
        dropped = F.dropout(features, spec.hparams["dropout"])
        loss = F.cross_entropy(network.get_classifier()(dropped), torch.tensor(labels))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    run = train_run(spec, place)
    ours = [row.loss for row in run.history]
    naive = [losses[0], (losses[1] + losses[2]) / 2, (losses[3] + losses[4]) / 2]
    assert ours == pytest.approx(naive, rel=1e-4)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    spec: RunSpec, place: Workplace, shapes: Benchmark, tmp_path: Path
) -> None:
    again = Workplace(benchmark=shapes, store=Store(tmp_path / "again"), device="cpu")
    first, second = train_run(spec, place), train_run(spec, again)
    assert outcome(first) == outcome(second)
    other = RunSpec.from_json(
        spec.to_json().replace(f'"seed": {spec.seed},'.encode(), b'"seed": 12345,')
    )
    third = train_run(other, place)
    assert outcome(third)["weights.safetensors"] != outcome(first)["weights.safetensors"]


class _Died(BaseException):
    """As sudden as a kill: nothing may catch it to clean up a run."""


def test_dying_at_any_write_loses_nothing(
    spec: RunSpec,
    place: Workplace,
    shapes: Benchmark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stops at each single rename in turn, before it and after it, then goes on."""
    expected = outcome(train_run(spec, place))
    rename = Path.replace
    survived = 0
    for when in range(60):
        store = Store(tmp_path / f"store{when}")
        here = Workplace(benchmark=shapes, store=store, device="cpu", save_every=0)
        calls = 0

        def dying(self: Path, target: Path, when: int = when) -> Path:
            nonlocal calls
            calls += 1
            if calls == when // 2 + 1 and when % 2 == 0:
                raise _Died
            result = rename(self, target)
            if calls == when // 2 + 1:
                raise _Died
            return result

        monkeypatch.setattr(Path, "replace", dying)
        try:
            train_run(spec, here)
            survived += 1
        except _Died:
            pass
        monkeypatch.setattr(Path, "replace", rename)
        assert outcome(train_run(spec, here)) == expected, f"after dying at {when}"
        if survived:
            break
    assert survived, "the run renames more files than this test stops at"


_KILLED = """
import sys
from pathlib import Path
from typing import Any
import diwa
from diwa.runs.spec import RunSpec
root, store, spec = sys.argv[1:]
images = diwa.open_folder(root, size=(32, 32), allow_small_domains=True)
place = diwa.Workplace(benchmark=images, store=diwa.Store(store), device="cpu", save_every=0.05)
print("ready", flush=True)
diwa.train_run(RunSpec.from_file(Path(spec)), place)
print("finished", flush=True)
"""


def _start(folder: Path, store: Path, spec: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", _KILLED, str(folder), str(store), str(spec)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _long(spec: RunSpec) -> RunSpec:
    text = spec.to_json().replace(b'"steps": 5,', b'"steps": 60,')
    return RunSpec.from_json(text.replace(b'"eval_every": 2,', b'"eval_every": 7,'))


def test_sigkill_and_resume_give_the_bytes_of_an_unbroken_run(
    spec: RunSpec, place: Workplace, folder: Path, tmp_path: Path
) -> None:
    long = _long(spec)
    path = tmp_path / "spec.json"
    path.write_bytes(long.to_json())
    broken = Store(tmp_path / "broken")
    finished, kills = False, 0
    for after in (0.4, 0.9, 0.6, 1.3, 0.8, 60):
        process = _start(folder, broken.root, path)
        try:
            output, errors = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            continue
        assert "finished" in output, errors
        finished = True
        break
    assert finished
    assert kills
    # The other process may use another number of threads only if this machine changes: same bytes.
    assert outcome(broken.run(long)) == outcome(train_run(long, place))


def test_ctrl_c_saves_and_the_next_start_goes_on(
    spec: RunSpec, place: Workplace, shapes: Benchmark, tmp_path: Path
) -> None:
    class Interrupting:
        def after_step(self, step: int, network: object) -> None:
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)

        def after_validation(self, row: Row, network: object) -> None:
            pass

    here = Workplace(benchmark=shapes, store=Store(tmp_path / "stopped"), device="cpu")
    before = signal.getsignal(signal.SIGINT)  # in a background job it is to ignore the signal
    with pytest.raises(KeyboardInterrupt):
        train_run(spec, here, observers=[Interrupting()])
    stopped = here.store.run(spec)
    assert stopped.paths.state.is_file()
    assert not stopped.finished
    assert files.about(stopped.paths.state)["position"]["step"] == 3
    assert outcome(train_run(spec, here)) == outcome(train_run(spec, place))
    assert signal.getsignal(signal.SIGINT) is before


def test_keeps_the_first_of_equally_good_checkpoints(
    spec: RunSpec, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = iter([1, 2, 2])

    def scripted(self: object, sources: list, augmented: int | None = None) -> dict:
        del augmented
        logits = torch.tensor([[1.0, 0.0]] * 3)
        labels = torch.ones(3, dtype=torch.int64)
        if sources:
            labels[: next(right)] = 0
        return {"cartoon": Predictions(logits, labels)} if sources else {}

    monkeypatch.setattr("diwa.train.loop._Training._says", scripted)
    assert train_run(spec, place).result.step == 2


def test_the_score_is_the_unweighted_mean_over_domains() -> None:
    row = Row(step=0, loss=0.0, accuracy={"large": 1.0, "small": 0.0})
    assert row.score == 0.5


def _forbidden(benchmark: Benchmark, name: str) -> Benchmark:
    """The benchmark, with one domain whose images can't be looked at."""

    def load() -> tuple[object, object]:
        raise AssertionError(f"{name} was read")

    domains = [
        Domain(name, domain.labels, load) if domain.name == name else domain  # pyright: ignore
        for domain in benchmark
    ]
    return Benchmark(benchmark.name, benchmark.classes, domains, digest=benchmark.digest)


def test_the_unseen_domain_is_never_read(spec: RunSpec, shapes: Benchmark, tmp_path: Path) -> None:
    blind = Workplace(
        benchmark=_forbidden(shapes, "sketch"), store=Store(tmp_path / "store"), device="cpu"
    )
    assert train_run(spec, blind).finished
    peeking = RunSpec.from_json(
        spec.to_json().replace(b'"track_unseen": false', b'"track_unseen": true')
    )
    with pytest.raises(AssertionError, match="sketch was read"):
        train_run(peeking, blind)


def test_tracking_the_unseen_domain_is_recorded(
    shapes: Benchmark, place: Workplace, tiny_sweep: Sweep
) -> None:
    spec = plan(tiny_sweep(track_unseen=True), shapes, device="cpu")[0]
    rows = train_run(spec, place).history
    assert all(set(row.unseen) == {"sketch"} for row in rows)
    assert all(set(row.accuracy) == {"cartoon", "photo"} for row in rows)


def test_validation_reads_only_what_the_sources_held_out(
    spec: RunSpec, place: Workplace, shapes: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    from diwa.train import loop

    predict = loop.predict_network

    def counting(network: Any, source: Any, *rest: Any, **more: Any) -> object:
        scored.append(len(source.positions))
        return predict(network, source, *rest, **more)

    monkeypatch.setattr(loop, "predict_network", counting)
    train_run(spec, place)
    held_out = [len(shapes.split(name, trial=0).outer) for name in ("cartoon", "photo")]
    assert scored == held_out * 3


def test_batch_norm_statistics_stay_and_weights_move(spec: RunSpec, place: Workplace) -> None:
    before = files.read(shared_init(spec.init, place))
    after = files.read(train_run(spec, place).paths.weights)
    assert before.keys() == after.keys()
    for name in before:
        if "running" in name or "tracked" in name:
            assert torch.equal(before[name], after[name]), name
    assert not torch.equal(before["conv1.0.weight"], after["conv1.0.weight"])
    assert not torch.equal(before["bn1.weight"], after["bn1.weight"])


def test_workers_change_no_byte(
    spec: RunSpec, place: Workplace, shapes: Benchmark, tmp_path: Path
) -> None:
    helped = Workplace(benchmark=shapes, store=Store(tmp_path / "helped"), device="cpu", workers=2)
    assert outcome(train_run(spec, helped)) == outcome(train_run(spec, place))


def test_bf16_trains(shapes: Benchmark, place: Workplace, tiny_sweep: Sweep) -> None:
    spec = plan(tiny_sweep(precision="bf16"), shapes, device="cpu")[0]
    weights = files.read(train_run(spec, place).paths.weights)
    assert {tensor.dtype for tensor in weights.values()} <= {torch.float32, torch.int64}


@pytest.mark.parametrize(
    ("channels", "size"), [(1, (32, 32)), (2, (32, 32)), (3, (24, 40))], ids=str
)
def test_other_inputs(
    folder: Path, tmp_path: Path, tiny_sweep: Sweep, channels: int, size: tuple[int, int]
) -> None:
    from diwa.data.benchmark import open_folder

    images = open_folder(folder, size=size, channels=channels, allow_small_domains=True)
    spec = plan(tiny_sweep(channels=channels, size=size, steps=2), images, device="cpu")[0]
    here = Workplace(benchmark=images, store=Store(tmp_path / "store"), device="cpu")
    run = train_run(spec, here)
    assert files.read(run.paths.weights)["conv1.0.weight"].shape[1] == channels


def test_other_images_than_planned_are_refused(
    spec: RunSpec, folder: Path, place: Workplace
) -> None:
    from diwa.data.benchmark import open_folder

    (folder / "photo" / "cat" / "0.png").unlink()
    changed = open_folder(folder, size=(32, 32), allow_small_domains=True)
    there = Workplace(benchmark=changed, store=place.store, device="cpu")
    with pytest.raises(DataError, match="not those the runs were planned for"):
        train_run(spec, there)


def test_a_foreign_state_is_refused_by_name(spec: RunSpec, place: Workplace) -> None:
    run = place.store.start(spec)
    files.write(run.paths.state, {"module.odd": torch.zeros(1)}, {"groups": [], "position": {}})
    with pytest.raises(StoreError, match=r"state\.safetensors: does not fit this run"):
        train_run(spec, place)


def test_half_of_a_specification_is_left_to_who_writes_it(spec: RunSpec, place: Workplace) -> None:
    run = place.store.start(spec)
    writing = run.paths.folder / ".spec.json.1-abc.part"
    left = run.paths.folder / ".weights.safetensors.1-abc.part"
    for path in (writing, left):
        path.touch()

    class Looking:
        def after_step(self, step: int, network: object) -> None:
            assert writing.exists()
            assert not left.exists()

        def after_validation(self, row: Row, network: object) -> None:
            pass

    train_run(spec, place, observers=[Looking()])
    assert not writing.exists()


def test_a_run_that_diverges_can_be_read_and_resumed(
    spec: RunSpec, place: Workplace, shapes: Benchmark, tmp_path: Path
) -> None:
    wild = msgspec.structs.replace(
        spec, hparams={**spec.hparams, "lr": 1e30}, averages=("ma", "swad"), ma_start=0
    )
    whole = train_run(wild, place)
    *_, last = whole.history
    assert last.loss is None
    assert set(last.losses.values()) == {None}
    assert math.isnan(last.validation_loss)

    class Interrupting:
        def after_step(self, step: int, network: object) -> None:
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)

        def after_validation(self, row: Row, network: object) -> None:
            pass

    here = Workplace(benchmark=shapes, store=Store(tmp_path / "stopped"), device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train_run(wild, here, observers=[Interrupting()])
    assert outcome(train_run(wild, here)) == outcome(whole)


def test_a_run_that_another_process_holds_is_left_to_it(spec: RunSpec, place: Workplace) -> None:
    run = place.store.start(spec)
    released = threading.Event()
    with run.hold(wait=True) as mine:
        assert mine
        assert not train_run(spec, place, wait=False).finished

        def wait_for_it() -> None:
            assert train_run(spec, place).finished
            released.set()

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        time.sleep(0.3)
        assert not released.is_set()
    waiting.join()
    assert released.is_set()
