"""The targets of ``repro run``, by name: found without importing any of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from repro.arguments import suggest
from repro.errors import UserError

from .sweep import Target

TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "table1": "repro.experiments.table1",
        "table2": "repro.experiments.table2",
        "table3": "repro.experiments.table3",
        "remat": "repro.experiments.remat",
        "breakdown": "repro.experiments.breakdown",
        "bubble": "repro.experiments.bubble",
        "figure2": "repro.experiments.figure2",
        "peers": "repro.experiments.peer_comparison",
        "plan": "repro.experiments.plan_check",
        "schedules": "repro.experiments.schedules",
        "table4": "repro.experiments.table4",
        "figure3": "repro.experiments.figure3",
        "table5": "repro.experiments.table5",
        "depth": "repro.experiments.depth",
        "figure1": "repro.experiments.figure1",
    }
)


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
        UserError: there is none.
    """
    if name not in TARGETS:
        raise UserError(f"unknown target {name}{suggest(name, TARGETS)} (one of {', '.join(TARGETS)})")
    found: Target = importlib.import_module(TARGETS[name]).TARGET
    return found
