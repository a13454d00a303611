"""GPipe's own schedule (paper, section 2.3 and figure 2c): all forwards, a flush, then all backwards in reverse."""

from __future__ import annotations

from .actions import Action, Kind, Remat, Schedule


def gpipe(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """All F in order of micro-batches, then all B in reverse order, each R directly before its B.

    R precedes the arrival of the gradient: a rank that waits for the first gradient has already run the R of the last
    micro-batch. At most one micro-batch has its recomputed activations alive at a time. With one micro-batch this is
    naive model parallelism. With virtual stages (rank r holds stages r, r + K, ...) every rank runs the forwards of
    its stages one stage after the other, so V > 1 is GPipe on K x V stages that share K ranks.
    """
    total = num_stages * num_virtual_stages
    recomputed = {number for number in range(num_micro_batches) if remat.recomputes(number, num_micro_batches)}

    def rank_actions(rank: int) -> tuple[Action, ...]:
        stages = range(rank, total, num_stages)
        forwards = [
            Action(Kind.FORWARD, stage, micro_batch) for stage in stages for micro_batch in range(num_micro_batches)
        ]
        backwards: list[Action] = []
        for stage in reversed(stages):
            for micro_batch in reversed(range(num_micro_batches)):
                if micro_batch in recomputed:
                    backwards.append(Action(Kind.RECOMPUTE, stage, micro_batch))
                backwards.append(Action(Kind.BACKWARD, stage, micro_batch))
        return (*forwards, *backwards)

    return Schedule(
        name="gpipe",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
        placement=tuple((stage % num_stages,) for stage in range(total)),
        actions=tuple(rank_actions(rank) for rank in range(num_stages)),
    )
