"""1F1B with a flush (PipeDream-Flush; Narayanan et al. 2021, section 2.2.1; DAPPLE): as few activations as it takes."""

from __future__ import annotations

from collections.abc import Iterator

from .actions import Action, Kind, Remat, Schedule
from .building import build, one_after_the_other, require_virtual_stages


def one_f_one_b(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """Rank r runs K - 1 - r forwards ahead, then F and B in turns, then the backwards that are left.

    The step takes as long as GPipe's, but a rank has no more than K - r micro-batches in flight, whatever M is. Any M
    works: with fewer micro-batches than K - r a rank runs all forwards first.

    Raises:
        ScheduleError: V is not 1.
    """
    require_virtual_stages("1f1b", num_virtual_stages, 1, "'interleaved', which is 1F1B with several stages per rank")
    orders = [_order(rank, num_stages - 1 - rank, num_micro_batches) for rank in range(num_stages)]
    return build("1f1b", num_stages, num_micro_batches, remat, one_after_the_other(num_stages), orders)


def _order(stage: int, ahead: int, num_micro_batches: int) -> Iterator[Action]:
    for step in range(num_micro_batches + ahead):
        if step < num_micro_batches:
            yield Action(Kind.FORWARD, stage, step)
        if step >= ahead:
            yield Action(Kind.BACKWARD, stage, step - ahead)
