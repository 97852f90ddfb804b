"""Zip and tar archives as sources: nothing is unpacked but what is wanted, where it is wanted."""

from __future__ import annotations

import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path
from typing import IO, BinaryIO, cast

from diwa.data.sources import How, Source, Step, is_whole
from diwa.errors import DataError

_ENDINGS = (".zip", ".whl", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
_FOREIGN = {b"Rar!": "RAR", b"7z\xbc\xaf": "7-Zip"}

#: Images hardly compress: an archive that grows more than this is a trap.
_GROWTH = 200

_BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, LZMAError, OSError)


def is_archive(path: Path) -> bool:
    """Whether it is an archive, or is called like one."""
    return path.name.lower().endswith(_ENDINGS) or _kind(path) is not None


def open_archive(path: Path) -> Source:
    """Opens an archive as a source.

    Raises:
        DataError: if it is damaged, of a kind that can't be read, or no archive at all.
    """
    kind = _kind(path)
    if kind == "zip":
        return ZipSource(path)
    if kind == "tar":
        return TarSource(path)
    if kind is not None:
        raise DataError(
            f"{path}: a {kind} archive, which can't be read here",
            remedy="unpack it and give the folder",
        )
    with path.open("rb") as file:
        start = file.read(512)
    if looks_like_html(start):
        raise DataError(
            f"{path}: a web page that was saved under an archive's name",
            remedy="fetch the archive again, in a browser if need be",
        )
    raise DataError(
        f"{path}: damaged or incomplete, no archive that is known",
        remedy="fetch it again; zip and tar (gz, bz2, xz) are read",
    )


def looks_like_html(start: bytes) -> bool:
    """Whether these first bytes are a web page's."""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html"))


def _kind(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(4)
    if start in _FOREIGN:
        return _FOREIGN[start]
    if zipfile.is_zipfile(path):
        return "zip"
    try:
        return "tar" if tarfile.is_tarfile(path) else None
    except (EOFError, zlib.error, LZMAError, OSError):
        return None


class ZipSource:
    """The files of a zip archive."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._entries: dict[str, zipfile.ZipInfo] | None = None

    def _listed(self) -> dict[str, zipfile.ZipInfo]:
        if self._entries is None:
            with _sound(self.where), zipfile.ZipFile(self.where) as archive:
                held = archive.infolist()
            self._entries = {
                _safe(info.filename, self.where): info
                for info in held
                if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16)
            }
            if any(info.flag_bits & 1 for info in self._entries.values()):
                raise DataError(
                    f"{self.where}: locked with a password", remedy="unpack it and give the folder"
                )
        return self._entries

    def sizes(self) -> Mapping[str, int]:
        """Every file's bytes, as the archive declares them."""
        return {name: info.file_size for name, info in self._listed().items()}

    def open(self, name: str) -> BinaryIO:
        """One file, unpacked on the fly."""
        with _sound(self.where):
            archive = zipfile.ZipFile(self.where)
            try:
                return cast(BinaryIO, archive.open(self._listed()[name]))
            finally:
                archive.close()  # the open file keeps what it needs

    def place(self, wanted: Mapping[str, Sequence[Path]], how: How, step: Step) -> None:
        """Unpacks what is wanted."""
        del how
        entries = self._listed()
        _no_trap(self.where, sum(entries[name].file_size for name in wanted))
        with zipfile.ZipFile(self.where) as archive:
            for name in sorted(wanted, key=lambda name: entries[name].header_offset):
                info = entries[name]
                for target in wanted[name]:
                    if not is_whole(target, info.file_size):
                        with _sound(self.where), archive.open(info) as file:
                            _unpack(file, target, info.file_size, self.where)
                    step(info.file_size)


class TarSource:
    """The files of a tar archive, compressed or not."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._entries: dict[str, tarfile.TarInfo] | None = None

    def _listed(self) -> dict[str, tarfile.TarInfo]:
        if self._entries is None:
            with _sound(self.where), tarfile.open(self.where) as archive:
                held: dict[str, tarfile.TarInfo] = {}
                for member in archive:
                    # An image of two classes may be one file under two names; of these, the second
                    # is a link to the first. Other links and devices are of no use here.
                    own = held.get(_plain(member.linkname)) if member.islnk() else member
                    if own is not None and own.isreg():
                        held[_safe(member.name, self.where)] = own
            self._entries = held
        return self._entries

    def sizes(self) -> Mapping[str, int]:
        """Every file's bytes; takes one reading of the whole archive."""
        return {name: member.size for name, member in self._listed().items()}

    def open(self, name: str) -> BinaryIO:
        """One file, read into memory."""
        import io

        with _sound(self.where), tarfile.open(self.where) as archive:
            file = archive.extractfile(self._listed()[name])
            assert file is not None
            return io.BytesIO(file.read())

    def place(self, wanted: Mapping[str, Sequence[Path]], how: How, step: Step) -> None:
        """Unpacks what is wanted in one reading, front to back."""
        del how
        entries = self._listed()
        _no_trap(self.where, sum(entries[name].size for name in wanted))
        last: tuple[int, Path] | None = None
        with _sound(self.where), tarfile.open(self.where) as archive:
            for name in sorted(wanted, key=lambda name: entries[name].offset):
                member = entries[name]
                for target in wanted[name]:
                    if not is_whole(target, member.size):
                        if last is not None and last[0] == member.offset:
                            # To go back in a compressed archive is to begin at its start.
                            shutil.copyfile(last[1], target)
                        else:
                            file = archive.extractfile(member)
                            assert file is not None
                            _unpack(file, target, member.size, self.where)
                    last = member.offset, target
                    step(member.size)


@contextmanager
def _sound(where: Path) -> Iterator[None]:
    """Says of whatever goes wrong inside an archive which archive it is."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the archive's
        raise DataError(
            f"{where}: damaged or incomplete ({error or type(error).__name__})",
            remedy="fetch it again",
        ) from error


def _unpack(file: IO[bytes], target: Path, size: int, where: Path) -> None:
    written = 0
    with target.open("wb") as out:
        while block := file.read(2**20):
            written += len(block)
            if written > size:
                break
            out.write(block)
    if written != size:
        target.unlink()
        raise DataError(
            f"{where}: {target.name} is not as long as the archive says", remedy="fetch it again"
        )


def _no_trap(where: Path, total: int) -> None:
    packed = max(where.stat().st_size, 2**20)
    if total > _GROWTH * packed or total > 2**40:
        raise DataError(
            f"{where}: would unpack to {total / 1e9:,.1f} GB, {total // packed} times its size",
            remedy="images don't; get it from somewhere else",
        )


def _safe(name: str, where: Path) -> str:
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or re.match(r"[A-Za-z]:", name) or "\0" in name:
        raise DataError(
            f"{where}: holds {name!r}, which points outside of it",
            remedy="don't trust this archive; get it from somewhere else",
        )
    return _plain(name)


def _plain(name: str) -> str:
    parts = name.replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", "."))
