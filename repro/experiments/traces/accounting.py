"""Where the time of a traced step goes: ranks x step time, dealt out to causes that add up to all of it.

Two replays of the step tell what would have been. In both every action starts as soon as its rank is free and what it
needs has been made, and messages take no time: one with the seconds that each action took, one in which all actions of
a kind take their mean. What the second leaves idle is the bubble, what the first adds to it is imbalance, what the step
itself adds to that are messages and the engine's own work between actions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from repro.gpipe import Event
from repro.schedules import Action, Kind, Schedule, merged_order

PARTS = (
    "computation",
    "recompute",
    "bubble",
    "load imbalance",
    "communication",
    "weight update",
    "setup",
)
"""As in the paper's breakdown, and communication, which it does not list."""


@dataclass(frozen=True)
class Breakdown:
    """Seconds of all ranks together.

    Attributes:
        computation: F and B (or I and W).
        recompute: R.
        bubble: what a pipeline of equal stages with these mean costs leaves idle, less what the weight update fills.
        load_imbalance: what unequal actions add to that: stages of unequal cost, and noise from action to action.
        communication: what messages and the engine's work between actions add to the step.
        weight_update: of the optimizer.
        setup: the rest: reading the batch and bringing it to its stages, adding up gradients, sharing the loss.
        total: ranks x step time, the sum of all above.
        between_stages: the part of ``load_imbalance`` that stages with their mean costs have; the rest is noise.
    """

    computation: float
    recompute: float
    bubble: float
    load_imbalance: float
    communication: float
    weight_update: float
    setup: float
    total: float
    between_stages: float = 0.0

    def shares(self) -> dict[str, float]:
        """By the names of ``PARTS``, shares of the total."""
        values = asdict(self)
        return {name: values[name.replace(" ", "_")] / self.total for name in PARTS}


def break_down(
    schedule: Schedule,
    events: Sequence[Event],
    *,
    begun: float,
    ended: float,
    updates: Iterable[tuple[float, float]] = (),
) -> Breakdown:
    """Deals the time of one step out.

    Args:
        schedule: what was executed.
        events: the actions of all ranks, on one clock.
        begun: when the first rank began the step.
        ended: when the last rank had ended it.
        updates: start and end of the weight update of every rank; it may run while other ranks still have actions.

    Raises:
        ValueError: the events are not the actions of the schedule.
    """
    seconds = durations(schedule, events)
    ranks = len(schedule.actions)
    first, last = min(event.start for event in events), max(event.end for event in events)
    recompute = sum(value for action, value in seconds.items() if action.kind is Kind.RECOMPUTE)
    computation = sum(seconds.values()) - recompute
    actual = makespan(schedule, seconds)
    balanced = min(makespan(schedule, _means(seconds)), actual)
    uneven = min(max(makespan(schedule, _means(seconds, by_stage=True)), balanced), actual)
    update = sum(end - start for start, end in updates)
    # A rank that has ended its last B updates its weights while others are still at work: in its bubble.
    hidden = sum(max(0.0, min(end, last) - max(start, first)) for start, end in updates)
    idle = {
        "bubble": ranks * balanced - sum(seconds.values()),
        "load_imbalance": ranks * (actual - balanced),
        "communication": max(0.0, ranks * (last - first - actual)),
    }
    for cause in idle:
        taken = min(hidden, idle[cause])
        idle[cause] -= taken
        hidden -= taken
    total = ranks * (ended - begun)
    setup = total - computation - recompute - sum(idle.values()) - update
    between = min(ranks * (uneven - balanced), idle["load_imbalance"])
    return Breakdown(
        computation, recompute, **idle, weight_update=update, setup=setup, total=total, between_stages=between
    )


def durations(schedule: Schedule, events: Sequence[Event]) -> dict[Action, float]:
    """Seconds of every action of the schedule.

    Raises:
        ValueError: the events are not those of the schedule.
    """
    found = {Action(Kind(e.kind), e.stage, e.micro_batch): e.end - e.start for e in events}
    wanted = {action for actions in schedule.actions for action in actions}
    if found.keys() != wanted or len(events) != len(wanted):
        raise ValueError(f"a trace of {len(events)} actions of a schedule that has {len(wanted)}")
    return found


def makespan(schedule: Schedule, seconds: Mapping[Action, float]) -> float:
    """From the first start to the last end, when every action starts as early as it can and messages are free."""
    ends: dict[Action, float] = {}
    free = [0.0] * len(schedule.actions)
    for rank, action in merged_order(schedule):
        needed = _needed(action, schedule.total_stages - 1, ends)
        ends[action] = free[rank] = max([free[rank], *needed]) + seconds[action]
    return max(free, default=0.0)


def _needed(action: Action, last: int, ends: Mapping[Action, float]) -> list[float]:
    kind, stage, micro_batch = action
    if kind is Kind.FORWARD and stage > 0:
        return [ends[Action(Kind.FORWARD, stage - 1, micro_batch)]]
    if kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT) and stage < last:
        after = (Action(made, stage + 1, micro_batch) for made in (Kind.BACKWARD, Kind.INPUT_GRADIENT))
        return [ends[made] for made in after if made in ends]
    return []


def _means(seconds: Mapping[Action, float], *, by_stage: bool = False) -> dict[Action, float]:
    """Every action with the mean of its kind, over all stages or its own."""

    def group(action: Action) -> tuple[Kind, int]:
        return action.kind, action.stage if by_stage else 0

    groups: dict[tuple[Kind, int], list[float]] = {}
    for action, value in seconds.items():
        groups.setdefault(group(action), []).append(value)
    means = {key: statistics.fmean(values) for key, values in groups.items()}
    return {action: means[group(action)] for action in seconds}
