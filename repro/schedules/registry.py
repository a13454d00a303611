"""From a name (or a user's own generator) and K, M, V, remat to a schedule that has passed the validator."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from .actions import Remat, Schedule, ScheduleError
from .chimera import chimera
from .gpipe import gpipe
from .interleaved import interleaved
from .one_f_one_b import one_f_one_b
from .pipedream import pipedream
from .validate import validate
from .zb_v import zb_v
from .zero_bubble import zb_h1, zb_h2


class Generator(Protocol):
    """What builds a schedule; every family, and a user's own, has this signature."""

    def __call__(
        self, num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = ...
    ) -> Schedule:
        """Actions and placement for K ranks, M micro-batches and V stages per rank."""


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved": interleaved,
        "zb-h1": zb_h1,
        "zb-h2": zb_h2,
        "zb-v": zb_v,
        "chimera": chimera,
        "pipedream": pipedream,
    }
)
"""The families by name."""

SIMULATED_ONLY = ("chimera", "pipedream")
"""Those that can be simulated and drawn, but not executed."""


_MOST_PASSES = 10_000_000
"""Far more than anyone trains with; a slip of the keyboard is told before it fills the memory."""


def make_schedule(
    name: str | Generator,
    *,
    num_stages: int,
    num_micro_batches: int,
    num_virtual_stages: int = 1,
    remat: str | Remat = "never",
) -> Schedule:
    """Builds and validates a schedule.

    Args:
        name: a key of ``GENERATORS``, or a function with the signature of ``Generator`` in its place.
        num_stages: K, the number of pipeline ranks.
        num_micro_batches: M.
        num_virtual_stages: V, stages per rank.
        remat: ``"always"``, ``"except_last"`` or ``"never"``.

    Raises:
        ScheduleError: unknown name or remat, a number below 1, or a schedule that the validator refuses.
    """
    for option, value in (
        ("num_stages", num_stages),
        ("num_micro_batches", num_micro_batches),
        ("num_virtual_stages", num_virtual_stages),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(f"{option}={value!r}: give a whole number of at least 1")
    passes = num_stages * num_virtual_stages * num_micro_batches
    if passes > _MOST_PASSES:
        raise ScheduleError(
            f"num_stages={num_stages}, num_micro_batches={num_micro_batches} and num_virtual_stages="
            f"{num_virtual_stages} make {passes:,} forward passes: a schedule has at most {_MOST_PASSES:,}"
        )
    try:
        remat = Remat(remat)
    except ValueError:
        raise ScheduleError(f"unknown remat={remat!r}{_advice(remat, list(Remat))}") from None
    if isinstance(name, str):
        if name not in GENERATORS:
            raise ScheduleError(f"unknown schedule={name!r}{_advice(name, list(GENERATORS))}")
        generate = GENERATORS[name]
    else:
        generate = name
    schedule = generate(num_stages, num_micro_batches, num_virtual_stages, remat)
    validate(schedule)
    asked = (num_stages, num_micro_batches, num_virtual_stages, remat)
    built = (schedule.num_stages, schedule.num_micro_batches, schedule.num_virtual_stages, schedule.remat)
    if built != asked:
        raise ScheduleError(
            f"schedule {schedule.name!r} was built for (num_stages, num_micro_batches, num_virtual_stages, remat) = "
            f"{built}, but {asked} was asked for"
        )
    return schedule


def require_executable(schedule: Schedule) -> None:
    """Raises ``ScheduleError`` for a schedule that can be simulated and drawn only."""
    if schedule.restriction:
        others = ", ".join(name for name in GENERATORS if name not in SIMULATED_ONLY)
        raise ScheduleError(
            f"schedule={schedule.name!r} can be simulated and drawn, but not executed: {schedule.restriction}; take "
            f"one of {others}"
        )
    for stage, ranks in enumerate(schedule.placement):
        if len(ranks) > 1:
            raise ScheduleError(
                f"schedule {schedule.name!r} places stage {stage} on ranks {list(ranks)}: the engine runs a stage on "
                "one rank, name one"
            )


def _advice(given: object, known: list[str]) -> str:
    close = difflib.get_close_matches(str(given), known, n=1)
    return f"; did you mean {str(close[0])!r}? Known: {', '.join(known)}" if close else f"; known: {', '.join(known)}"
