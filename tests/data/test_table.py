"""Tables of images: CSV and Parquet."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diwa
from diwa.data.cache import list_caches
from diwa.data.table import list_table
from diwa.errors import DataError

ROWS = [
    ("images/3.png", "b", "dog"),
    ("images/1.png", "a", "cat"),
    ("images/4.png", "b", "cat"),
    ("images/2.png", "a", "dog"),
]


@pytest.fixture
def images(tmp_path: Path, paint: Callable[..., Path]) -> Path:
    for number in range(1, 5):
        paint(tmp_path / "images" / f"{number}.png")
    return tmp_path


def csv(folder: Path, rows: list[tuple[str, ...]], head: str = "path,domain,label") -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([head, *(",".join(row) for row in rows)]) + "\n")
    return path


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer  # pyright: ignore[reportMissingImports]

    writer.write_table(pyarrow.table(columns), folder / "table.parquet")
    return folder / "table.parquet"


def said(path: Path, **more: Any) -> str:
    with pytest.raises(DataError) as caught:
        diwa.open_data(path, allow_small_domains=True, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestCsv:
    def test_two_of_one_folder_keep_their_decoded_images(self, images: Path) -> None:
        one = csv(images, ROWS)
        two = one.with_name("two.csv")
        two.write_text(
            "\n".join(line for line in one.read_text().splitlines() if "1.png" not in line)
        )
        caches = []
        for path in (one, two, one):
            opened = diwa.open_data(path, allow_small_domains=True, allow_missing_classes=True)
            assert opened.cache is not None
            assert len(opened["a"].images) == (1 if path == two else 2)
            caches.append({held.folder: held.root for held in list_caches(opened.cache.directory)})
        assert sorted(caches[1].values()) == [str(one.resolve()), str(two.resolve())]
        assert caches[2] == caches[1]

    def test_domains_classes_and_images(self, images: Path) -> None:
        opened = diwa.open_data(csv(images, ROWS), allow_small_domains=True)
        assert (opened.name, opened.names, opened.classes) == ("table", ["a", "b"], ("cat", "dog"))
        assert opened["a"].labels.tolist() == [0, 1]
        assert opened["a"].images[0].shape == (6, 8, 3)
        # Beside the same images in folders, byte by byte.
        import numpy as np
        from PIL import Image

        with Image.open(images / "images" / "4.png") as image:
            assert (opened["b"].images[0] == np.asarray(image)).all()

    def test_the_order_of_the_rows_does_not_matter(self, images: Path) -> None:
        first = list_table(csv(images, ROWS))
        second = list_table(csv(images, ROWS[::-1]))
        assert first == second
        assert first.digest == second.digest

    def test_other_columns_other_orders_and_a_mark_from_a_spreadsheet(self, images: Path) -> None:
        path = images / "table.csv"
        lines = ["Label,id, Domain ,path"] + [
            f"{label},7,{domain},{image}" for image, domain, label in ROWS
        ]
        path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n\r\n", encoding="utf-8")
        assert list_table(path).digest == list_table(csv(images, ROWS)).digest

    def test_tabs(self, images: Path) -> None:
        path = images / "table.tsv"
        path.write_text("\n".join(["path\tdomain\tlabel", *("\t".join(row) for row in ROWS)]))
        assert list_table(path).digest == list_table(csv(images, ROWS)).digest

    def test_commas_in_quotes(self, images: Path, paint: Callable[..., Path]) -> None:
        paint(images / "a, b.png")
        path = csv(images, [*ROWS, ('"a, b.png"', "a", "cat")])
        assert len(list_table(path).domains["a"]) == 3

    def test_paths_from_elsewhere(self, images: Path, tmp_path_factory: Any) -> None:
        other = tmp_path_factory.mktemp("other")
        rows = [(str(images / image), domain, label) for image, domain, label in ROWS]
        opened = diwa.open_data(csv(other, rows), allow_small_domains=True)
        assert len(opened["b"].images) == 2

    def test_numbers_as_classes_are_ordered_as_numbers(self, images: Path) -> None:
        numbers = ["0", "10", "9", "2"]
        rows = [(image, "a", label) for (image, _, _), label in zip(ROWS, numbers, strict=True)]
        assert list_table(csv(images, rows)).classes == ("0", "2", "9", "10")

    def test_the_cache_knows_it(self, images: Path) -> None:
        path = csv(images, ROWS)
        first = diwa.open_data(path, allow_small_domains=True)
        again = diwa.open_data(path, allow_small_domains=True)
        assert first["a"].images._folder == again["a"].images._folder  # pyright: ignore


class TestRefused:
    def test_a_column_that_is_missing(self, images: Path) -> None:
        assert said(csv(images, ROWS, "path,domain,class")) == (
            f"{images}/table.csv: no column 'label'; "
            "it needs path, domain, label; it has path, domain, class"
        )

    def test_a_column_that_is_there_twice(self, images: Path) -> None:
        rows = [(*row, row[1]) for row in ROWS]
        assert "more than one column 'domain'" in said(
            csv(images, rows, "path,domain,label,domain")
        )

    def test_an_image_that_is_not_there(self, images: Path) -> None:
        assert said(csv(images, [*ROWS, ("images/9.png", "a", "cat")])) == (
            f"{images}/table.csv: row 6: {images}/images/9.png: can't be read "
            "(No such file or directory); paths are relative to the table's folder"
        )

    @pytest.mark.parametrize("again", ["images/1.png", "images/../images/1.png"])
    def test_an_image_that_is_named_twice(self, images: Path, again: str) -> None:
        assert said(csv(images, [*ROWS, (again, "b", "cat")])) == (
            f"{images}/table.csv: row 6 names {again} again, after row 3; "
            "name every image once, or it would be trained on and validate"
        )

    @pytest.mark.parametrize("domain", ["", "a/b", "..", ".hidden", "a:b"])
    def test_a_domain_that_can_not_be_a_folder(self, images: Path, domain: str) -> None:
        text = said(csv(images, [("images/1.png", domain, "cat"), *ROWS[2:]]))
        assert text.startswith(f"{images}/table.csv: row 2 has the domain {domain!r}; ")

    @pytest.mark.parametrize(
        ("row", "column"), [(("", "a", "cat"), "path"), (("images/1.png", "a", " "), "label")]
    )
    def test_an_empty_cell(self, images: Path, row: tuple[str, ...], column: str) -> None:
        path = csv(images, [*ROWS, row])
        assert said(path) == f"{path}: row 6 has no {column}; fill it in, or remove the row"

    def test_a_folder_in_place_of_an_image(self, images: Path) -> None:
        path = csv(images, [*ROWS, ("images", "a", "cat")])
        assert said(path) == (
            f"{path}: row 6: {images}/images: is no file; name an image in every row"
        )

    def test_a_class_that_one_domain_lacks(self, images: Path) -> None:
        path = csv(images, ROWS[:3])
        assert said(path).startswith(f"{path}: domain 'a' has no images of class 'dog'; ")
        opened = diwa.open_data(path, allow_small_domains=True, allow_missing_classes=True)
        assert opened["a"].labels.tolist() == [0]

    def test_a_row_of_another_length(self, images: Path) -> None:
        path = csv(images, [*ROWS, ("images/1.png", "a")])
        assert said(path).startswith(f"{path}: row 6 has 2 columns, not 3; ")

    @pytest.mark.parametrize("text", ["", "path,domain,label\n"])
    def test_nothing_in_it(self, images: Path, text: str) -> None:
        path = images / "table.csv"
        path.write_text(text)
        assert "no rows" in said(path) or "no column 'path'" in said(path)

    def test_something_else_under_its_name(self, images: Path) -> None:
        path = images / "table.csv"
        path.write_bytes(b"\xff\xfe\x00p\x00a")
        assert said(path).startswith(f"{path}: not a table (")

    def test_too_few_images(self, images: Path) -> None:
        with pytest.raises(DataError, match="too few to hold out 20 %"):
            diwa.open_data(csv(images, ROWS))


class TestParquet:
    def columns(self, rows: list[tuple[str, ...]] = ROWS) -> dict[str, Any]:
        return {
            name: [row[at] for row in rows] for at, name in enumerate(("path", "domain", "label"))
        }

    def test_it_means_the_same_as_csv(self, images: Path) -> None:
        made = parquet(images, {"extra": [1] * 4, **self.columns()})
        assert list_table(made).digest == list_table(csv(images, ROWS)).digest
        assert diwa.open_data(made, allow_small_domains=True)["a"].images[0].shape == (6, 8, 3)

    def test_numbers_as_labels(self, images: Path) -> None:
        made = parquet(images, {**self.columns(), "label": [10, 2, 2, 10]})
        assert list_table(made).classes == ("2", "10")

    def test_an_empty_cell(self, images: Path) -> None:
        made = parquet(images, {**self.columns(), "domain": ["a", None, "a", "a"]})
        assert said(made).startswith(f"{made}: row 2 has the domain ''; ")
        made = parquet(images, {**self.columns(), "label": [None, "cat", "cat", "dog"]})
        assert said(made).startswith(f"{made}: row 1 has no label; ")

    def test_something_else_under_its_name(self, images: Path) -> None:
        pytest.importorskip("pyarrow")
        (images / "table.parquet").write_bytes(b"PAR1 no, not really PAR1")
        assert "table.parquet: not a Parquet table (" in said(images / "table.parquet")

    def test_without_pyarrow_the_extra_is_named(
        self, images: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = builtins.__import__

        def without(name: str, *rest: Any) -> Any:
            if name.split(".", maxsplit=1)[0] == "pyarrow":
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", without)
        (images / "table.parquet").write_bytes(b"")
        assert said(images / "table.parquet") == (
            f"{images}/table.parquet: reading Parquet needs pyarrow, which is not installed; "
            "pip install 'diwa[tables]'"
        )

    def test_csv_does_without_it(self, images: Path) -> None:
        kept = {name for name in sys.modules if name.startswith("pyarrow")}
        list_table(csv(images, ROWS))
        assert {name for name in sys.modules if name.startswith("pyarrow")} == kept
