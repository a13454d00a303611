"""PipeDream (Narayanan et al. 2019): no flush, weights change after every backward, forwards see old ones."""

from __future__ import annotations

from dataclasses import replace

from .actions import Kind, Remat, Schedule
from .building import require_virtual_stages
from .one_f_one_b import one_f_one_b

_RESTRICTION = (
    "it changes the weights after every micro-batch, and the engine has one version of the weights and one optimizer "
    "step per mini-batch"
)


def pipedream(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """The order of 1F1B as a stream: what is M micro-batches here are M mini-batches, each with its own update.

    Nothing is flushed, so the ramps come once a training run and the bubble is 0 in between. The price is stale
    weights: see ``staleness``. A rank stashes one version of its weights per mini-batch in flight. Simulated and
    drawn only. Any M works.

    Raises:
        ScheduleError: V is not 1.
    """
    require_virtual_stages("pipedream", num_virtual_stages, 1, "'interleaved', which has several stages per rank")
    order = one_f_one_b(num_stages, num_micro_batches, 1, remat)
    return replace(order, name="pipedream", flush=False, restriction=_RESTRICTION)


def staleness(schedule: Schedule) -> tuple[int, ...]:
    """For every stage, how many updates at most its weights go through between F and B of one micro-batch.

    With a flush 0 on every stage: there is one update, after the last backward. Without one the weights change after
    every B (or W), and a gradient is computed with the weights that its F saw: on stage s of PipeDream K - 1 - s
    updates ago, so the first stage learns from the oldest weights (section 3.3 of its paper).
    """
    worst = [0] * schedule.total_stages
    if schedule.flush:
        return tuple(worst)
    for actions in schedule.actions:
        updates = dict.fromkeys(range(schedule.total_stages), 0)
        seen: dict[tuple[int, int], int] = {}
        for kind, stage, micro_batch in actions:
            if kind is Kind.FORWARD:
                seen[stage, micro_batch] = updates[stage]
            elif kind is Kind.BACKWARD or kind is Kind.WEIGHT_GRADIENT:
                worst[stage] = max(worst[stage], updates[stage] - seen[stage, micro_batch])
                updates[stage] += 1
    return tuple(worst)
