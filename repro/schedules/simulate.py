"""The timing of a schedule from the costs of its actions: makespan, bubble, live activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import sub
from typing import TypeAlias

from .actions import Kind, Schedule, ScheduleError
from .replay import Time, replay

Cost: TypeAlias = Time | Sequence[Time]


@dataclass(frozen=True)
class Timeline:
    """When every action of a schedule runs, in the unit of the costs that it was simulated with.

    Attributes:
        schedule: what was simulated.
        starts: for every rank, the start of each of its actions, in program order.
        ends: the same for their ends.
    """

    schedule: Schedule
    starts: tuple[tuple[Time, ...], ...]
    ends: tuple[tuple[Time, ...], ...]

    @cached_property
    def makespan(self) -> Time:
        """From the first start (0) to the last end."""
        return max((rank_ends[-1] for rank_ends in self.ends if rank_ends), default=0)

    @cached_property
    def busy(self) -> tuple[Time, ...]:
        """For every rank, the time in which it runs an action (R counts)."""
        return tuple(sum(map(sub, ends, starts)) for starts, ends in zip(self.starts, self.ends, strict=True))

    @cached_property
    def rank_bubbles(self) -> tuple[Time, ...]:
        """For every rank, idle time / makespan."""
        return tuple((self.makespan - busy) / self.makespan if self.makespan else 0 for busy in self.busy)

    @cached_property
    def bubble(self) -> Time:
        """Idle time of all ranks / (ranks x makespan)."""
        total = len(self.busy) * self.makespan
        return (total - sum(self.busy)) / total if total else 0

    @cached_property
    def bubble_without_flush(self) -> Time:
        """Idle share where no rank waits for the others at the end: the longest span stands for the makespan.

        A rank's span is from its first action to its last one. This is the bubble rate of "Zero Bubble Pipeline
        Parallelism" (Qi et al. 2023), which lets each rank begin its next step alone; with a flush use ``bubble``.
        """
        spans = [ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends, strict=True) if ends]
        total = len(self.busy) * max(spans, default=0)
        return (total - sum(self.busy)) / total if total else 0

    @cached_property
    def peak_live(self) -> tuple[int, ...]:
        """For every rank, the largest number of micro-batches of one stage whose activations it holds at once.

        Activations live from F, or from R where there is one, to the end of B, or of W where the backward is split.
        What F keeps for R (the stage's input) and evaluation, which keeps nothing, do not count.
        """
        return tuple(_peak_live(self.schedule, rank) for rank in range(len(self.schedule.actions)))


def simulate(
    schedule: Schedule,
    forward: Cost = 1.0,
    backward: Cost = 2.0,
    recompute: Cost = 0.0,
    weight: Cost | None = None,
    transfer: Cost = 0.0,
) -> Timeline:
    """Replays ``schedule`` with the given costs, each action as early as its rank and what it needs allow.

    Args:
        schedule: a valid schedule, forward-only ones included.
        forward: cost of F of one micro-batch, one number or one per stage (K x V of them), any unit; ``Fraction`` for
            exact results.
        backward: cost of the whole backward B = I + W.
        recompute: cost of R.
        weight: the part of ``backward`` that W takes where the schedule splits it; half of it by default.
        transfer: delay of a message from one stage to the next on another rank, one number or one per boundary
            (K x V - 1 of them), the same in both directions. It keeps no rank busy.

    Raises:
        ScheduleError: a cost is negative or not finite, a sequence has the wrong length, or ``weight`` is more than
            ``backward``.
    """
    total = schedule.total_stages
    backwards = _per_stage("backward", backward, total)
    weights = tuple(cost / 2 for cost in backwards) if weight is None else _per_stage("weight", weight, total)
    for stage, (part, whole) in enumerate(zip(weights, backwards, strict=True)):
        if part > whole:
            raise ScheduleError(
                f"weight={part} of stage {stage} is more than its backward={whole}: weight is the part of backward "
                "that W takes"
            )
    durations = {
        Kind.FORWARD: _per_stage("forward", forward, total),
        Kind.RECOMPUTE: _per_stage("recompute", recompute, total),
        Kind.BACKWARD: backwards,
        Kind.INPUT_GRADIENT: tuple(whole - part for whole, part in zip(backwards, weights, strict=True)),
        Kind.WEIGHT_GRADIENT: weights,
    }
    played = replay(schedule, durations, _per_stage("transfer", transfer, total - 1))
    return Timeline(schedule, played.starts, played.ends)


def _per_stage(name: str, cost: Cost, length: int) -> tuple[Time, ...]:
    costs = tuple(cost) if isinstance(cost, Sequence) else (cost,) * length
    if len(costs) != length:
        what = "boundaries between stages" if name == "transfer" else "stages"
        raise ScheduleError(f"{name} has {len(costs)} values for {length} {what}: give one number, or one for each")
    for value in costs:
        if not (math.isfinite(value) and value >= 0):
            raise ScheduleError(f"{name}={value} is no cost: give a finite number of at least 0")
    return costs


def _peak_live(schedule: Schedule, rank: int) -> int:
    count = schedule.num_micro_batches
    forward, recompute, backward, weight = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD, Kind.WEIGHT_GRADIENT
    live: set[int] = set()
    peak = 0
    # From the end: the last action of a stage and micro-batch frees what the last R, or F, before it has made.
    for kind, stage, micro_batch in reversed(schedule.actions[rank]):
        if kind is backward or kind is weight:
            live.add(stage * count + micro_batch)
            if len(live) > peak:
                peak = len(live)
        elif kind is forward or kind is recompute:
            live.discard(stage * count + micro_batch)
    return peak
