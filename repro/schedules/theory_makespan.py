"""How long one step takes with equal stages and free messages: a closed form per schedule.

The symbols: K ranks, M micro-batches, V stages per rank, t_F, t_B = t_I + t_W and t_R of one micro-batch on one stage,
r of the M micro-batches recomputed. Each rank is busy for V (M (t_F + t_B) + r t_R); what a form adds is the bubble.
"""

from __future__ import annotations

from dataclasses import dataclass

from .actions import Remat, ScheduleError
from .replay import Time


@dataclass(frozen=True)
class Case:
    """A schedule's numbers and costs, as in ``simulate``; ``weight`` is the part of ``backward`` that W takes."""

    num_stages: int
    num_micro_batches: int
    num_virtual_stages: int
    remat: Remat
    forward: Time
    backward: Time
    weight: Time
    recompute: Time

    @property
    def num_recomputed(self) -> int:
        """r, how many of the M micro-batches have an R."""
        return self.remat.num_recomputed(self.num_micro_batches)

    @property
    def busy(self) -> Time:
        """V (M (t_F + t_B) + r t_R), the work of each rank."""
        per_stage = self.num_micro_batches * (self.forward + self.backward) + self.num_recomputed * self.recompute
        return self.num_virtual_stages * per_stage


def gpipe(case: Case) -> Time:
    """V = 1: (M + K - 1)(t_F + t_B) + r t_R (GPipe paper, section 2.3; Narayanan et al. 2021, section 2.2.1).

    With R it follows from the order of actions: every stage but the last runs its first R while it waits for the first
    gradient, as section 2.3 says, so R does not lengthen the ramp. V > 1 (derived from the order as well): a pass of
    all micro-batches over the K ranks follows another V - 1 times; it starts when the rank is free and its first
    micro-batch has gone over the other ranks, whichever is later.
    """
    ranks, count, again = case.num_stages, case.num_micro_batches, case.num_virtual_stages - 1
    one_pass = count * case.backward + case.num_recomputed * case.recompute
    forwards = (again * max(count, ranks) + count + ranks - 1) * case.forward
    return forwards + again * max(one_pass, ranks * case.backward) + one_pass + (ranks - 1) * case.backward


def one_f_one_b(case: Case) -> Time:
    """(M + K - 1)(t_F + t_B) + r t_R, the same as GPipe's (Narayanan et al. 2021, section 2.2.1)."""
    return case.busy + (case.num_stages - 1) * (case.forward + case.backward)


def interleaved(case: Case) -> Time:
    """M >= K: V (M (t_F + t_B) + r t_R) + (K - 1)(t_F + t_B) (Narayanan et al. 2021, section 2.2.2).

    Their source has it for M a multiple of K and without R; for other M >= K it holds because groups are never shorter
    than K, so no rank waits between its stages. With M < K (derived from the order) there is one group, whose passes
    over the ranks follow each other as GPipe's do.

    Raises:
        ScheduleError: R costs more than F, which it repeats.
    """
    if case.num_recomputed and case.num_virtual_stages > 1 and case.recompute > case.forward:
        raise ScheduleError(
            f"recompute={case.recompute}: the closed form of 'interleaved' holds for recompute <= forward="
            f"{case.forward}; simulate it"
        )
    return gpipe(case)


def zb_h1(case: Case) -> Time:
    """M (t_F + t_B) + r t_R + (K - 1)(t_F + t_I) - (min(K, M) - 1) t_W.

    For M >= K the bubble is (K - 1)(t_F + t_I - t_W), for M < K the step takes (M + K - 1)(t_F + t_I) + t_W (Qi et
    al. 2023, section 2.3 and appendix). R moves along with I, and hides in the ramp as in 1F1B.

    Raises:
        ScheduleError: W costs more than F or more than I; the form does not hold then.
    """
    inputs = case.backward - case.weight
    if case.num_stages > 1 and case.weight > min(case.forward, inputs):
        raise ScheduleError(
            f"weight={case.weight}: the closed form of 'zb-h1' holds for weight <= forward={case.forward} and "
            f"weight <= backward - weight = {inputs}; simulate it"
        )
    saved = min(case.num_stages, case.num_micro_batches) - 1
    return case.busy + (case.num_stages - 1) * (case.forward + inputs) - saved * case.weight


def zb_h2(case: Case) -> Time:
    """With t_F = t_I = t_W = t: M (t_F + t_B) + r t_R + (2 (K - 1) - min(floor(M / 2), K - 1)) t.

    For M >= 2 K - 2 that leaves (K - 1) t: no rank idles between its first and its last action (Qi et al. 2023,
    section 2.3: a bubble of (K - 1)(t_F + t_I - 2 t_W) = 0), but rank r starts r t late, and with a flush all wait
    for the last one. For smaller M it is derived from the order.

    Raises:
        ScheduleError: the three costs are not the same.
    """
    unit = _equal_costs("zb-h2", case)
    ramp = case.num_stages - 1
    return case.busy + (2 * ramp - min(case.num_micro_batches // 2, ramp)) * unit


def zb_v(case: Case) -> Time:
    """With t_F = t_I = t_W = t: 2 (M (t_F + t_B) + r t_R) + max(K - 1, 4 (K - 1) - 2 (M - 1)) t.

    From about M = 3 K / 2 on that leaves (K - 1) t, which is the late start of rank K - 1 (Qi et al. 2023, section 6:
    no bubble in between). For smaller M it is derived from the order.

    Raises:
        ScheduleError: the three costs are not the same.
    """
    unit = _equal_costs("zb-v", case)
    ramp = case.num_stages - 1
    return case.busy + max(ramp, 4 * ramp - 2 * (case.num_micro_batches - 1)) * unit


def chimera(case: Case) -> Time:
    """With t_B = t_F = t and M = n K: 2 M t + (K - 2) t (Li and Hoefler 2021, section 3 and table 2).

    With t_B = 2 t_F = 2 t: 3 M t + r t_R + (n + 1)(K - 2) t, as units that are put one after the other keep idle time
    between them; their (K - 2) / (3 M / 2 + K - 2) is that for n = 1. What a unit that is not full costs more is
    derived from the order.

    Raises:
        ScheduleError: t_B is neither t_F (without R) nor 2 t_F (with t_R = t_F or without R).
    """
    ranks, unit = case.num_stages, case.forward
    if ranks == 1:
        return case.busy
    recomputes = case.remat is not Remat.NEVER and case.recompute != 0
    before, rest = divmod(case.num_micro_batches - 1, ranks)
    rest += 1
    if case.backward == unit and not recomputes:
        return case.busy + (2 * (ranks - 1) - rest // 2 * 2) * unit
    if case.backward == 2 * unit and (not recomputes or case.recompute == unit):
        first = 3 * (ranks - 1) - rest + (1 if rest % 2 else -1)
        fits = before > 0 and ranks > 2 and rest < ranks - (not recomputes)
        return case.busy + (first + before * (ranks - 2) - fits) * unit
    raise ScheduleError(
        f"forward={case.forward}, backward={case.backward}, recompute={case.recompute}: the closed forms of 'chimera' "
        "hold for backward = forward without R, and for backward = 2 forward, recompute = forward; simulate it"
    )


def _equal_costs(name: str, case: Case) -> Time:
    inputs = case.backward - case.weight
    if not case.forward == inputs == case.weight:
        raise ScheduleError(
            f"forward={case.forward}, backward={case.backward}, weight={case.weight}: the closed form of {name!r} "
            "holds for forward = backward - weight = weight; simulate it"
        )
    return case.forward
