"""Rows by what they are, or the news that there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.datasets.paper import Value, published
from repro.experiments.sweeps.rows import Row

from .claim import Missing

_FIELDS = frozenset(("experiment", "model", "batch_size", "num_stages", "num_micro_batches", "remat", "provenance"))


def select(rows: Sequence[Row], metric: str, **wanted: Any) -> list[Row]:
    """Rows with a metric and with fields or ``params`` as given.

    Raises:
        Missing: there is none.
    """
    chosen = [row for row in rows if row.metric == metric and all(_has(row, *item) for item in wanted.items())]
    if not chosen:
        said = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise Missing(f"{metric.replace('_', ' ')}{f' with {said}' if said else ''}")
    return chosen


def number(row: dict[str, Value], column: str) -> float:
    """A number of a published row."""
    value = row[column]
    assert isinstance(value, int | float), f"{column}={value!r}"
    return float(value)


def entry(table: str, **key: Value) -> dict[str, Value]:
    """The one published row with these values."""
    (only,) = (row for row in published(table) if all(row[name] == value for name, value in key.items()))
    return only


def said(name: str) -> dict[str, Value]:
    """The row of ``data/paper/claims.csv`` called ``name``."""
    return entry("claims", id=name)


def _has(row: Row, name: str, value: Any) -> bool:
    return bool((getattr(row, name) if name in _FIELDS else row.params.get(name)) == value)
