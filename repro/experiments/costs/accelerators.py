"""Accelerators and the links between them, from the tables in ``data/hardware/``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repro.arguments import suggest
from repro.datasets.paths import data_folder
from repro.errors import UserError

from .link import Link


@dataclass(frozen=True)
class Accelerator:
    """How fast one accelerator computes.

    Attributes:
        name: as users call it.
        description: what counts as one, and the arithmetic.
        peak: FLOP a second.
        efficiency: share of the peak that a family of models reaches, by its name.
        link: name of the link between two of them.
        source: of the peak.
        efficiency_source: of the shares, or that they are assumed.
    """

    name: str
    description: str
    peak: float
    efficiency: Mapping[str, float]
    link: str
    source: str
    efficiency_source: str

    def rate(self, family: str) -> float:
        """FLOP a second that ``"amoebanet"`` or ``"transformer"`` reaches."""
        return self.peak * self.efficiency[family]


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of that name.

    Raises:
        UserError: there is none in ``data/hardware/accelerators.csv``.
    """
    row = _find("--accelerator", name, "accelerators")
    return Accelerator(
        name=row["name"],
        description=row["description"],
        peak=1e12 * float(row["peak_tflops"]),
        efficiency={family: float(row[family]) for family in ("amoebanet", "transformer")},
        link=row["link"],
        source=row["source"],
        efficiency_source=row["efficiency_source"],
    )


def find_link(name: str, *, bandwidth: float | None = None, latency: float | None = None) -> Link:
    """The link of that name.

    Args:
        bandwidth: GB/s each way, in place of the table's.
        latency: microseconds, likewise.

    Raises:
        UserError: there is none in ``data/hardware/links.csv``, or a number is out of range.
    """
    row = _find("--link", name, "links")
    return Link(
        name=name if bandwidth is None and latency is None else f"{name}, changed",
        latency=1e-6 * (float(row["latency_us"]) if latency is None else latency),
        bandwidth=1e9 * (float(row["bandwidth_gb_s"]) if bandwidth is None else bandwidth),
    )


def accelerator_names() -> list[str]:
    """All accelerators that have a row."""
    return list(_read("accelerators"))


def link_names() -> list[str]:
    """All links that have a row."""
    return list(_read("links"))


def _find(option: str, name: str, table: str) -> dict[str, str]:
    rows = _read(table)
    if name not in rows:
        raise UserError(
            f"{option} {name}: unknown{suggest(name, rows)} (one of {', '.join(rows)}; data/hardware/{table}.csv takes "
            "more)"
        )
    return rows[name]


def _read(table: str) -> dict[str, dict[str, str]]:
    path: Path = data_folder() / "hardware" / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file, strict=True)}
