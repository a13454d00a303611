"""Results as rows: one JSON object a line, one row a figure, and how each figure was obtained."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from repro.errors import UserError

SCHEMA = 1
ROWS_FILE = "rows.jsonl"
RUN_FILE = "run.json"


class Provenance(StrEnum):
    """How a figure was obtained; never one under another's name."""

    PUBLISHED = "published"
    MEASURED = "measured"
    EMULATED = "emulated"
    SIMULATED = "simulated"


class RowError(UserError):
    """A row, or a file of rows, that is not what the format says."""


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        experiment: the table, figure or comparison that it belongs to.
        model: name of the model, with its size where there is more than one.
        batch_size: rows of the mini-batch; None where there is no batch.
        num_stages: K; None where the figure is of no pipeline.
        num_micro_batches: M; likewise.
        schedule: name of the schedule; likewise.
        remat: ``always``, ``except_last`` or ``never``; likewise.
        provenance: how the figure was obtained.
        metric: what ``value`` is.
        value: a finite number.
        unit: of ``value``; ``"1"`` for ratios and shares.
        spread: in the unit of ``value``: half the interquartile range of repetitions; None for a single figure.
        params: everything else that identifies the figure: names to JSON values.
        schema: version of this format.
    """

    experiment: str
    model: str
    batch_size: int | None
    num_stages: int | None
    num_micro_batches: int | None
    schedule: str | None
    remat: str | None
    provenance: Provenance
    metric: str
    value: float
    unit: str
    spread: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise RowError(
                f"a row has schema={self.schema!r}, this version reads schema={SCHEMA}; run the target again"
            )
        try:
            object.__setattr__(self, "provenance", Provenance(self.provenance))
        except ValueError:
            raise RowError(
                f"provenance={self.provenance!r} of {self.metric} is unknown; it is one of {', '.join(Provenance)}"
            ) from None
        for name in ("experiment", "model", "metric", "unit"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise RowError(f"{name}={getattr(self, name)!r} of a row must be a text that is not empty")
        for name in ("value", "spread"):
            number = getattr(self, name)
            if name == "spread" and number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise RowError(f"{name}={number!r} of {self.experiment} {self.metric} must be a finite number")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, in the order in which it is written; ``params`` sorted by name."""
        return {
            "schema": self.schema,
            "experiment": self.experiment,
            "model": self.model,
            "batch_size": self.batch_size,
            "num_stages": self.num_stages,
            "num_micro_batches": self.num_micro_batches,
            "schedule": self.schedule,
            "remat": self.remat,
            "provenance": self.provenance.value,
            "metric": self.metric,
            "value": self.value,
            "unit": self.unit,
            "spread": self.spread,
            "params": dict(sorted(self.params.items())),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """The row that ``as_dict`` wrote.

        Raises:
            RowError: a field is missing, unknown or no valid value.
        """
        names = set(cls.__dataclass_fields__)
        if data.keys() != names:
            wrong = ", ".join(sorted(names ^ data.keys()))
            raise RowError(f"a row must have exactly the fields of the format; missing or unknown: {wrong}")
        return cls(**data)


def write_rows(folder: Path, rows: Iterable[Row]) -> Path:
    """Replaces ``folder/rows.jsonl`` as a whole: a reader sees the old file or the new one, never a part."""
    return write_text(folder / ROWS_FILE, as_lines(rows))


def as_lines(rows: Iterable[Row]) -> str:
    """Rows as they are written, one JSON object a line."""
    return "".join(json.dumps(row.as_dict(), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def read_rows(folder: Path) -> list[Row]:
    """The rows of a run.

    Raises:
        RowError: there is no such file, it cannot be read, or a line is no row; the message has file and line.
    """
    path = folder / ROWS_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RowError(f"no {ROWS_FILE} in {folder}; `repro reproduce` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RowError(f"{path} cannot be read ({error}); delete it and run the target again") from error
    rows = []
    # No splitlines: a text in a row may hold what Unicode counts as the end of a line.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise RowError("a row is a JSON object")
            rows.append(Row.from_dict(data))
        except (json.JSONDecodeError, RecursionError, RowError) as error:
            raise RowError(f"{path}, line {number}: {error}") from error
    return rows


def write_json(path: Path, data: Any) -> Path:
    """Writes ``data`` as indented JSON, as a whole."""
    return write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Replaces ``path`` by ``text`` as a whole, folders made as needed.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another folder with --results") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
