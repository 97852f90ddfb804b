"""A table of images: a CSV or Parquet file with a path, a domain and a label in every row."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from stat import S_ISREG

from diwa.data.folder import File, Listing
from diwa.errors import DataError

COLUMNS = ("path", "domain", "label")
ENDINGS = (".csv", ".tsv", ".parquet", ".pq")

_PARQUET = (".parquet", ".pq")


def is_table(path: Path) -> bool:
    """Whether it is called like one."""
    return path.suffix.lower() in ENDINGS


def list_table(path: Path, *, allow_missing_classes: bool = False) -> Listing:
    """Lists the images that a table names; paths are relative to the table's folder.

    The order of the rows does not matter: as in folders, images are ordered by class and path.

    Args:
        path: the table.
        allow_missing_classes: whether a domain may lack a class that another one has.

    Raises:
        DataError: if a column or an image is missing, or an image is named twice.
    """
    rows = list(_parquet(path) if path.suffix.lower() in _PARQUET else _csv(path))
    if not rows:
        raise DataError(f"{path}: no rows", remedy=f"it needs {', '.join(COLUMNS)} in every row")
    seen: dict[Path, int] = {}
    found: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for number, (image, domain, label) in rows:
        _check_domain(domain, path, number)
        for cell, column in ((image, "path"), (label, "label")):
            if not cell:
                raise DataError(
                    f"{path}: row {number} has no {column}", remedy="fill it in, or remove the row"
                )
        place = (path.parent / image).resolve()
        if place in seen:
            raise DataError(
                f"{path}: row {number} names {image} again, after row {seen[place]}",
                remedy="name every image once, or it would be trained on and validate",
            )
        seen[place] = number
        found.setdefault(domain, {}).setdefault(label, []).append((image, number))
    classes = _sorted({label for labels in found.values() for label in labels})
    domains = sorted(found)
    if not allow_missing_classes:
        _check_classes(path, found, classes, domains)
    number_of = {name: label for label, name in enumerate(classes)}
    return Listing(
        root=path.parent,
        classes=tuple(classes),
        domains={
            domain: tuple(
                _file(path, image, number_of[label], row)
                for label in classes
                for image, row in sorted(found[domain].get(label, []))
            )
            for domain in domains
        },
        ignored=(),
        table=path,
    )


def _csv(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    try:
        # Spreadsheets begin a file with a mark that is no part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            head = [name.strip().lower() for name in next(table, [])]
            places = _places(path, head)
            for row in table:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) != len(head):
                    raise DataError(
                        f"{path}: row {table.line_num} has {len(row)} columns, not {len(head)}",
                        remedy="put quotes round what has a comma in it",
                    )
                image, domain, label = (row[place].strip() for place in places)
                yield table.line_num, (image, domain, label)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table ({error})", remedy="save it as UTF-8") from error


def _parquet(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow, which is not installed",
            remedy="pip install 'diwa[tables]'",
        ) from error
    try:
        head = parquet.read_schema(path).names
        places = _places(path, [name.strip().lower() for name in head])
        table = parquet.read_table(path, columns=[head[place] for place in places])
    except (pyarrow.ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise DataError(f"{path}: not a Parquet table ({why[:120]})") from error
    columns = [table.column(number).to_pylist() for number in range(3)]
    for number, cells in enumerate(zip(*columns, strict=True), 1):
        image, domain, label = ("" if cell is None else str(cell) for cell in cells)
        yield number, (image, domain, label)


def _places(path: Path, head: Sequence[str]) -> list[int]:
    for name in COLUMNS:
        if head.count(name) != 1:
            has = ", ".join(head) or "none"
            raise DataError(
                f"{path}: {'no' if name not in head else 'more than one'} column {name!r}",
                remedy=f"it needs {', '.join(COLUMNS)}; it has {has}",
            )
    return [head.index(name) for name in COLUMNS]


def _check_domain(name: str, path: Path, number: int) -> None:
    """Domains name folders of the cache and of results."""
    if not name or name.startswith(".") or any(letter in name for letter in '/\\:*?"<>|\0\n'):
        raise DataError(
            f"{path}: row {number} has the domain {name!r}",
            remedy="give every row a domain that could be a folder's name",
        )


def _file(table: Path, image: str, label: int, number: int) -> File:
    try:
        stat = (table.parent / image).stat()
    except OSError as error:
        raise DataError(
            f"{table}: row {number}: {table.parent / image}: can't be read ({error.strerror})",
            remedy="paths are relative to the table's folder",
        ) from error
    if not S_ISREG(stat.st_mode):
        raise DataError(
            f"{table}: row {number}: {table.parent / image}: is no file",
            remedy="name an image in every row",
        )
    path = Path(image).as_posix()
    return File(path, label, stat.st_size, (stat.st_mtime_ns, stat.st_ctime_ns))


def _sorted(labels: set[str]) -> list[str]:
    """Numbers by their value, names by the alphabet."""
    if all(label.isdecimal() for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def _check_classes(
    path: Path,
    found: dict[str, dict[str, list[tuple[str, int]]]],
    classes: Sequence[str],
    domains: Sequence[str],
) -> None:
    for domain in domains:
        missing = [name for name in classes if name not in found[domain]]
        if missing:
            raise DataError(
                f"{path}: domain {domain!r} has no images of class {missing[0]!r}",
                remedy="add some, or pass --allow-missing-classes",
            )
