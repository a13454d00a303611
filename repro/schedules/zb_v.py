"""ZB-V (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 6): zero bubble in the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator

from .actions import Action, Kind, Remat, Schedule
from .building import build, require_virtual_stages


def zb_v(num_stages: int, num_micro_batches: int, num_virtual_stages: int = 2, remat: Remat = Remat.ALWAYS) -> Schedule:
    """Two stages per rank, placed in a V: down on stages 0 to K - 1, up again on K to 2 K - 1, so both ends are rank 0.

    The loss is on rank 0, whose first backward therefore comes soon, and ranks get their work and end it together.
    With t_F = t_I = t_W and M >= 2 K - 1 the bubble is a constant that does not grow with M, and no rank has more
    than 2 K activations of one stage alive: half a rank's layers each, so as much as K of 1F1B's. Any M works: fewer
    than 2 K - 1 micro-batches run in the order of 2 K - 1, without those that are not there.

    Raises:
        ScheduleError: V is not 2.
    """
    require_virtual_stages("zb-v", num_virtual_stages, 2, "'zb-h1', which has one stage per rank")
    down = [(rank,) for rank in range(num_stages)]
    length = max(num_micro_batches, 2 * num_stages - 1)
    orders = [_order(rank, num_stages, length) for rank in range(num_stages)]
    return build("zb-v", num_stages, num_micro_batches, remat, [*down, *reversed(down)], orders)


def _order(rank: int, num_stages: int, length: int) -> Iterator[Action]:
    down, up = rank, 2 * num_stages - 1 - rank
    done: dict[tuple[Kind, int], int] = {}

    def run(kind: Kind, stage: int) -> Action:
        number = done[kind, stage] = done.get((kind, stage), -1) + 1
        return Action(kind, stage, number)

    forward, inputs, weights = Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT
    phases = [
        # Warm-up: the way down is filled, then both ways in turns, then the way up begins its backwards.
        (2 * (num_stages - rank) - 1, [(forward, down)]),
        (rank, [(forward, up), (forward, down)]),
        (num_stages - rank, [(forward, up), (inputs, up), (weights, up)]),
        # The steady part, which the last forwards on the way up end.
        (length - num_stages, [*((kind, stage) for stage in (down, up) for kind in (forward, inputs, weights))]),
        # The end: input gradients as soon as they can be, weight gradients where there is room.
        (rank, [(inputs, down), (inputs, up)]),
        (num_stages - rank, [(inputs, down), (weights, down)]),
        (rank, [(weights, up)]),
        (rank, [(weights, down)]),
    ]
    for times, kinds in phases:
        for _ in range(times):
            for kind, stage in kinds:
                action = run(kind, stage)
                if action.micro_batch < length:
                    yield action
