"""The paper's published numbers, read from ``data/paper/``: code never holds one itself."""

from __future__ import annotations

import csv
from pathlib import Path

from repro.datasets.paths import DataError, data_folder

CONFIDENCE = {
    "S2": "seen in at least two independent copies",
    "S1": "seen in one copy",
    "D": "digitised from a picture of the published figure",
    "C": "computed from published figures or by counting",
    "I": "inferred",
}
"""What the tags of the ``confidence`` column mean."""

Value = str | int | float | None


def published(name: str, folder: Path | None = None) -> list[dict[str, Value]]:
    """Rows of one published table, for example ``published("table2")``.

    Numbers come as int or float, empty cells as None. Every row has a ``confidence`` (a key of ``CONFIDENCE``) and a
    ``source``. ``published_names`` lists the tables.

    Raises:
        DataError: there is no such table, or no checkout to read it from.
    """
    folder = data_folder() / "paper" if folder is None else folder
    path = folder / f"{name}.csv"
    if not path.is_file():
        names = ", ".join(published_names(folder)) or f"none: the folder {folder} is missing or empty"
        raise DataError(f"no published table {name!r}; there is {names}")
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file, strict=True)]


def published_names(folder: Path | None = None) -> list[str]:
    """Names of all published tables, sorted."""
    folder = data_folder() / "paper" if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.csv"))


def _value(text: str) -> Value:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
