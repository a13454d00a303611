"""Chimera (Li and Hoefler 2021): two pipelines in opposite directions over the same ranks."""

from __future__ import annotations

from .actions import Action, Kind, Remat, Schedule, ScheduleError
from .building import build, require_virtual_stages

_RESTRICTION = (
    "it holds every stage on two ranks, and the engine has no sum of gradients over the two copies of a stage"
)


def chimera(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """Even micro-batches run down the ranks, odd ones up, each rank holding stages r and K - 1 - r.

    The weights are held twice. K micro-batches are a unit, whose ramps in one direction the other direction fills; the
    next unit begins where the first one leaves room (the paper's direct concatenation). Simulated and drawn only. Any
    M works: a unit that is not full lacks its last micro-batches.

    Raises:
        ScheduleError: V is not 1, or K is odd (and not 1), so that the directions would meet in the middle rank.
    """
    require_virtual_stages("chimera", num_virtual_stages, 1, "'interleaved', which has several stages per rank")
    if num_stages % 2 and num_stages > 1:
        raise ScheduleError(
            f"num_stages={num_stages}: schedule 'chimera' pairs rank r with rank K - 1 - r and needs an even number "
            f"of ranks; {num_stages - 1} or {num_stages + 1} would do"
        )
    placement = [tuple(sorted({stage, num_stages - 1 - stage})) for stage in range(num_stages)]
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(num_stages)]
    for micro_batch in range(num_micro_batches):
        unit, place = divmod(micro_batch, num_stages)
        # Where F and B take one slot each, a unit keeps every rank busy for 2 K slots.
        start = unit * 2 * num_stages + place // 2 * 2
        for stage in range(num_stages):
            rank = num_stages - 1 - stage if place % 2 else stage
            slots[rank].append((start + stage, Action(Kind.FORWARD, stage, micro_batch)))
            backward = start + 2 * num_stages - 1 - stage
            slots[rank].append((backward, Action(Kind.BACKWARD, stage, micro_batch)))
    orders = [[action for _, action in sorted(rank_slots, key=lambda slot: slot[0])] for rank_slots in slots]
    return build("chimera", num_stages, num_micro_batches, remat, placement, orders, restriction=_RESTRICTION)
