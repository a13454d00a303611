"""Peak live activations of every rank, in micro-batches of one stage: a closed form per schedule.

They follow from the order of actions alone, whatever the costs. Without a source of its own, a form is derived from
that order. With R activations live from R to the end of the backward; ``except_last`` keeps those of the last
micro-batch from F on.
"""

from __future__ import annotations

from .actions import Remat
from .theory_makespan import Case

Peaks = tuple[int, ...]


def gpipe(case: Case) -> Peaks:
    """All V M without R (GPipe paper, section 2.3: what the flush costs in memory).

    With R one, recomputed when its turn comes; ``except_last`` keeps one for each of the V stages.
    """
    held = case.num_virtual_stages
    peak = {Remat.NEVER: held * case.num_micro_batches, Remat.EXCEPT_LAST: held, Remat.ALWAYS: 1}[case.remat]
    return (peak,) * case.num_stages


def one_f_one_b(case: Case) -> Peaks:
    """min(M, K - r) on rank r (Narayanan et al. 2021, section 2.2.1); with R one."""
    return _shifted(case, [(case.num_stages - 1 - rank, 0) for rank in range(case.num_stages)])


def zb_h1(case: Case) -> Peaks:
    """min(M, K): K - r whose I is to come, r whose W is (Qi et al. 2023, section 2.3). With R min(M, r + 1)."""
    return _shifted(case, [(case.num_stages - 1 - rank, rank) for rank in range(case.num_stages)])


def zb_h2(case: Case) -> Peaks:
    """min(M, 2 K - 1) (Qi et al. 2023, section 2.3). With R min(M, 2 r + 1)."""
    return _shifted(case, [(2 * (case.num_stages - 1 - rank), 2 * rank) for rank in range(case.num_stages)])


def interleaved(case: Case) -> Peaks:
    """min(V M, 2 (K - 1 - r) + (V - 1) K + 1) for M a multiple of K and V > 1 (order of Megatron-LM).

    For other M the longest group stands in the place of the second K. With R one; ``except_last`` keeps one for each
    of the V stages, and another one is recomputed beside it, except on the last rank.
    """
    ranks, count, held = case.num_stages, case.num_micro_batches, case.num_virtual_stages
    if held == 1:
        return one_f_one_b(case)
    if case.remat is Remat.ALWAYS:
        return (1,) * ranks
    if case.remat is Remat.EXCEPT_LAST:
        return tuple(held + (count > 1 and rank < ranks - 1) for rank in range(ranks))
    longest = -(-count // max(1, count // ranks))
    return tuple(min(held * count, 2 * (ranks - 1 - rank) + (held - 1) * longest + 1) for rank in range(ranks))


def zb_v(case: Case) -> Peaks:
    """2 K of one stage, half a rank's layers each, for M >= 2 K - 1 (Qi et al. 2023, section 6).

    With R what waits for its W at the end: on rank r r micro-batches on each of its stages, and one that is at work,
    2 r + 1 in all. With M < 2 K - 1 those that are not there do not count.
    """
    return tuple(_zb_v_peak(case, rank) for rank in range(case.num_stages))


def _zb_v_peak(case: Case, rank: int) -> int:
    ranks, count = case.num_stages, min(case.num_micro_batches, 2 * case.num_stages - 1)
    if case.remat is Remat.NEVER:
        return min(2 * count, count + 1 + rank, 2 * ranks)

    def waiting(recomputed: int) -> int:
        """On both stages at the end, if micro-batches below ``recomputed`` have an R."""
        down = min(rank, max(0, recomputed - (ranks - 1))) + (ranks - 1 + rank < recomputed)
        return down + max(0, recomputed - (2 * ranks - 1 - rank))

    if case.remat is Remat.ALWAYS:
        return max(1, waiting(count))
    # The last micro-batch is kept on the way down, and on the way up if its backward is not over when the end begins.
    kept = 1 + (count - 1 >= 2 * ranks - 1 - rank)
    return max(3 if count > 1 and rank else 2, waiting(count - 1) + kept)


def chimera(case: Case) -> Peaks:
    """min(D, K - r) + min(U, r + 1) on rank r, where D of a unit's micro-batches go down and U go up.

    With full units, D = U = K / 2, from K / 2 + 1 at the ends to K in the middle (Li and Hoefler 2021, table 2). With R
    one; with ``except_last`` two where a backward of another micro-batch comes between F and B of the last one.
    """
    ranks, count = case.num_stages, min(case.num_micro_batches, case.num_stages)
    if case.remat is Remat.ALWAYS:
        return (1,) * ranks
    if case.remat is Remat.NEVER:
        up = count // 2
        return tuple(min(count - up, ranks - rank) + min(up, rank + 1) for rank in range(ranks))
    place = (case.num_micro_batches - 1) % ranks
    start = place // 2 * 2

    def overlaps(rank: int) -> bool:
        stage = ranks - 1 - rank if place % 2 else rank
        same_way = place >= 2 and stage < ranks - 1
        other_way = place >= 1 and 2 * stage < ranks - 1 + start
        unit_before = case.num_micro_batches > ranks and 2 * stage + start < ranks - 3
        return same_way or other_way or unit_before

    return tuple(1 + overlaps(rank) for rank in range(ranks))


def _shifted(case: Case, shifts: list[tuple[int, int]]) -> Peaks:
    """F runs ``ahead`` micro-batches before the backward, W ``late`` ones after I; (ahead, late) of every rank."""
    count = case.num_micro_batches
    if case.remat is Remat.NEVER:
        return tuple(min(count, ahead + late + 1) for ahead, late in shifts)
    if case.remat is Remat.ALWAYS:
        return tuple(min(count, late + 1) for _, late in shifts)
    # Beside the last micro-batch, which a rank that runs ahead keeps while it recomputes others.
    return tuple(min(count, late + 1 + (ahead > 0)) for ahead, late in shifts)
