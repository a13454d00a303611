"""Text files as sentences, one a line: plain or gzip, UTF-8, with file and line in every complaint."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro.datasets.paths import DataError

_BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


def find_text(folder: Path, name: str) -> Path | None:
    """``folder/name``, or ``folder/name.gz`` where only that is there, or None."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of ``path`` without their ends; only a line feed, or a carriage return before it, ends a line.

    A byte order mark at the start is dropped.

    Raises:
        DataError: the file is missing or damaged, or a line is not UTF-8.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line in decode_lines(file, path):
                number += 1
                yield line
    except (OSError, EOFError, zlib.error) as error:
        where = f"{path} cannot be read" if number == 0 else f"{path}: damaged after line {number:,}"
        raise DataError(f"{where} ({error}). Check the file, or bring it again.") from error


def decode_lines(raw: Iterable[bytes], name: Path | str) -> Iterator[str]:
    """The lines of an open binary file as ``read_lines`` gives them; ``name`` is what complaints call it.

    Raises:
        DataError: a line is not UTF-8.
    """
    for number, ended in enumerate(raw, start=1):
        line = _decoded(ended, name, number)
        yield (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r\n")


def _decoded(raw: bytes, path: Path | str, number: int) -> str:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number:,}: not UTF-8 ({error.reason} at byte {error.start + 1} of the line). Convert the "
            f"file first, for example with `iconv -f latin1 -t utf-8`."
        ) from error
    if "\0" in line:
        raise DataError(
            f"{path}, line {number:,}: holds a zero byte, as UTF-16 does. Convert the file to UTF-8 first, for example "
            "with `iconv -f utf-16 -t utf-8`."
        )
    return line
