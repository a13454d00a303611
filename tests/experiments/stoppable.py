"""A target whose second part ends only when a file is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.experiments.sweeps.checks import Check
from repro.experiments.sweeps.ranks import Tell
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.sweeps.sweep import Request, SweepPart, Target

ROW = Row("wait", "none", None, None, None, None, None, Provenance.MEASURED, "one", 1.0, "1")


def answer(rank: int, tell: Tell, waits: bool) -> int:
    """1; the second part waits for a file ``go`` in the folder of the run, found by way of its log."""
    folder = Path("/proc/self/fd/1").resolve().parents[1]
    while waits and not (folder / "go").exists():
        time.sleep(0.05)
    return 1


def parts(request: Request) -> list[SweepPart]:
    return [SweepPart(name, name, answer, (name == "second",), 1, 1.0) for name in ("first", "second")]


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    return [replace(ROW, params={"part": name}) for name in results], []


TARGET = Target("stoppable", "Waits.", {"smoke": 0.1, "laptop": 0.1}, parts, rows)
