"""The targets of ``repro run``, by name: found without importing any of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from repro.arguments import suggest
from repro.errors import UserError

from .sweeps.sweep import Target

TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "table1": "repro.experiments.memory.table1",
        "table2": "repro.experiments.throughput.table2",
        "table3": "repro.experiments.throughput.table3",
        "remat": "repro.experiments.memory.remat",
        "breakdown": "repro.experiments.bubble.breakdown",
        "bubble": "repro.experiments.bubble.bubble",
        "figure2": "repro.experiments.bubble.figure2",
        "peers": "repro.experiments.peers.peer_comparison",
        "plan": "repro.experiments.planner.plan_check",
        "schedules": "repro.experiments.schedules.schedules",
        "table4": "repro.experiments.accuracy.table4",
        "figure3": "repro.experiments.accuracy.figure3",
        "table5": "repro.experiments.accuracy.table5",
        "depth": "repro.experiments.accuracy.depth",
        "figure1": "repro.experiments.accuracy.figure1",
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
