"""The report on Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.experiments.sweeps.rows import Row

from .lines import Section
from .loading import Results
from .throughput import table_sections
from .throughput_plots import draw_table

PICTURES = ("table2.png",)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """A section for each model."""
    return table_sections("table2", "Table 2", results, reference)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draws the figure of the table."""
    draw_table("table2", rows, folder / "table2.png")
