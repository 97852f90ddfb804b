"""Small trees in the true layouts of data sets, and a place on the web that misbehaves."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def paint() -> Callable[..., Path]:
    """Writes an image that no other one is like."""

    def made(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = int.from_bytes(hashlib.sha256(str(path).encode()).digest()[:4], "big")
        noise = np.random.RandomState(seed).randint(0, 256, size=(6, 8, 3)).astype(np.uint8)
        Image.fromarray(noise).save(path)
        return path

    return made


@pytest.fixture
def grow(paint: Callable[..., Path]) -> Callable[..., Path]:
    """Makes a tree of folders, each with that many images, and gives its root."""

    def made(root: Path, folders: Mapping[str, int]) -> Path:
        for folder, count in folders.items():
            for number in range(count):
                paint(root / folder / f"pic_{number:03}.png")
        return root

    return made


@pytest.fixture
def small_pacs() -> dict[str, int]:
    """Every domain and class of PACS, with one to three images."""
    domains = ("art_painting", "cartoon", "photo", "sketch")
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    return {
        f"{domain}/{name}": 1 + (d + c) % 3
        for d, domain in enumerate(domains)
        for c, name in enumerate(classes)
    }


@pytest.fixture
def pack() -> Callable[..., Path]:
    """Zips a folder's content, below a prefix if one is given."""

    def made(folder: Path, to: Path, prefix: str = "") -> Path:
        with zipfile.ZipFile(to, "w") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, prefix + path.relative_to(folder).as_posix())
        return to

    return made


def _idx(array: np.ndarray) -> bytes:
    magic = 2051 if array.ndim == 3 else 2049
    head = b"".join(size.to_bytes(4, "big") for size in (magic, *array.shape))
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def fake_digits() -> Callable[..., Path]:
    """Writes MNIST's four files, with few digits that are noise."""

    def made(folder: Path, train: int = 50, test: int = 22, dotted: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        chance = np.random.RandomState(5)
        for kind, count in (("train", train), ("t10k", test)):
            images = chance.randint(1, 256, size=(count, 28, 28))
            labels = chance.randint(0, 10, size=count)
            for name, array in (("images-idx3", images), ("labels-idx1", labels)):
                called = f"{kind}-{name}-ubyte"
                called = called.replace("-idx", ".idx") if dotted else called
                (folder / called).write_bytes(_idx(array))
        return folder

    return made


class Place:
    """A place on the web.

    Each path holds a dict: `body`; `status` other than 200; `kind`, the content type; `cut`, after
    how many bytes the connection breaks, once for each number in the list; `deaf`, if it gives the
    whole whatever part is asked for; `silent`, if it does not say how long it is; `etag`.
    """

    def __init__(self) -> None:
        self.holds: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str | None]] = []
        place = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        asked = request.headers.get("Range")
        self.asked.append((request.path, asked))
        held = self.holds.get(request.path) or self.holds.get(path)
        if held is None:
            request.send_error(404)
            return
        statuses = held.get("status", 200)
        status = statuses.pop(0) if isinstance(statuses, list) and statuses else statuses
        if isinstance(status, int) and status != 200:
            request.send_error(status)
            return
        body: bytes = held["body"]
        start = 0
        fresh = request.headers.get("If-Range") in (None, held.get("etag"))
        if asked and fresh and not held.get("deaf"):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                request.send_error(416)
                return
        request.send_response(206 if start else 200)
        request.send_header("Content-Type", held.get("kind", "application/zip"))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if not held.get("silent"):
            request.send_header("Content-Length", str(len(body) - start))
        if "etag" in held:
            request.send_header("ETag", held["etag"])
        request.end_headers()
        cuts = held.get("cut", [])
        request.wfile.write(body[start : start + cuts.pop(0)] if cuts else body[start:])


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A web server on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    held = Place()
    yield held
    held.server.shutdown()
    held.server.server_close()
