"""Sends and receives, derived from a schedule in this one place, and the orders that follow from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from .actions import Action, Kind, Remat, Schedule
from .replay import replay

Direction: TypeAlias = Literal["activation", "gradient"]


class Message(NamedTuple):
    """What one stage hands to a neighbouring stage on another rank for one micro-batch."""

    direction: Direction
    source_stage: int
    target_stage: int
    micro_batch: int


def edges(schedule: Schedule) -> dict[tuple[int, int, Direction], tuple[Message, ...]]:
    """All messages, by (source rank, target rank, direction), each channel in the order in which it is sent.

    F of a stage sends its output to the stage after, B (or I) the gradient of its input to the stage before. Messages
    between two stages on one rank stay there and are not listed.
    """
    last, count = schedule.total_stages - 1, schedule.num_micro_batches
    runs_forward, runs_backward = {}, {}
    for rank, actions in enumerate(schedule.actions):
        for kind, stage, micro_batch in actions:
            if kind is Kind.FORWARD:
                runs_forward[stage * count + micro_batch] = rank
            elif kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT:
                runs_backward[stage * count + micro_batch] = rank

    channels: dict[tuple[int, int, Direction], list[Message]] = {}
    for rank, actions in enumerate(schedule.actions):
        for kind, stage, micro_batch in actions:
            direction: Direction
            if kind is Kind.FORWARD and stage < last:
                direction, target_stage, runs = "activation", stage + 1, runs_forward
            elif (kind is Kind.BACKWARD or kind is Kind.INPUT_GRADIENT) and stage > 0:
                direction, target_stage, runs = "gradient", stage - 1, runs_backward
            else:
                continue
            target = runs[target_stage * count + micro_batch]
            if target != rank:
                message = Message(direction, stage, target_stage, micro_batch)
                channels.setdefault((rank, target, direction), []).append(message)
    return {channel: tuple(messages) for channel, messages in channels.items()}


def incoming(schedule: Schedule, rank: int) -> dict[tuple[int, Direction], tuple[Message, ...]]:
    """What ``rank`` receives, by (source rank, direction), in the sender's program order.

    A rank posts its receives in this order, which is the order in which a channel without tags delivers; a message
    that arrives before the action that uses it is kept until then.
    """
    return {
        (source, direction): messages
        for (source, target, direction), messages in edges(schedule).items()
        if target == rank
    }


def receive_windows(schedule: Schedule, rank: int, ahead: int) -> dict[Message, int]:
    """How many messages of its channel may be on their way or held when ``rank`` waits for a message.

    A receive that is posted before its message comes costs neither side a second round trip. An activation may be
    received early for free where the schedule comes to hold as many later anyway: with GPipe all M of a step.

    Args:
        ahead: messages beyond the one waited for that every channel may have on their way.

    Returns:
        For each message that arrives at ``rank``, the number of messages of its channel, counted from the first of the
        step, whose receives may be posted then.
    """
    windows: dict[Message, int] = {}
    for (_, direction), messages in incoming(schedule, rank).items():
        number = {message: index for index, message in enumerate(messages)}
        held, most, before = 0, 0, [0] * len(messages)
        for kind, stage, micro_batch in schedule.actions[rank]:
            index = number.get(Message("activation", stage - 1, stage, micro_batch))
            if direction != "activation" or index is None:
                continue
            if kind is Kind.FORWARD:
                before[index] = held
                held += 1
                most = max(most, held)
            elif kind is Kind.BACKWARD or kind is Kind.WEIGHT_GRADIENT:
                held -= 1
        # Without a backward half nothing is held.
        free = [most - count if held == 0 else 0 for count in before]
        windows |= {message: index + max(1 + ahead, free[index]) for message, index in number.items()}
    return windows


def forward_only(schedule: Schedule) -> Schedule:
    """The same schedule without its backward half, for evaluation: every F, in the same order on the same ranks."""
    return replace(
        schedule,
        remat=Remat.NEVER,
        actions=tuple(
            tuple(action for action in actions if action.kind is Kind.FORWARD) for actions in schedule.actions
        ),
    )


def merged_order(schedule: Schedule) -> tuple[tuple[int, Action], ...]:
    """One order of all (rank, action) for running every rank in one process.

    Sorted by the start that each action has when F, R, I and W cost 1 and B costs 2, then by rank. No cost is zero, so
    whatever an action needs starts, and stands, before it.
    """
    cost = {kind: (2 if kind is Kind.BACKWARD else 1,) * schedule.total_stages for kind in Kind}
    starts = replay(schedule, cost, (0,) * schedule.total_stages).starts
    timed = [
        (start, rank, action)
        for rank, actions in enumerate(schedule.actions)
        for start, action in zip(starts[rank], actions, strict=True)
    ]
    timed.sort(key=lambda entry: entry[:2])
    return tuple((rank, action) for _, rank, action in timed)
