"""`diwa show`: what is in a file of weights."""

from __future__ import annotations

from typing import Any

import tyro

from diwa.cli.console import show as show_text
from diwa.cli.console import show_json


def show(
    file: tyro.conf.Positional[str],
    /,
    *,
    tensors: bool = False,
    json: bool = False,
) -> None:
    """Show what a file or folder of weights holds, and what was merged into it.

    Args:
        file: any file or folder that diwa merge takes.
        tensors: list every tensor.
        json: print everything as JSON.
    """
    from diwa.errors import WeightsError
    from diwa.runs.found import weights_in
    from diwa.weights.describe import describe
    from diwa.weights.locate import locate

    found = locate([file], folders=weights_in)
    if len(found) > 1:
        raise WeightsError(f"{file}: stands for {len(found)} files", remedy="show one at a time")
    described = describe(found[0].source)
    if json:
        show_json(described.to_json())
        return
    show_text(f"[bold]{_plain(described.path)}[/bold]")
    kinds = ", ".join(f"{count} {kind}" for kind, count in described.kinds.items())
    show_text(
        f"{len(described.tensors):,} tensors ({kinds}), {described.parameters:,} numbers, "
        f"{described.bytes / 1e6:,.1f} MB in {len(described.files)} "
        f"{'file' if len(described.files) == 1 else 'files'}"
    )
    _show_about(described.about)
    for name, text in described.metadata.items():
        show_text(f"{_plain(name)}: {_plain(text[:200])}")
    for alias, kept in described.aliases.items():
        show_text(f"tied: {_plain(alias)} = {_plain(kept)}")
    if tensors:
        from diwa.report.table import rows_table

        rows = [(one.name, one.kind, str(one.shape), one.bytes) for one in described.tensors]
        show_text(rows_table(["tensor", "kind", "shape", "bytes"], rows))


def _show_about(about: dict[str, Any]) -> None:
    soup = about.get("soup")
    if isinstance(soup, dict):
        settings = "  ".join(f"{k} {v}" for k, v in (soup.get("settings") or {}).items())
        show_text(
            f"made by diwa {soup.get('version')}: {soup.get('method')}"
            f"{f', {_plain(settings)}' if settings else ''}, of"
        )
        base = [soup["base"]] if "base" in soup else []
        for member in soup.get("members", []):
            share = member.get("coefficient")
            _show_ingredient("" if share is None else f"{share:7.4f}", member)
        for what, files in (("base", base), ("statistics", soup.get("statistics", []))):
            for file in files:
                _show_ingredient(f"  {what}", file)
        for key in ("only", "skip", "dtype", "taken"):
            if soup.get(key):
                show_text(f"  {key.replace('taken', 'take-from')}: {_plain(soup[key])}")
    model = about.get("model")
    if isinstance(model, dict):
        classes = model.get("classes", ())
        show_text(f"network: {_plain(model.get('backbone'))}, {len(classes)} classes")
    if about.get("score") is not None:
        show_text(f"validation accuracy: {100 * about['score']:.1f} %")


def _show_ingredient(amount: str, file: dict[str, Any]) -> None:
    show_text(f"  {amount}  {_plain(file['name'])}  sha256 {file.get('sha256', '')[:16]}…")


def _plain(text: object) -> str:
    """Text from a file, with nothing in it that a terminal or rich would act on."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text)))
