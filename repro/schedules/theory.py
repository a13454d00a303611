"""Closed forms for schedules whose stages all cost the same; the simulator gives the same numbers exactly.

K = ``num_stages``, M = ``num_micro_batches``, V = ``num_virtual_stages``. Costs are of one micro-batch on one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from . import theory_makespan, theory_memory
from .actions import Remat, ScheduleError
from .replay import Time
from .theory_makespan import Case


def bubble(num_stages: int, num_micro_batches: int) -> float:
    """(K - 1) / (M + K - 1), the idle share of a GPipe step without re-materialization (GPipe paper, section 2.3).

    Independent of the costs. With R the share is smaller, see ``gpipe_bubble``.
    """
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)


def smallest_num_micro_batches(num_stages: int, below: float = 0.2) -> int:
    """The smallest M with ``bubble(K, M) < below``: 4K - 3 for the default, close to the paper's rule M >= 4K.

    Raises:
        ScheduleError: ``below`` is not between 0 and 1.
    """
    if not 0 < below < 1:
        raise ScheduleError(f"below={below}: give a share of the step between 0 and 1")
    num_micro_batches = max(1, int((num_stages - 1) * (1 - below) / below))
    while num_micro_batches > 1 and bubble(num_stages, num_micro_batches - 1) < below:
        num_micro_batches -= 1
    while bubble(num_stages, num_micro_batches) >= below:
        num_micro_batches += 1
    return num_micro_batches


@dataclass(frozen=True)
class Prediction:
    """What the closed forms say of one step; the simulator gives the same numbers.

    Attributes:
        makespan: from the first start to the last end, in the unit of the costs.
        bubble: idle time of all ranks / (ranks x makespan); R counts as work.
        peak_live: for every rank, the micro-batches of one stage whose activations are alive at once.
    """

    makespan: Time
    bubble: Time
    peak_live: tuple[int, ...]


FORMS: Mapping[str, tuple[Callable[[Case], Time], Callable[[Case], tuple[int, ...]]]] = MappingProxyType(
    {
        "gpipe": (theory_makespan.gpipe, theory_memory.gpipe),
        "1f1b": (theory_makespan.one_f_one_b, theory_memory.one_f_one_b),
        "interleaved": (theory_makespan.interleaved, theory_memory.interleaved),
        "zb-h1": (theory_makespan.zb_h1, theory_memory.zb_h1),
        "zb-h2": (theory_makespan.zb_h2, theory_memory.zb_h2),
        "zb-v": (theory_makespan.zb_v, theory_memory.zb_v),
        "chimera": (theory_makespan.chimera, theory_memory.chimera),
        "pipedream": (theory_makespan.one_f_one_b, theory_memory.one_f_one_b),
    }
)
"""Makespan and peak by schedule; each function names its source and where it holds."""


def predict(
    name: str,
    num_stages: int,
    num_micro_batches: int,
    *,
    num_virtual_stages: int = 1,
    remat: Remat | str = Remat.NEVER,
    forward: Time = 1,
    backward: Time = 2,
    recompute: Time = 0,
    weight: Time | None = None,
) -> Prediction:
    """Makespan, bubble and peak of one step by the closed forms; costs as in ``simulate``, all stages alike.

    The numbers must be ones that the schedule can have (``make_schedule`` says which). ``pipedream`` is that of M
    mini-batches from a standing start; in the middle of its stream the bubble is 0.

    Raises:
        ScheduleError: there is no closed form for the schedule, or none for these costs; it says where one holds.
    """
    if name not in FORMS:
        raise ScheduleError(f"no closed form for schedule={name!r}; there are those of {', '.join(FORMS)}; simulate it")
    weight = Fraction(backward) / 2 if weight is None else weight
    case = Case(num_stages, num_micro_batches, num_virtual_stages, Remat(remat), forward, backward, weight, recompute)
    makespan_of, peak_of = FORMS[name]
    makespan = makespan_of(case)
    return Prediction(makespan, (makespan - case.busy) / makespan if makespan else 0, peak_of(case))


def gpipe_makespan(
    num_stages: int,
    num_micro_batches: int,
    *,
    forward: Time = 1,
    backward: Time = 2,
    recompute: Time = 0,
    remat: Remat | str = Remat.NEVER,
    num_virtual_stages: int = 1,
) -> Time:
    """Time of one GPipe step, sends free: for V = 1 (M + K - 1)(t_F + t_B) + r t_R, see ``theory_makespan.gpipe``."""
    return theory_makespan.gpipe(
        Case(
            num_stages, num_micro_batches, num_virtual_stages, Remat(remat), forward, backward, backward / 2, recompute
        )
    )


def gpipe_bubble(
    num_stages: int,
    num_micro_batches: int,
    *,
    forward: Time = 1,
    backward: Time = 2,
    recompute: Time = 0,
    remat: Remat | str = Remat.NEVER,
    num_virtual_stages: int = 1,
) -> Time:
    """Idle share of one GPipe step: 1 - busy / makespan, where every rank is busy for the same time, R included.

    V = 1: (K - 1)(t_F + t_B) / ((M + K - 1)(t_F + t_B) + r t_R); without R this is ``bubble``.
    """
    case = Case(
        num_stages, num_micro_batches, num_virtual_stages, Remat(remat), forward, backward, backward / 2, recompute
    )
    makespan = theory_makespan.gpipe(case)
    return (makespan - case.busy) / makespan


def gpipe_peak_live(
    num_stages: int, num_micro_batches: int, *, remat: Remat | str = Remat.NEVER, num_virtual_stages: int = 1
) -> tuple[int, ...]:
    """For every rank, the micro-batches of one stage alive at once in a GPipe step, see ``theory_memory.gpipe``."""
    return theory_memory.gpipe(Case(num_stages, num_micro_batches, num_virtual_stages, Remat(remat), 1, 2, 1, 1))


def naive_makespan(num_stages: int, *, forward: Time = 1, backward: Time = 2) -> Time:
    """K (t_F + t_B): naive model parallelism, the whole mini-batch on one stage after the other (M = 1, no R)."""
    return num_stages * (forward + backward)


def naive_bubble(num_stages: int) -> float:
    """(K - 1) / K: at any time one of the K ranks works (``bubble`` with M = 1)."""
    return bubble(num_stages, 1)
