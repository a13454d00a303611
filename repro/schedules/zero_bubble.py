"""ZB-H1 and ZB-H2 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2): 1F1B with its backward split.

The gradient of a stage's input (I) is what the stage before waits for; the gradients of its weights (W) can wait, and
fill the time in which 1F1B idles.
"""

from __future__ import annotations

from collections.abc import Iterator

from .actions import Action, Kind, Remat, Schedule
from .building import build, one_after_the_other, require_virtual_stages


def zb_h1(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """1F1B in whose order rank r runs each W r micro-batches after its I.

    No rank has more than K micro-batches alive, as rank 0 of 1F1B: K - r whose I is to come and r whose W is. With
    t_F = t_I = t_W the bubble is a third of 1F1B's. Any M works.

    Raises:
        ScheduleError: V is not 1.
    """
    require_virtual_stages("zb-h1", num_virtual_stages, 1, "'zb-v', which has two stages per rank")
    orders = [_order(rank, num_stages - 1 - rank, rank, num_micro_batches) for rank in range(num_stages)]
    return build("zb-h1", num_stages, num_micro_batches, remat, one_after_the_other(num_stages), orders)


def zb_h2(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """ZB-H1 with twice the distance: rank r runs 2 (K - 1 - r) forwards ahead, and each W 2 r micro-batches late.

    Up to 2 K - 1 micro-batches are alive on every rank. With t_F = t_I = t_W and M >= 2 K - 1 no rank idles from its
    first action to its last one. Ranks start one after the other, though, and end one after the other: that is no
    loss only if a rank may start the next step before the others have ended this one. Any M works.

    Raises:
        ScheduleError: V is not 1.
    """
    require_virtual_stages("zb-h2", num_virtual_stages, 1, "'zb-v', which has two stages per rank")
    orders = [_order(rank, 2 * (num_stages - 1 - rank), 2 * rank, num_micro_batches) for rank in range(num_stages)]
    return build("zb-h2", num_stages, num_micro_batches, remat, one_after_the_other(num_stages), orders)


def _order(stage: int, ahead: int, late: int, num_micro_batches: int) -> Iterator[Action]:
    """F runs ``ahead`` micro-batches before I, W runs ``late`` micro-batches after it."""
    for step in range(num_micro_batches + ahead + late):
        if step < num_micro_batches:
            yield Action(Kind.FORWARD, stage, step)
        if 0 <= step - ahead < num_micro_batches:
            yield Action(Kind.INPUT_GRADIENT, stage, step - ahead)
        if step >= ahead + late:
            yield Action(Kind.WEIGHT_GRADIENT, stage, step - ahead - late)
