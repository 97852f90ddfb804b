"""What merging costs, against other ways to do it, all in one run.

1. In process, 20 ResNet-50s: `diwa.merge`, also as it is where nothing could be compiled, against
   one read and one addition of every byte (NumPy on memory-mapped files, float32, both cores),
   against loading and adding everything with torch, and against
   `torch.optim.swa_utils.AveragedModel`. The rounds alternate, so that a slow minute hurts all
   sides.
2. As commands, start of the interpreter and writing included: `diwa merge`, a script with a
   torch.load loop, and timm's averaging done by hand, on the same files.
3. A small transformers model in 5 copies: `diwa merge` against mergekit, if --mergekit says where
   its `mergekit-yaml` is.
4. Memory: the peak of anonymous memory while 8 members of --large GB in shards are merged.

    python benchmarks/merge.py --out benchmarks/results/merge.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import diwa
from diwa.weights import sums
from diwa.weights.source import SafetensorsFile

Rounds = dict[str, list[float]]

_TORCH_LOOP = """
import sys, torch
*paths, out = sys.argv[1:]
total = None
for path in paths:
    state = torch.load(path, map_location="cpu", weights_only=True)
    if total is None:
        total = {k: v.float() if v.is_floating_point() else v for k, v in state.items()}
    else:
        for name, tensor in state.items():
            if tensor.is_floating_point():
                total[name] += tensor
for name, tensor in total.items():
    if tensor.is_floating_point():
        tensor /= len(paths)
torch.save(total, out)
"""


def make_resnets(place: Path, count: int, backbone: str) -> list[Path]:
    """Checkpoints near each other, as safetensors and as .pt."""
    base = timm.create_model(backbone).state_dict()
    paths = []
    for number in range(count):
        chance = torch.Generator().manual_seed(number)
        moved = {
            name: tensor + 1e-3 * torch.randn(tensor.shape, generator=chance)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in base.items()
        }
        paths.append(place / f"{number:02}.safetensors")
        save_file(moved, paths[-1], metadata={"format": "pt"})
        torch.save(moved, paths[-1].with_suffix(".pt"))
    return paths


def ours(paths: Sequence[Path]) -> None:
    """Every tensor of the mean, through the public API."""
    for _ in diwa.merge(paths).arrays():
        pass


def ours_by_numpy(paths: Sequence[Path]) -> None:
    """The same where there was no C compiler when the package was installed."""
    with mock.patch.object(sums, "COMPILED", None):
        ours(paths)


def read_and_add(paths: Sequence[Path]) -> None:
    """One read and one addition of every byte, by as many threads as there are cores."""
    sources = [SafetensorsFile(path) for path in paths]
    names = [n for n, info in sources[0].tensors.items() if info.kind.floating]
    threads = os.cpu_count() or 1

    def some(part: int) -> None:
        for name in names[part::threads]:
            total = np.zeros(sources[0].tensors[name].shape, dtype=np.float32)
            for source in sources:
                np.add(total, source.array(name), out=total)

    _together(some, threads)


def read_only(paths: Sequence[Path]) -> None:
    """Every byte looked at once."""
    threads = os.cpu_count() or 1

    def some(part: int) -> None:
        for path in paths[part::threads]:
            with path.open("rb", buffering=0) as file:
                room = bytearray(1 << 22)
                while file.readinto(room):
                    pass

    _together(some, threads)


def _together(work: Callable[[int], None], threads: int) -> None:
    every = [threading.Thread(target=work, args=(part,)) for part in range(threads)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()


def load_everything(paths: Sequence[Path]) -> None:
    """All state dictionaries in memory, then their mean, as most scripts do."""
    states = [load_file(path) for path in paths]
    for name, first in states[0].items():
        if first.is_floating_point():
            torch.stack([state[name].float() for state in states]).mean(0)


def swa_utils(paths: Sequence[Path], backbone: str) -> None:
    """PyTorch's own moving average, fed one checkpoint after the other."""
    model = timm.create_model(backbone)
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for path in paths:
        model.load_state_dict(load_file(path))
        averaged.update_parameters(model)


def alternating(sides: dict[str, Callable[[], object]], repeats: int) -> Rounds:
    """Seconds of each side, in rounds; the first round warms up and does not count."""
    spent: Rounds = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if turn:
                spent[name].append(time.perf_counter() - began)
    return spent


def command(*words: object) -> Callable[[], object]:
    """A command that must succeed."""
    return lambda: subprocess.run(list(map(str, words)), check=True, capture_output=True)


def make_transformers(place: Path, count: int) -> list[Path]:
    """A small Llama in several copies, saved as transformers does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
    )
    paths = []
    for number in range(count):
        torch.manual_seed(number)
        paths.append(place / f"llama-{number}")
        model = LlamaForCausalLM(config)
        model.bfloat16()
        model.save_pretrained(paths[-1])
    return paths


def against_mergekit(place: Path, mergekit: Path | None, repeats: int) -> Rounds:
    """`diwa merge` and `mergekit-yaml` on the same folders, a linear merge with equal weights."""
    paths = make_transformers(place, 5)
    sides = {"diwa merge": command(_diwa(), "merge", *paths, "--out", place / "ours")}
    if mergekit is not None:
        models = [{"model": str(path), "parameters": {"weight": 1.0}} for path in paths]
        recipe = place / "recipe.yml"  # JSON is YAML
        recipe.write_text(json.dumps({"models": models, "merge_method": "linear"}))
        theirs = [mergekit, recipe, place / "theirs", "--no-copy-tokenizer", "--allow-crimes"]
        sides["mergekit-yaml"] = command(*theirs)
    spent = alternating(sides, repeats)
    if mergekit is not None:
        _compare(place / "ours", place / "theirs")
    return spent


def _compare(one: Path, other: Path) -> None:
    """Both must have made the same model, or the times mean nothing."""
    ours_, theirs = load_file(one / "model.safetensors"), {}
    for path in sorted(other.glob("*.safetensors")):
        theirs.update(load_file(path))
    for name, tensor in theirs.items():
        near = torch.allclose(tensor.float(), ours_[name].float(), rtol=2e-2, atol=2e-3)
        assert near, f"{name} differs"


def make_large(place: Path, gigabytes: float, count: int) -> list[Path]:
    """Members in shards; numbers that repeat, for only their bytes matter."""
    paths = []
    side, tensors = 4096, max(1, round(gigabytes * 1e9 / (4096 * 4096 * 2)))
    for number in range(count):
        folder = place / f"large-{number}"
        folder.mkdir()
        row = torch.randn(side, generator=torch.Generator().manual_seed(number)).bfloat16()
        place_of = {}
        for start in range(0, tensors, 8):
            names = [f"layer{n}.weight" for n in range(start, min(start + 8, tensors))]
            shard = f"model-{start // 8:05}.safetensors"
            held = {name: row.repeat(side, 1) for name in names}
            save_file(held, folder / shard, metadata={"format": "pt"})
            place_of.update(dict.fromkeys(names, shard))
        index = {"metadata": {}, "weight_map": place_of}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        paths.append(folder)
    return paths


def peak_memory(paths: Sequence[Path], out: Path) -> dict[str, float]:
    """Peaks of a merge, in MB, read from the kernel every few milliseconds."""
    words = [_diwa(), "merge", *map(str, paths), "--out", str(out), "--shard-size", "1GB"]
    began = time.perf_counter()
    merging = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks = {"RssAnon": 0.0, "VmRSS": 0.0}
    while merging.poll() is None:
        try:
            status = Path(f"/proc/{merging.pid}/status").read_text()
        except OSError:
            break
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in peaks:
                peaks[name] = max(peaks[name], int(value.split()[0]) / 1e3)
        time.sleep(0.005)
    assert merging.wait() == 0
    return {**peaks, "seconds": time.perf_counter() - began}


def largest_tensor(folder: Path) -> float:
    """MB of the largest tensor in a folder's first shard."""
    with safe_open(sorted(folder.glob("*.safetensors"))[0], "pt") as file:
        return max(file.get_tensor(n).nbytes for n in file.keys()) / 1e6  # noqa: SIM118


def _diwa() -> str:
    return str(Path(sys.executable).with_name("diwa"))


def main() -> None:
    """Measures, prints a line per side and writes the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large", type=float, default=2.0, help="GB of each large member; 0: none")
    parser.add_argument("--mergekit", type=Path, help="where mergekit-yaml is")
    parser.add_argument("--place", type=Path, help="where to make files; needs about 25 GB")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    told: dict[str, Any] = {}
    if sums.COMPILED is None:
        print("this installation has no compiled loop: install it again where there is a compiler")
    with tempfile.TemporaryDirectory(dir=given.place) as name:
        place = Path(name)
        paths = make_resnets(place, given.members, given.backbone)
        told["members_gb"] = sum(path.stat().st_size for path in paths) / 1e9
        told["in_process"] = alternating(
            {
                "diwa.merge": lambda: ours(paths),
                "diwa.merge, nothing compiled": lambda: ours_by_numpy(paths),
                "one read": lambda: read_only(paths),
                "one read and one addition": lambda: read_and_add(paths),
                "load everything": lambda: load_everything(paths),
                "swa_utils.AveragedModel": lambda: swa_utils(paths, given.backbone),
            },
            given.repeats,
        )
        loop = place / "loop.py"
        loop.write_text(_TORCH_LOOP)
        pickles = [path.with_suffix(".pt") for path in paths]
        told["commands"] = alternating(
            {
                "diwa merge": command(_diwa(), "merge", *paths, "--out", place / "o.safetensors"),
                "torch.load loop": command(sys.executable, loop, *pickles, place / "o.pt"),
                "import torch alone": command(sys.executable, "-c", "import torch"),
            },
            given.repeats,
        )
        for path in [*paths, *pickles]:
            path.unlink()
        told["transformers"] = against_mergekit(place, given.mergekit, given.repeats)
        if given.large:
            large = make_large(place, given.large, 8)
            told["memory_mb"] = peak_memory(large, place / "merged")
            told["memory_mb"]["largest tensor"] = largest_tensor(large[0])
            shutil.rmtree(place / "merged")
    _print(told)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {key: str(value) for key, value in vars(given).items() if key == "members"}
        machine = {
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "compiled": sums.COMPILED is not None,
        }
        content = {"settings": settings, "machine": machine, **told}
        given.out.write_text(json.dumps(content, indent=2) + "\n")


def _print(told: dict[str, Any]) -> None:
    for part in ("in_process", "commands", "transformers"):
        print(f"{part}, {told['members_gb']:.2f} GB" if part != "transformers" else part)
        ours_ = statistics.median(next(iter(told[part].values())))
        for side, values in told[part].items():
            middle = statistics.median(values)
            spread = f"{min(values):.3f} to {max(values):.3f}, {len(values)} repeats"
            print(f"  {side:28} {middle:7.3f} s  ({spread})  {middle / ours_:5.2f} x ours")
    for name, value in told.get("memory_mb", {}).items():
        print(f"  memory: {name} {value:,.0f}")


if __name__ == "__main__":
    main()
