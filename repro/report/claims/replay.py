"""A schedule replayed with exact costs: what the page on claims compares formulas with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from repro.schedules import Generator, Timeline, make_schedule, simulate
from repro.schedules.comparison import Comparison, Work, smallest_for_bubble
from repro.schedules.replay import Time


@dataclass(frozen=True)
class Case:
    """A schedule with its numbers and what a rank's work on one micro-batch costs.

    Attributes:
        schedule: a name that ``make_schedule`` knows, or a function.
        num_stages: P, one per rank (K elsewhere).
        num_micro_batches: M.
        num_virtual_stages: V; the stages of a rank share its work equally.
        forward: t_F, one number or one per rank.
        backward: t_B likewise; a schedule that splits it takes half for W.
        remat: which micro-batches are recomputed; R costs what F costs.
        transfer: of a message between ranks.
    """

    schedule: str | Generator
    num_stages: int
    num_micro_batches: int
    num_virtual_stages: int = 1
    forward: Fraction | int | tuple[int, ...] = 1
    backward: Fraction | int | tuple[int, ...] = 2
    remat: str = "never"
    transfer: Fraction | int = 0


@dataclass(frozen=True)
class Outcome:
    """What replaying a case gives; all figures are exact.

    Attributes:
        timeline: start and end of every action.
        bubble: idle time of all ranks / (ranks x makespan); R counts as work.
        of_ideal: the same idle time / the time at work.
        makespan: from the first start to the last end.
        peak_live: by rank, micro-batches of one stage whose activations are alive at once.
    """

    timeline: Timeline
    bubble: Fraction
    of_ideal: Fraction
    makespan: Fraction
    peak_live: tuple[int, ...]


def replay(case: Case) -> Outcome:
    """Builds the schedule of ``case``, which the validator checks, and simulates it."""
    schedule = make_schedule(
        case.schedule,
        num_stages=case.num_stages,
        num_micro_batches=case.num_micro_batches,
        num_virtual_stages=case.num_virtual_stages,
        remat=case.remat,
    )
    forward = _of_stages(case.forward, case.num_virtual_stages)
    backward = _of_stages(case.backward, case.num_virtual_stages)
    weight = _of_stages(case.backward, 2 * case.num_virtual_stages)
    timeline = simulate(schedule, forward, backward, forward, weight, _exact(Fraction(case.transfer)))
    busy = Fraction(sum(timeline.busy))
    total = Fraction(timeline.makespan) * case.num_stages
    return Outcome(
        timeline=timeline,
        bubble=(total - busy) / total,
        of_ideal=(total - busy) / busy,
        makespan=Fraction(timeline.makespan),
        peak_live=timeline.peak_live,
    )


def smallest(num_stages: int, share: Fraction, *, strictly: bool = False) -> Comparison:
    """The smallest M with which 1F1B, and GPipe, idle for at most ``share``, or ``strictly`` for less."""
    found = smallest_for_bubble("1f1b", num_stages, 1, Work(), share, strictly=strictly)
    if found is None:
        raise ValueError(f"no M gives a bubble of {share} with {num_stages} stages")
    return found


def _of_stages(cost: Fraction | int | tuple[int, ...], parts: int) -> Time | Sequence[Time]:
    if isinstance(cost, tuple):
        return tuple(_exact(Fraction(value, parts)) for value in cost)
    return _exact(Fraction(cost) / parts)


def _exact(cost: Fraction) -> Time:
    """Whole numbers as int: ten thousand micro-batches are then replayed in a second."""
    return cost.numerator if cost.denominator == 1 else cost
