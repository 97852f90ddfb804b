"""Fetching one file: from several places, with resume, and honest about what came."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from diwa.atomic import write_bytes
from diwa.data.archive import looks_like_html
from diwa.data.sets.base import Remote
from diwa.data.webpage import explain, next_step
from diwa.errors import DataError
from diwa.progress import QUIET, Progress

_BLOCK = 2**18
_TRIES = 5
_TIMEOUT = 30.0
_MB = 1_000_000
#: How many pages with a download button may come before the file.
_PAGES = 2

#: Answers that may be others in a moment.
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_MEANING = {
    401: "asks for a login",
    403: "forbids it, or its quota is used up",
    404: "is gone (404)",
    410: "is gone (410)",
}


@dataclass(frozen=True)
class Fetched:
    """A file that is there as a whole.

    Args:
        path: where it is.
        sha256: its digest.
        checked: whether that is the one it should be, as opposed to nobody knowing.
    """

    path: Path
    sha256: str
    checked: bool


class _RefusedError(Exception):
    """A place does not give the file; the text says why in a few words."""


class _PassingError(Exception):
    """It may work in a moment, from where it stopped."""


def fetch(
    remote: Remote,
    to: Path,
    *,
    remedy: str = "",
    progress: Progress = QUIET,
    wait: Callable[[float], None] = time.sleep,
) -> Fetched:
    """Fetches a file, going on with what an earlier call left of it.

    Args:
        remote: the file.
        to: where it should be; while it is under way, `.part` is added to the name.
        remedy: what to do if no place gives it.
        progress: who hears how it goes.
        wait: how to wait before another try.

    Raises:
        DataError: if no place gives it, or not the one that it should be.
    """
    if to.is_file():
        with suppress(_RefusedError):
            return _checked(remote, to)
    reasons = []
    for url in remote.urls:
        host = urllib.parse.urlsplit(url).hostname or url
        try:
            part = _Download(remote, url, to, progress, wait).whole()
            fetched = _checked(remote, part)
        except _RefusedError as reason:
            reasons.append(f"{host} {reason}")
            if url != remote.urls[-1]:
                progress.say(f"{remote.name}: {host} {reason}; trying the next place")
            continue
        part.replace(to)
        _about(part).unlink(missing_ok=True)
        return Fetched(to, fetched.sha256, fetched.checked)
    places = "none of its places" if len(reasons) > 1 else "its only place"
    raise DataError(
        f"{remote.name}: {places} {'gives' if len(reasons) > 1 else 'does not give'} it "
        f"({'; '.join(reasons)})",
        remedy=remedy,
    )


def _checked(remote: Remote, path: Path) -> Fetched:
    size = path.stat().st_size
    sha256 = _sha256(path)
    wrong = ""
    if remote.size is not None and size != remote.size:
        wrong = f"gave {size:,} bytes, not {remote.size:,}"
    elif remote.sha256 is not None and sha256 != remote.sha256:
        wrong = f"gave another file: its SHA-256 is {sha256}, not {remote.sha256}"
    if wrong:
        # Going on with it could never make it right.
        path.unlink()
        _about(path).unlink(missing_ok=True)
        raise _RefusedError(wrong)
    return Fetched(path, sha256, checked=remote.sha256 is not None)


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            sha.update(block)
    return sha.hexdigest()


def _about(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


class _Download:
    """One file from one place."""

    def __init__(
        self,
        remote: Remote,
        url: str,
        to: Path,
        progress: Progress,
        wait: Callable[[float], None],
    ) -> None:
        self.remote, self.url, self.progress, self.wait = remote, url, progress, wait
        self.part = to.with_name(f"{to.name}.part")
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self.opener = urllib.request.build_opener(cookies)

    def whole(self) -> Path:
        """Gets all of it into the part file."""
        self.part.parent.mkdir(parents=True, exist_ok=True)
        tries = 0
        while True:
            before, begun = self._held(), self._noted()
            if begun.get("url") == self.url and begun.get("total") == before:
                return self.part  # a kill came just after the last byte
            try:
                self._get(self.url)
                return self.part
            except _PassingError as reason:
                tries = 1 if self._held() > before else tries + 1
                if tries >= _TRIES:
                    raise _RefusedError(
                        f"stops answering ({reason}); the same command goes on"
                    ) from None
                self.wait(2.0**tries)

    def _held(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def _get(self, url: str, pages: int = 0) -> None:
        """Gets the file, or the page before it and then the file."""
        begun = self._noted() if self._held() else {}
        # A page in between is asked for as a whole: only the file has parts.
        mine = begun.get("url") == self.url and begun.get("pages") == pages
        start = self._held() if mine else 0
        try:
            with self._opened(url, start, begun) as response:
                if self._is_page(response):
                    more = pages < _PAGES
                    following = next_step(self._page, response.geturl()) if more else None
                    if following is None:
                        raise _RefusedError(explain(self._page))
                else:
                    self._save(response, start, pages)
                    return
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise _PassingError(str(error) or type(error).__name__) from error
        self._get(following, pages + 1)

    def _opened(self, url: str, start: int, begun: dict[str, Any]) -> Any:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise _RefusedError(f"has an address that is not of the web: {url}")
        headers = {"User-Agent": "diwa", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if begun.get("version"):
                headers["If-Range"] = begun["version"]
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked above
        try:
            return self.opener.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:
                self._begin_again()
                raise _PassingError("begins again") from error
            if error.code in _PASSING:
                raise _PassingError(f"{error.code} {error.reason}") from error
            raise _RefusedError(_MEANING.get(error.code, f"answers {error.code}")) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionResetError | TimeoutError):
                raise _PassingError(str(error.reason)) from error
            raise _RefusedError(f"can't be reached ({error.reason})") from error

    def _is_page(self, response: Any) -> bool:
        """Whether a web page came instead of a file; reads the first bytes to tell."""
        self._first = response.read(_BLOCK)
        kind = response.headers.get_content_type()
        if kind == "text/html" or looks_like_html(self._first):
            self._page = (self._first + response.read(2**20)).decode(errors="replace")
            return True
        return False

    def _save(self, response: Any, start: int, pages: int) -> None:
        total = _total(response, start)
        if response.status != 206:
            start = 0
        if total is not None and self.remote.size not in (None, total):
            raise _RefusedError(
                f"has another file, of {total:,} bytes and not {self.remote.size:,}"
            )
        self._check_room((total or 0) - start)
        version = response.headers.get("ETag", "")
        if version.startswith("W/") or not version:
            version = response.headers.get("Last-Modified", "")
        note = {"url": self.url, "pages": pages, "version": version, "total": total}
        write_bytes(_about(self.part), json.dumps(note).encode())
        title = f"fetching {self.remote.name}" + (", MB" if total else ", size unknown")
        done, told, began = start, 0, time.monotonic()
        with (
            self.part.open("ab" if start else "wb") as out,
            self.progress.task(title, -(-(total or _MB) // _MB)) as task,
        ):
            block = self._first
            while block:
                out.write(block)
                done += len(block)
                if total and done // _MB > told:
                    speed = (done - start) / _MB / max(time.monotonic() - began, 1e-3)
                    task.advance(done // _MB - told, note=f"{speed:.1f} MB/s")
                    told = done // _MB
                elif not total:
                    task.advance(0, note=f"{done / _MB:.0f} MB so far")
                block = response.read(_BLOCK)
            if total is not None and done == total:
                task.advance(-(-total // _MB) - told)
        if total is not None and done < total:
            raise _PassingError(f"the connection ended after {done:,} of {total:,} bytes")

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.part.parent).free
        if needed > free:
            raise DataError(
                f"{self.part.parent}: {self.remote.name} needs {needed / 1e9:,.1f} GB "
                f"and {free / 1e9:,.1f} GB are free",
                remedy="free some space, or set DIWA_DATA to another folder",
            )

    def _begin_again(self) -> None:
        self.part.unlink(missing_ok=True)
        _about(self.part).unlink(missing_ok=True)

    def _noted(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            noted = json.loads(_about(self.part).read_text())
            if isinstance(noted, dict):
                return noted
        return {}


def _total(response: Any, start: int) -> int | None:
    """How long the whole file is, if the answer says so."""
    if response.status == 206:
        span = response.headers.get("Content-Range", "")
        first, _, total = span.removeprefix("bytes ").replace("-", " ", 1).partition("/")
        if first.split(" ")[0] != str(start):
            raise _RefusedError(f"answers with another part of the file ({span or 'unnamed'})")
        return int(total) if total.isdecimal() else None
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None
