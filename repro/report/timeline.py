"""Draws the timeline of a schedule as text: one row per rank, time from left to right, the bubble as dots."""

from __future__ import annotations

import re

from repro.schedules import Action, Kind, Schedule, Timeline
from repro.schedules.replay import Time

_IDLE = "."
_MAX_LETTERS = 26
# Black on the colours that the figures have, as near as the 256 colours of terminals come.
_TERMINAL = {
    Kind.FORWARD: 74,
    Kind.RECOMPUTE: 214,
    Kind.BACKWARD: 36,
    Kind.INPUT_GRADIENT: 36,
    Kind.WEIGHT_GRADIENT: 175,
}


def draw(timeline: Timeline, width: int = 160, *, colours: bool = False) -> str:
    """The timeline as one line per rank.

    Where there is room, every action is written as its kind and micro-batch (``F3``, ``R3``, ``B3``, ``I3``, ``W3``;
    with virtual stages a letter tells which of the rank's stages: ``F3a``, ``F3b``) and filled up to its end with
    ``-``. Where there is not, a column shows only the kind of the action that runs in its middle. Actions that cost
    nothing have no width and are not drawn.

    Args:
        timeline: what to draw.
        width: columns at most, rank names included.
        colours: escape sequences of a terminal in addition, a colour for every kind; without them it is plain ASCII.
    """
    names = [f"rank {rank}  " for rank in range(len(timeline.starts))]
    margin = max(map(len, names))
    rows = _labelled(timeline, width - margin) or _condensed(timeline, max(width - margin, 1))
    if colours:
        rows = [re.sub(r"([FRBIW])(\1|[0-9a-z-])*", _coloured, row) for row in rows]
    return "\n".join(name.ljust(margin) + row for name, row in zip(names, rows, strict=True))


def action_label(schedule: Schedule, rank: int, action: Action) -> str:
    """``F3`` for the forward of micro-batch 3; ``F3a``, ``F3b`` where the rank holds several stages."""
    label = f"{action.kind.value}{action.micro_batch}"
    held = [stage for stage, ranks in enumerate(schedule.placement) if rank in ranks]
    if len(held) == 1:
        return label
    place = held.index(action.stage)
    return label + (chr(ord("a") + place) if place < _MAX_LETTERS else f".{place}")


def _labelled(timeline: Timeline, width: int) -> list[str] | None:
    """Rows in which the shortest action has room for the longest label, or None if they are wider than ``width``."""
    labels = [
        [action_label(timeline.schedule, rank, action) for action in actions] for rank, actions in _ranks(timeline)
    ]
    durations = [
        end - start
        for starts, ends in zip(timeline.starts, timeline.ends, strict=True)
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]
    if not durations or timeline.schedule.num_virtual_stages > _MAX_LETTERS:
        return None
    scale = (max(len(label) for row in labels for label in row) + 1) / min(durations)
    if timeline.makespan * scale > width:
        return None
    columns = round(timeline.makespan * scale)
    rows = []
    for rank, _ in _ranks(timeline):
        row = [_IDLE] * columns
        for label, start, end in zip(labels[rank], timeline.starts[rank], timeline.ends[rank], strict=True):
            first, final = round(start * scale), round(end * scale)
            if final > first:
                row[first:final] = label.ljust(final - first - 1, "-")[: final - first - 1] + " "
        rows.append("".join(row))
    return rows


def _condensed(timeline: Timeline, width: int) -> list[str]:
    rows = []
    for rank, actions in _ranks(timeline):
        row = [_IDLE] * width
        column = 0
        for action, start, end in zip(actions, timeline.starts[rank], timeline.ends[rank], strict=True):
            while column < width and _middle(column, timeline.makespan, width) < end:
                if _middle(column, timeline.makespan, width) >= start:
                    row[column] = action.kind.value
                column += 1
        rows.append("".join(row))
    return rows


def _middle(column: int, makespan: Time, width: int) -> Time:
    return (2 * column + 1) * makespan / (2 * width)


def _ranks(timeline: Timeline) -> enumerate[tuple[Action, ...]]:
    return enumerate(timeline.schedule.actions)


def _coloured(action: re.Match[str]) -> str:
    return f"\x1b[30;48;5;{_TERMINAL[Kind(action[0][0])]}m{action[0]}\x1b[0m"
