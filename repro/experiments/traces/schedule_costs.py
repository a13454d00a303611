"""What actions, the time between them and messages cost in a traced step; a schedule replayed with these costs."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repro.schedules import Schedule, Timeline, simulate

if TYPE_CHECKING:
    from repro.gpipe import Event

_GRADIENT = ("B", "I")


@dataclass(frozen=True)
class TracedCosts:
    """Mean costs of one step, in seconds.

    Attributes:
        actions: by kind (``"F"``, ``"R"``, ``"B"``, ``"I"``, ``"W"``, those that ran), for every stage.
        between: from the end of an action to the start of the next one on the same rank, where nothing is waited for.
        message: from the end of an action to the start of one on another rank that was waiting for its message; 0 where
            none was.
    """

    actions: Mapping[str, tuple[float, ...]]
    between: float
    message: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, rounded to a tenth of a microsecond."""
        return {
            "actions": {kind: [round(cost, 7) for cost in costs] for kind, costs in self.actions.items()},
            "between": round(self.between, 7),
            "message": round(self.message, 7),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TracedCosts:
        """What ``as_dict`` gave."""
        actions = {kind: tuple(costs) for kind, costs in data["actions"].items()}
        return cls(actions, data["between"], data["message"])


def traced_costs(events: Sequence[Event], total_stages: int) -> TracedCosts:
    """The costs in the trace of one step of all ranks.

    Raises:
        ValueError: a kind of action ran on some stages only.
    """
    seconds: dict[str, list[list[float]]] = {}
    for event in events:
        by_stage = seconds.setdefault(event.kind, [[] for _ in range(total_stages)])
        by_stage[event.stage].append(event.end - event.start)
    for kind, by_stage in seconds.items():
        if not all(by_stage):
            raise ValueError(f"the trace has {kind} on some stages only")
    made = {
        (event.kind in _GRADIENT, event.stage, event.micro_batch): event for event in events if event.kind not in "RW"
    }
    between, messages = [], []
    for rank in sorted({event.rank for event in events}):
        own = sorted((event for event in events if event.rank == rank), key=lambda event: event.start)
        for before, event in itertools.pairwise(own):
            backward = event.kind in _GRADIENT
            source = made.get((backward, event.stage + (1 if backward else -1), event.micro_batch))
            if event.kind in "RW" or source is None or source.rank == rank or source.end <= before.start:
                between.append(event.start - before.end)
            elif source.end >= before.end:
                messages.append(event.start - source.end)
    return TracedCosts(
        {kind: tuple(map(statistics.fmean, by_stage)) for kind, by_stage in seconds.items()},
        statistics.fmean(between) if between else 0.0,
        statistics.fmean(messages) if messages else 0.0,
    )


def replayed_with(schedule: Schedule, costs: TracedCosts) -> Timeline:
    """The schedule with traced costs: each action occupies its rank until the next one could begin."""

    def of(*kinds: str) -> list[float]:
        found = [costs.actions[kind] for kind in kinds if kind in costs.actions]
        return [sum(stage) + len(found) * costs.between for stage in zip(*found, strict=True)]

    return simulate(
        schedule,
        forward=of("F"),
        backward=of("B", "I", "W"),
        recompute=of("R") or 0.0,
        weight=of("W") or None,
        # A message leaves before its rank is ready for the next action.
        transfer=max(0.0, costs.message - costs.between),
    )
