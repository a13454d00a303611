"""Pipeline schedules as plain data: built, checked, timed and turned into messages without torch."""

from __future__ import annotations

from .actions import Action, Kind, Remat, Schedule, ScheduleError
from .messages import Direction, Message, edges, forward_only, incoming, merged_order, receive_windows
from .pipedream import staleness
from .registry import GENERATORS, SIMULATED_ONLY, Generator, make_schedule, require_executable
from .simulate import Timeline, simulate
from .theory import (
    Prediction,
    bubble,
    gpipe_bubble,
    gpipe_makespan,
    gpipe_peak_live,
    naive_bubble,
    naive_makespan,
    predict,
    smallest_num_micro_batches,
)
from .validate import validate

__all__ = [
    "GENERATORS",
    "SIMULATED_ONLY",
    "Action",
    "Direction",
    "Generator",
    "Kind",
    "Message",
    "Prediction",
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
    "predict",
    "receive_windows",
    "require_executable",
    "simulate",
    "smallest_num_micro_batches",
    "staleness",
    "validate",
]
