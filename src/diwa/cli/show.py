"""`diwa show`: what is in a file of weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diwa.cli.console import show as show_text
from diwa.cli.console import show_json
from diwa.errors import WeightsError

if TYPE_CHECKING:
    from diwa.weights.describe import Description


def show(
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
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
    told = _told(described)
    show_text(f"[bold]{_plain(described.path)}[/bold]")
    kinds = ", ".join(f"{count} {kind}" for kind, count in described.kinds.items())
    show_text(
        f"{len(described.tensors):,} tensors ({kinds}), {described.parameters:,} numbers, "
        f"{described.bytes / 1e6:,.1f} MB in {len(described.files)} "
        f"{'file' if len(described.files) == 1 else 'files'}"
    )
    for line in told:
        show_text(line)
    for name, text in described.metadata.items():
        show_text(f"{_plain(name)}: {_plain(text[:200])}")
    for alias, kept in described.aliases.items():
        show_text(f"tied: {_plain(alias)} = {_plain(kept)}")
    if tensors:
        from diwa.report.table import rows_table

        rows = [(one.name, one.kind, str(one.shape), one.bytes) for one in described.tensors]
        show_text(rows_table(["tensor", "kind", "shape", "bytes"], rows))


def _told(described: Description) -> list[str]:
    """What diwa noted of it, in lines.

    Raises:
        WeightsError: if it is nothing that diwa notes; a file may say anything of itself.
    """
    about = described.about
    lines = []
    try:
        if "soup" in about:
            lines += _of_soup(about["soup"])
        if "retrained" in about:
            lines += _of_last_layer(about["retrained"])
        if "model" in about:
            model = about["model"]
            classes = len(model.get("classes", ()))
            lines.append(f"network: {_plain(model.get('backbone'))}, {classes} classes")
        if about.get("score") is not None:
            lines.append(f"validation accuracy: {100 * about['score']:.1f} %")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{described.path}: what it says of itself is nothing that diwa writes",
            remedy="mistrust it; --json shows it as it is",
        ) from error
    return lines


def _of_last_layer(retrained: dict[str, Any]) -> Iterator[str]:
    """What a last layer was trained on, and what the encoder under it is."""
    yield (
        f"last layer trained again on {retrained['images']:,} images of "
        f"{_plain(retrained['domain'])}, strength {retrained['strength']:g}"
    )
    of = retrained["of"]
    if "soup" in of:
        yield "the encoder is that of a soup"
        yield from _of_soup(of["soup"])
    if of.get("score") is not None:
        yield f"validation accuracy before: {100 * of['score']:.1f} %"


def _of_soup(soup: dict[str, Any]) -> Iterator[str]:
    """The manifest."""
    settings = "  ".join(f"{k} {v}" for k, v in (soup.get("settings") or {}).items())
    more = f", {_plain(settings)}" if settings else ""
    yield f"made by diwa {_plain(soup.get('version'))}: {_plain(soup.get('method'))}{more}, of"
    for member in soup.get("members", []):
        share = member.get("coefficient")
        yield _ingredient("" if share is None else f"{share:7.4f}", member)
    if "base" in soup:
        yield _ingredient("  base", soup["base"])
    for file in soup.get("statistics", []):
        yield _ingredient("  statistics", file)
    for file in soup.get("taken", []):
        yield _ingredient(f"  {_plain(repr(file['pattern']))} from", file)
    for key in ("only", "skip"):
        if soup.get(key):
            yield f"  {key}: {_plain('  '.join(soup[key]))}"
    if soup.get("dtype"):
        yield f"  dtype: {_plain(soup['dtype'])}"


def _ingredient(amount: str, file: dict[str, Any]) -> str:
    return f"  {amount}  {_plain(file['name'])}  sha256 {_plain(file.get('sha256', '')[:16])}…"


def _plain(text: object) -> str:
    """Text from a file, with nothing in it that a terminal or rich would act on."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text)))
