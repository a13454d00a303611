"""Pipeline schedules as plain data: built, checked, timed and turned into messages without torch."""

from __future__ import annotations

from .actions import Action, Kind, Remat, Schedule, ScheduleError
from .messages import Direction, Message, edges, forward_only, incoming, merged_order, receive_windows
from .registry import GENERATORS, Generator, make_schedule
from .simulate import Timeline, simulate
from .theory import (
    bubble,
    gpipe_bubble,
    gpipe_makespan,
    gpipe_peak_live,
    naive_bubble,
    naive_makespan,
    smallest_num_micro_batches,
)
from .validate import validate

__all__ = [
    "GENERATORS",
    "Action",
    "Direction",
    "Generator",
    "Kind",
    "Message",
    "Remat",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "bubble",
    "edges",
    "forward_only",
    "gpipe_bubble",
    "gpipe_makespan",
    "gpipe_peak_live",
    "incoming",
    "make_schedule",
    "merged_order",
    "naive_bubble",
    "naive_makespan",
    "receive_windows",
    "simulate",
    "smallest_num_micro_batches",
    "validate",
]
