"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2), in the order of Megatron-LM: V stages per rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from .actions import Action, Kind, Remat, Schedule
from .building import build, one_after_the_other


def interleaved(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.ALWAYS
) -> Schedule:
    """1F1B on K x V stages, V on each rank: the ramps are V times shorter, messages V times as many.

    Micro-batches go through in groups of K: a rank runs the group on its first stage, then on its second one and so
    on, backwards in the reverse order of stages. Rank r runs 2 (K - 1 - r) + (V - 1) K forwards ahead, then forwards
    and backwards in turns. With V = 1 it is 1F1B, which needs only half of the 2 (K - 1 - r).

    Megatron-LM asks for M to be a multiple of K. Here any M works: what is left over is spread over the groups, which
    are then a little longer than K, as is what rank r runs ahead. The bubble stays that of full groups, for up to
    (V - 1)(K - 1) more activations. With M < K there is one group, and a rank waits between its stages.
    """
    groups = max(1, num_micro_batches // num_stages)
    bounds = [num_micro_batches * group // groups for group in range(groups + 1)]
    members = [range(first, after) for first, after in pairwise(bounds)]
    orders = [_order(rank, num_stages, num_virtual_stages, members) for rank in range(num_stages)]
    placement = one_after_the_other(num_stages, num_virtual_stages)
    return build("interleaved", num_stages, num_micro_batches, remat, placement, orders)


def _order(rank: int, num_stages: int, num_virtual_stages: int, groups: Sequence[range]) -> list[Action]:
    held = range(rank, num_stages * num_virtual_stages, num_stages)
    forwards, backwards = (
        [Action(kind, stage, micro_batch) for group in groups for stage in stages for micro_batch in group]
        for kind, stages in ((Kind.FORWARD, held), (Kind.BACKWARD, held[::-1]))
    )
    down = num_stages - 1 - rank
    ahead = (down if num_virtual_stages == 1 else 2 * down) + (num_virtual_stages - 1) * max(map(len, groups))
    in_turns = chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
    return [*forwards[:ahead], *in_turns, *backwards[max(0, len(forwards) - ahead) :]]
