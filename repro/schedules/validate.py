"""Checks a schedule when it is built, so that one that is wrong or would hang never reaches a device."""

from __future__ import annotations

from collections import Counter

from .actions import Kind, Schedule, ScheduleError
from .replay import replay


def validate(schedule: Schedule) -> None:
    """Raises ``ScheduleError`` unless every rank can run its actions to the end and gets the right result.

    Checked: every micro-batch passes every stage once forward and once backward (B, or I and W); R is there exactly
    where ``schedule.remat`` asks for it; all actions of one stage and micro-batch are on one rank that holds the
    stage, in an order in which nothing runs before what it needs; no deadlock. The model of communication: sends are
    posted without waiting, there is one in-order channel per pair of ranks and direction, and a send completes when
    its receive is posted. Receives are posted in the order of the sends (see ``incoming``), so a channel never holds
    back what is needed, and what can hang is a cycle of ranks that wait for each other.
    """
    _check_placement(schedule)
    _check_actions(schedule)
    _check_deadlock(schedule)


def _check_placement(schedule: Schedule) -> None:
    ranks, total = schedule.num_stages, schedule.num_stages * schedule.num_virtual_stages
    if len(schedule.actions) != ranks:
        raise ScheduleError(
            f"schedule {schedule.name!r} has actions for {len(schedule.actions)} ranks, but num_stages={ranks}: "
            "give one tuple of actions per rank"
        )
    if len(schedule.placement) != total:
        raise ScheduleError(
            f"schedule {schedule.name!r} places {len(schedule.placement)} stages, but num_stages={ranks} times "
            f"num_virtual_stages={schedule.num_virtual_stages} is {total}: placement needs one entry per stage"
        )
    for stage, holders in enumerate(schedule.placement):
        if not holders or any(not 0 <= rank < ranks for rank in holders):
            raise ScheduleError(
                f"schedule {schedule.name!r} places stage {stage} on ranks {list(holders)}: "
                f"name at least one rank, each from 0 to {ranks - 1}"
            )


def _check_actions(schedule: Schedule) -> None:
    """What each stage does with each micro-batch, taken alone, is complete, in order and on one rank."""
    total, count = schedule.total_stages, schedule.num_micro_batches
    # Per (stage, micro-batch): the letters of its actions in the order in which they run, and the rank that runs them.
    histories = [""] * (total * count)
    owners = [-1] * (total * count)
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            kind, stage, micro_batch = action
            if not (isinstance(kind, Kind) and 0 <= stage < total and 0 <= micro_batch < count):
                raise ScheduleError(
                    f"schedule {schedule.name!r}, rank {rank}: {tuple(action)} is no action of {total} stages and "
                    f"{count} micro-batches (kind one of {', '.join(Kind)}; stages and micro-batches count from 0)"
                )
            if rank not in schedule.placement[stage]:
                raise ScheduleError(
                    f"schedule {schedule.name!r}, rank {rank}: {action} runs on a rank that does not hold stage "
                    f"{stage}; its ranks are {list(schedule.placement[stage])}"
                )
            key = stage * count + micro_batch
            if owners[key] not in (-1, rank):
                raise ScheduleError(
                    f"schedule {schedule.name!r}: stage {stage}, micro-batch {micro_batch} is split over ranks "
                    f"{owners[key]} and {rank}; the rank that runs F holds the activations and must run the rest"
                )
            histories[key] += kind.value
            owners[key] = rank

    legal = {True: ("FRB", "FRIW"), False: ("FB", "FIW")}
    for key, history in enumerate(histories):
        stage, micro_batch = divmod(key, count)
        allowed = legal[schedule.remat.recomputes(micro_batch, count)]
        if history not in allowed:
            raise ScheduleError(
                f"schedule {schedule.name!r}: stage {stage}, micro-batch {micro_batch}: {_fault(history, allowed)}; "
                f"with remat={schedule.remat.value!r} its actions must be {' or '.join(map(' '.join, allowed))}, in "
                f"this order, but they are {' '.join(history) or 'none'}"
            )


def _fault(history: str, allowed: tuple[str, ...]) -> str:
    """In words, how ``history`` differs from the nearest of ``allowed``."""
    split = set(history) & set("IW") and "B" not in history
    expected = allowed[1] if split else allowed[0]
    repeated = [letter for letter, times in Counter(history).items() if times > 1]
    missing = [letter for letter in expected if letter not in history]
    foreign = [letter for letter in history if letter not in expected]
    if repeated:
        return f"{repeated[0]} is there twice"
    if missing:
        return f"{missing[0]} is missing"
    if foreign:
        return f"{foreign[0]} does not belong here"
    return "wrong order"


def _check_deadlock(schedule: Schedule) -> None:
    unit = dict.fromkeys(Kind, (1,) * schedule.total_stages)
    blocked = replay(schedule, unit, (0,) * schedule.total_stages).blocked
    if blocked:
        waits = "; ".join(f"rank {rank} at {action} waits for {missing}" for rank, (action, missing) in blocked.items())
        raise ScheduleError(
            f"schedule {schedule.name!r} would hang, ranks wait for each other: {waits} (F2@1 is F of micro-batch 2 "
            "on stage 1)"
        )
