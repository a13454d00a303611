"""Closed forms for schedules whose stages all cost the same; the simulator gives the same numbers exactly.

K = ``num_stages``, M = ``num_micro_batches``, V = ``num_virtual_stages``. Costs are of one micro-batch on one stage.
"""

from __future__ import annotations

from .actions import Remat, ScheduleError
from .replay import Time


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
    """Time of one GPipe step, sends free.

    V = 1: (M + K - 1)(t_F + t_B) + r t_R, where r of the M micro-batches are recomputed (M, M - 1 or 0). Without R
    this is the flush schedule of the GPipe paper (section 2.3) and of Megatron-LM (Narayanan et al. 2021, section
    2.2.1). With R it follows from the order of actions: every stage but the last runs its first R while it waits for
    the first gradient, as section 2.3 says, so R does not lengthen the ramp.

    V > 1 (derived from the order as well): a pass of all micro-batches over the K ranks follows another V - 1 times;
    it starts when the rank is free and its first micro-batch has gone over the other ranks, whichever is later.
    """
    recomputed = _num_recomputed(num_micro_batches, remat)
    forwards = ((num_virtual_stages - 1) * max(num_micro_batches, num_stages) + num_micro_batches + num_stages - 1) * (
        forward
    )
    one_pass = num_micro_batches * backward + recomputed * recompute
    passes = (num_virtual_stages - 1) * max(one_pass, num_stages * backward) + one_pass
    return forwards + passes + (num_stages - 1) * backward


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
    makespan = gpipe_makespan(
        num_stages,
        num_micro_batches,
        forward=forward,
        backward=backward,
        recompute=recompute,
        remat=remat,
        num_virtual_stages=num_virtual_stages,
    )
    recomputed = _num_recomputed(num_micro_batches, remat)
    busy = num_virtual_stages * (num_micro_batches * (forward + backward) + recomputed * recompute)
    return (makespan - busy) / makespan


def gpipe_peak_live(
    num_stages: int, num_micro_batches: int, *, remat: Remat | str = Remat.NEVER, num_virtual_stages: int = 1
) -> tuple[int, ...]:
    """For every rank, the micro-batches of one stage whose activations are alive at once.

    All V M of them without R (GPipe paper, section 2.3: what the flush costs in memory). With R one, recomputed when
    its turn comes; ``except_last`` keeps one for each of the V stages.
    """
    peak = {
        Remat.NEVER: num_virtual_stages * num_micro_batches,
        Remat.EXCEPT_LAST: num_virtual_stages,
        Remat.ALWAYS: 1,
    }[Remat(remat)]
    return (peak,) * num_stages


def naive_makespan(num_stages: int, *, forward: Time = 1, backward: Time = 2) -> Time:
    """K (t_F + t_B): naive model parallelism, the whole mini-batch on one stage after the other (M = 1, no R)."""
    return num_stages * (forward + backward)


def naive_bubble(num_stages: int) -> float:
    """(K - 1) / K: at any time one of the K ranks works (``bubble`` with M = 1)."""
    return bubble(num_stages, 1)


def _num_recomputed(num_micro_batches: int, remat: Remat | str) -> int:
    return sum(Remat(remat).recomputes(index, num_micro_batches) for index in range(num_micro_batches))
