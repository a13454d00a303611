"""Rows with what a rule reads, and nothing of interest elsewhere."""

from __future__ import annotations

from typing import Any

from repro.experiments.sweeps.rows import Provenance, Row

SIMULATED, EMULATED, MEASURED = Provenance.SIMULATED, Provenance.EMULATED, Provenance.MEASURED


def row(
    metric: str,
    value: float,
    *,
    model: str = "a model",
    provenance: Provenance = MEASURED,
    k: int | None = None,
    m: int | None = None,
    remat: str | None = None,
    spread: float | None = None,
    experiment: str = "made up",
    batch_size: int | None = None,
    **params: Any,
) -> Row:
    """A row; ``k`` and ``m`` are its stages and micro-batches, further names its params."""
    return Row(experiment, model, batch_size, k, m, None, remat, provenance, metric, value, "1", spread, params)
