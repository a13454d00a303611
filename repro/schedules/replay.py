"""Runs a schedule on a clock: what the validator, the simulator and the merged order have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from .actions import Action, Kind, Schedule

Time: TypeAlias = float | Fraction


@dataclass(frozen=True)
class Replay:
    """Start and end of every action that could run.

    Attributes:
        starts: for every rank, the start of its actions, in program order.
        ends: the same for their ends.
        blocked: for every rank that could not finish, its next action and the action that it waits for; empty when
            the whole schedule ran.
    """

    starts: tuple[tuple[Time, ...], ...]
    ends: tuple[tuple[Time, ...], ...]
    blocked: Mapping[int, tuple[Action, Action]]


def replay(schedule: Schedule, durations: Mapping[Kind, Sequence[Time]], transfer: Sequence[Time]) -> Replay:
    """Runs every rank's actions in order, each as soon as the rank is free and what it needs has arrived.

    F waits for the F of the stage before, B and I wait for the B or I of the stage after; everything else that an
    action needs was made by the same rank and comes before it in program order (the validator sees to that). Sends
    cost the sender nothing. A receiver posts its receives in the order of the sends, so one channel delivers in order
    without ever holding back a message that is needed.

    Args:
        schedule: actions of any subset of micro-batches and directions (forward-only too).
        durations: for every kind, seconds (or any unit) of every stage.
        transfer: delay between stages s and s + 1 where they sit on different ranks, in either direction.
    """
    count = schedule.num_micro_batches
    last = schedule.total_stages - 1
    ranks = len(schedule.actions)
    # Per (stage, micro-batch): when its result was made, None before, in both directions; and the rank that made it.
    outputs: list[Time | None] = [None] * (schedule.total_stages * count)
    gradients: list[Time | None] = [None] * (schedule.total_stages * count)
    holders = [-1] * (schedule.total_stages * count)
    # Which rank is waiting for it.
    waits_forward: dict[int, int] = {}
    waits_gradient: dict[int, int] = {}
    starts: list[list[Time]] = [[] for _ in range(ranks)]
    ends: list[list[Time]] = [[] for _ in range(ranks)]
    forward, input_gradient, whole_backward = Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.BACKWARD
    forward_costs = durations[forward]
    delays = any(transfer)

    runnable = list(reversed(range(ranks)))
    while runnable:
        rank = runnable.pop()
        actions, rank_starts, rank_ends = schedule.actions[rank], starts[rank], ends[rank]
        clock = rank_ends[-1] if rank_ends else 0
        # The same for both directions, written out: this loop is where simulating spends its time.
        for position in range(len(rank_ends), len(actions)):
            kind, stage, micro_batch = actions[position]
            key = stage * count + micro_batch
            start = clock
            if kind is forward:
                if stage:
                    arrival = outputs[key - count]
                    if arrival is None:
                        waits_forward[key - count] = rank
                        break
                    if delays and transfer[stage - 1] and holders[key - count] != rank:
                        arrival = arrival + transfer[stage - 1]
                    if arrival > start:
                        start = arrival
                outputs[key] = clock = start + forward_costs[stage]
                holders[key] = rank
                if key in waits_forward:
                    runnable.append(waits_forward.pop(key))
            elif kind is whole_backward or kind is input_gradient:
                if stage < last:
                    arrival = gradients[key + count]
                    if arrival is None:
                        waits_gradient[key + count] = rank
                        break
                    if delays and transfer[stage] and holders[key + count] != rank:
                        arrival = arrival + transfer[stage]
                    if arrival > start:
                        start = arrival
                gradients[key] = clock = start + durations[kind][stage]
                holders[key] = rank
                if key in waits_gradient:
                    runnable.append(waits_gradient.pop(key))
            else:
                clock = start + durations[kind][stage]
            rank_starts.append(start)
            rank_ends.append(clock)

    blocked = {}
    for waits, kinds in ((waits_forward, (forward,)), (waits_gradient, (whole_backward, input_gradient))):
        for source, rank in waits.items():
            wanted = [Action(kind, *divmod(source, count)) for kind in kinds]
            missing = next((action for action in wanted if any(action in row for row in schedule.actions)), wanted[0])
            blocked[rank] = (schedule.actions[rank][len(ends[rank])], missing)
    return Replay(tuple(map(tuple, starts)), tuple(map(tuple, ends)), dict(sorted(blocked.items())))
