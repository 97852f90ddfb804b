"""`diwa quickstart`: the whole road on a small real benchmark, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from diwa.cli.console import progress, say, show_json
from diwa.cli.options import Device

_OWN = """On your own folder of domain/class/image, with one domain left unseen:
  1. diwa data FOLDER                            counts images, finds what is broken
  2. diwa sweep FOLDER --target DOMAIN           fine-tunes 20 models; stop and go on as you like
  3. diwa soup runs                              averages them, scores the unseen domain"""


def quickstart(
    *,
    target: Literal["sketch", "cartoon", "painting", "photo"] = "sketch",
    seed: int = 0,
    runs: int = 6,
    steps: int = 75,
    out: Path = Path("diwa-quickstart"),
    device: Device = "auto",
    json: bool = False,
) -> None:
    """From nothing to one averaged model that beats its members: a few minutes on two cores.

    Fine-tunes a small network on three renderings of 15 photographs, averages the runs and tests
    on the fourth rendering, of parts of the photographs that were never seen. Leaves
    soup.safetensors and results.json in --out. Needs: pip install 'diwa[demo]'.

    Args:
        target: the rendering to leave unseen.
        seed: another number gives other runs and other numbers.
        runs: how many models to fine-tune.
        steps: updates of each.
        out: where everything goes; a second start goes on from there.
        device: where to compute.
        json: print the results as JSON.
    """
    from diwa.cli.soup import show_harvest
    from diwa.data.benchmark import open_folder
    from diwa.data.demo import demo_folder
    from diwa.runs.store import Store
    from diwa.sweep.harvest import harvest
    from diwa.sweep.run import run_sweep
    from diwa.sweep.spec import SweepSpec

    told = progress()
    spec = SweepSpec(
        target=(target,),
        runs=runs,
        steps=steps,
        init="lp",
        backbone="tf_efficientnet_lite0",
        weights="demo",
        size=(64,),
        hparams={"lr": (1e-4, 2e-4, 3e-4), "batch_size": (16,)},
        seed=seed,
    )
    folder = demo_folder(target, progress=told)
    benchmark = open_folder(folder, name="demo", size=spec.shape, progress=told)
    # One store per target and seed, so that a second start goes on and another seed is apart.
    store = Store(out / f"{target}-seed{seed}")
    finished = run_sweep(spec, benchmark, store, device=device, progress=told)
    result = harvest(store, benchmark, runs=finished, out=out, device=device, progress=told)[0]
    if json:
        show_json(result.to_json())
        return
    show_harvest(result)
    say(f"the images: {folder}")
    say(f"all numbers: {out / 'results.json'}")
    say("")
    say(_OWN)
