"""The bubble of a step: measured from its trace, replayed from the costs in a trace, and in closed form."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.schedules import Remat, Schedule, Timeline, bubble, gpipe_bubble, simulate

if TYPE_CHECKING:
    from repro.gpipe import Event


@dataclass(frozen=True)
class StageCosts:
    """Seconds of one micro-batch on each stage, the medians of a trace."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    recompute: tuple[float, ...]

    def as_dict(self) -> dict[str, list[float]]:
        """Plain data, in microseconds precision."""
        return {name: [round(cost, 6) for cost in getattr(self, name)] for name in ("forward", "backward", "recompute")}


def measured_bubble(events: Sequence[Event]) -> float:
    """Idle time of the ranks / (ranks x makespan) of one step that ran with a rank in each process.

    The step lasts from the first start to the last end of any action; waiting for messages, sending and the time
    between actions are idle.

    Raises:
        ValueError: no events, or events that took no time.
    """
    if not events:
        raise ValueError("no events: train with trace=True")
    makespan = max(event.end for event in events) - min(event.start for event in events)
    if makespan <= 0:
        raise ValueError(f"{len(events)} events that took no time")
    ranks = {event.rank for event in events}
    return 1 - sum(event.end - event.start for event in events) / (len(ranks) * makespan)


def stage_costs(steps: Sequence[Sequence[Event]], num_stages: int) -> StageCosts:
    """Costs of F, B and R on each stage over all micro-batches of some steps; R is 0 where nothing was recomputed.

    Raises:
        ValueError: a stage has no F or no B.
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    for step in steps:
        for event in step:
            seconds.setdefault((event.kind, event.stage), []).append(event.end - event.start)

    def costs(kind: str) -> tuple[float, ...]:
        missing = [stage for stage in range(num_stages) if (kind, stage) not in seconds]
        if missing and kind != "R":
            raise ValueError(f"the trace has no {kind} of stage {missing[0]}")
        return tuple(statistics.median(seconds.get((kind, stage), [0.0])) for stage in range(num_stages))

    return StageCosts(costs("F"), costs("B"), costs("R"))


def replayed(schedule: Schedule, costs: StageCosts) -> Timeline:
    """The schedule with these costs, each stage on a device of its own, messages free."""
    return simulate(schedule, forward=costs.forward, backward=costs.backward, recompute=costs.recompute)


def closed_forms(num_stages: int, num_micro_batches: int, remat: Remat | str, costs: StageCosts) -> Mapping[str, float]:
    """Both closed forms for equal stages: without remat, (K-1)/(M+K-1), and with it, from the mean costs."""
    return {
        "closed form without remat": bubble(num_stages, num_micro_batches),
        "closed form with remat": float(
            gpipe_bubble(
                num_stages,
                num_micro_batches,
                forward=statistics.fmean(costs.forward),
                backward=statistics.fmean(costs.backward),
                recompute=statistics.fmean(costs.recompute),
                remat=remat,
            )
        ),
    }


def events_of(timeline: Timeline) -> list[Event]:
    """A replayed timeline in the form of a trace."""
    # Only now: this loads torch, which rows and reports do without.
    from repro.gpipe import Event

    return [
        Event(rank, kind.value, stage, micro_batch, 0.0, float(start), float(end))
        for rank, actions in enumerate(timeline.schedule.actions)
        for (kind, stage, micro_batch), start, end in zip(
            actions, timeline.starts[rank], timeline.ends[rank], strict=True
        )
    ]
