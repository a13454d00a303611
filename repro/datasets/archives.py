"""Reading archives without installing or unpacking them: wheels, Debian and npm packages, gettext catalogues."""

from __future__ import annotations

import gzip
import io
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from repro.datasets.paths import DataError

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_MO_MAGIC = 0x950412DE


def read_wheel(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Members of a wheel (a zip file) whose name ``wanted`` accepts, sorted by name.

    Raises:
        DataError: the file is not a readable zip archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if not name.endswith("/") and wanted(name))
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path} cannot be read as a wheel ({error}). Delete it and fetch again.") from error


def canonical_name(name: str) -> str:
    """Distribution name in the form in which two spellings of it are equal (packaging specification)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_wheel(folder: Path, requirement: str) -> Path | None:
    """The wheel in ``folder`` that is ``requirement`` (``name==version``), however its file name is spelled."""
    name, version = requirement.split("==")
    for path in sorted(folder.glob("*.whl")):
        parts = path.name.split("-")
        if len(parts) >= 5 and canonical_name(parts[0]) == canonical_name(name) and parts[1] == version:
            return path
    return None


def read_deb(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Regular files of a Debian package (an ``ar`` archive around a tar file) whose name ``wanted`` accepts.

    Names come without the leading ``./``. Needs neither root nor dpkg.

    Raises:
        DataError: the file is not a Debian package, or is compressed in a way that Python cannot read.
    """
    for name, body in _ar_members(path):
        if name.startswith("data.tar"):
            try:
                return _tar_files(io.BytesIO(body), wanted)
            except tarfile.TarError as error:
                raise DataError(f"{path}: Python cannot unpack its {name} ({error}).") from error
    raise DataError(f"{path} is not a Debian package: it holds no data.tar. Delete it and fetch again.")


def read_npm(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Regular files of an npm package (a compressed tar file) whose name ``wanted`` accepts.

    Names come without the leading ``package/``.

    Raises:
        DataError: the file is not a readable archive.
    """
    try:
        with path.open("rb") as file:
            found = _tar_files(file, lambda name: wanted(name.removeprefix("package/")))
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as an npm package ({error}). Delete it and fetch again.") from error
    return {name.removeprefix("package/"): data for name, data in found.items()}


def _tar_files(file: IO[bytes], wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Regular files of a tar archive, however it is compressed, read from front to back once."""
    files = {}
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            inside = member.name.removeprefix("./")
            if member.isfile() and wanted(inside):
                extracted = archive.extractfile(member)
                files[inside] = extracted.read() if extracted is not None else b""
    return files


def _ar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    data = path.read_bytes()
    if not data.startswith(_AR_MAGIC):
        raise DataError(f"{path} is not a Debian package. Delete it and fetch again.")
    position = len(_AR_MAGIC)
    while position + _AR_HEADER <= len(data):
        header = data[position : position + _AR_HEADER]
        try:
            size = int(header[48:58])
        except ValueError as error:
            raise DataError(f"{path} is damaged at byte {position}. Delete it and fetch again.") from error
        start = position + _AR_HEADER
        yield header[:16].decode("ascii", "replace").strip().rstrip("/"), data[start : start + size]
        position = start + size + size % 2


def read_catalogue(data: bytes) -> list[tuple[str, str]]:
    """(English, translation) pairs of a compiled gettext catalogue, in file order.

    A message with a plural gives two pairs: singular with the first form, plural with the last one (only the plural
    where the language has a single form). Contexts are dropped, the header entry is skipped.

    Raises:
        ValueError: not a ``.mo`` file.
    """
    if len(data) < 20:
        raise ValueError("too short for a gettext catalogue")
    order = "<" if struct.unpack("<I", data[:4])[0] == _MO_MAGIC else ">"
    magic, _, count, originals, translations = struct.unpack(f"{order}5I", data[:20])
    if magic != _MO_MAGIC:
        raise ValueError("not a gettext catalogue")
    pairs = []
    for index in range(count):
        english = _mo_string(data, order, originals, index)
        foreign = _mo_string(data, order, translations, index)
        english = english.rpartition("\x04")[2]
        if not english or not foreign:
            continue
        sources, forms = english.split("\0"), foreign.split("\0")
        if len(sources) > 1:
            if len(forms) > 1:
                pairs.append((sources[0], forms[0]))
            pairs.append((sources[1], forms[-1]))
        else:
            pairs.append((english, forms[0]))
    return pairs


def _mo_string(data: bytes, order: str, table: int, index: int) -> str:
    length, offset = struct.unpack_from(f"{order}2I", data, table + 8 * index)
    return data[offset : offset + length].decode("utf-8", "replace")


def gunzip_if_needed(data: bytes) -> bytes:
    """``data`` decompressed if it is gzip, else as it is."""
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
