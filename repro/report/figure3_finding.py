"""Finds rows of Figure 3 for its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.experiments.accuracy.figure3_plans import MULTILINGUAL
from repro.experiments.sweeps.rows import Row

from .lines import find_row


def first(rows: Sequence[Row], metric: str, **params: str) -> Row | None:
    """The first row of a metric that has these params."""
    return find_row(
        rows,
        lambda row: row.metric == metric and all(row.params.get(name) == value for name, value in params.items()),
    )


def of_size(rows: Sequence[Row], size: str, metric: str) -> Row | None:
    """A figure of the multilingual model of a size."""
    return first(rows, metric, part="model", size=size, trained_on=MULTILINGUAL)


def last_loss(rows: Sequence[Row], size: str) -> Row | None:
    """The last point of the training curve of the multilingual model of a size."""
    curve = [
        row
        for row in rows
        if row.metric == "training_loss"
        and row.params.get("size") == size
        and row.params.get("trained_on") == MULTILINGUAL
    ]
    return max(curve, key=lambda row: int(row.params["step"]), default=None)


def languages_by_rank(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What is known of each language, the one with most text first."""
    found = {row.params["language"]: dict(row.params) for row in rows if row.params.get("part") == "language"}
    return sorted(found.values(), key=lambda about: int(about["rank"]))
