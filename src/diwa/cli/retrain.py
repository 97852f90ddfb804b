"""`diwa retrain`: train the last layer again on some images of the unseen domain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from diwa.cli.console import progress, say, show, show_json
from diwa.cli.options import Device, OptionalPath


def retrain(
    store: tyro.conf.Positional[Path],
    /,
    *,
    data: OptionalPath = None,
    target: tuple[str, ...] = (),
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    images: tuple[Literal[20, 80], ...] = (20, 80),
    out: OptionalPath = None,
    save: bool = False,
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Train the last layer again on some labelled images of the unseen domain, and test it there.

    Everything before the last layer stays as it is: the encoder as it came, that of the run that
    validation picked (ERM), and that of all runs averaged (DiWA). A trial splits the domain into
    80 % and 20 %; one part trains, the other tests. 0 % is the network as it was, on the same
    images. Over several trials a number is the mean, with the population standard deviation over
    the root of their number. Features are kept in the store: a second call takes seconds.

    Args:
        store: the folder of a sweep.
        data: the folder of images; where the sweep found them by default.
        target: only these unseen domains.
        sweep: only the runs of these sweeps, by the names that their recipe gave them.
        images: the percentage of the unseen domain that trains: 20, 80 or both.
        out: where results.json and saved models go, a folder for each trial; inside the store by
            default.
        save: also write the averages with their new last layers, as soup-20.safetensors and
            soup-80.safetensors.
        device: where features are computed.
        json: print everything as JSON.
    """
    from diwa.cli.images import by_images, leaves_out, reopened
    from diwa.errors import SpecError, StoreError
    from diwa.report.lastlayer import LEGEND, layer_tables, shown
    from diwa.runs.domainbed import is_domainbed
    from diwa.runs.store import Store
    from diwa.sweep.retrain import RetrainedPool, retrain_runs

    if not images:
        raise SpecError("no share of the unseen domain to train on", remedy="choose 20, 80 or both")
    if is_domainbed(store):
        raise StoreError(
            f"{store}: DomainBed's runs don't keep the encoder as it came",
            remedy="retrain on runs of diwa sweep",
        )
    held = Store(store)
    groups = by_images(held, lambda run: leaves_out(run, target), sweep)
    told = progress()
    pools: list[RetrainedPool] = []
    for (name, which), runs in groups.items():
        pools += retrain_runs(
            held,
            reopened(held, which, data, told),
            runs=runs,
            sweep=name,
            percents=images,
            out=out,
            save=save,
            device=device,
            progress=told,
        )
    tables = layer_tables(pools)
    if json:
        import msgspec

        printed = {"tables": tables, "pools": pools}
        show_json(msgspec.json.format(msgspec.json.encode(printed), indent=2))
        return
    for table in tables:
        show(shown(table))
    show(LEGEND)
    for pool in pools:
        for path in [pool.results, *pool.saved]:
            say(f"written: {path}")
