"""Schedules side by side: bubble, peak and step time for the same work on a rank, and the M that a bubble needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm

from .actions import Remat, ScheduleError
from .registry import GENERATORS, Generator, make_schedule
from .replay import Time
from .simulate import simulate
from .theory import FORMS, Prediction, predict

_FALLING = tuple(name for name in GENERATORS if name != "chimera")
"""Schedules whose bubble never rises with M. That of chimera does at an odd M, and a function may do anything."""

_MOST_REPLAYED = 1_000_000
"""Forward passes of all replays in the search for one M: some ten seconds."""


@dataclass(frozen=True)
class Work:
    """What a rank does for one micro-batch, on all its layers; its V stages share it equally.

    Attributes:
        forward: t_F.
        backward: t_B; a schedule that splits it takes half for I and half for W.
        remat: which micro-batches are recomputed; R costs what F costs.
    """

    forward: Fraction = Fraction(1)
    backward: Fraction = Fraction(2)
    remat: Remat = Remat.NEVER

    def __post_init__(self) -> None:
        for name, value in (("forward", self.forward), ("backward", self.backward)):
            if value <= 0:
                raise ScheduleError(f"{name}={value}: give a cost above 0")


@dataclass(frozen=True)
class Comparison:
    """One schedule with its numbers; all figures are exact.

    Attributes:
        schedule: its name.
        num_stages: K ranks.
        num_micro_batches: M.
        num_virtual_stages: V stages per rank.
        bubble: idle time / makespan; R counts as work. Of a stream without a flush: in the middle of it.
        bubble_of_ideal: idle time / time without any.
        peak_live: micro-batches of one stage whose activations are alive at once, on the rank with most of them.
        peak_live_ranks: the same in micro-batches of all layers of a rank, V times fewer.
        relative_step_time: time of a step / (M (t_F + t_B)).
        flush: whether the weights change once per step; if not, gradients are those of older weights.
    """

    schedule: str
    num_stages: int
    num_micro_batches: int
    num_virtual_stages: int
    bubble: Fraction
    bubble_of_ideal: Fraction
    peak_live: int
    peak_live_ranks: Fraction
    relative_step_time: Fraction
    flush: bool

    @property
    def utilisation(self) -> Fraction:
        """1 - bubble."""
        return 1 - self.bubble


def compare(
    schedule: str | Generator, num_stages: int, num_micro_batches: int, num_virtual_stages: int, work: Work
) -> Comparison:
    """Figures of one schedule, by its closed form where there is one for these costs, else by replaying it.

    Args:
        schedule: a name, or a function with the signature of ``Generator``.
        num_stages: K.
        num_micro_batches: M.
        num_virtual_stages: V.
        work: what a micro-batch costs a rank.

    Raises:
        ScheduleError: the schedule cannot have these numbers.
    """
    # What the constructor refuses shows with one micro-batch, at no cost.
    smallest = make_schedule(
        schedule, num_stages=num_stages, num_micro_batches=1, num_virtual_stages=num_virtual_stages
    )
    makespan, busy, peaks = _time(schedule, num_stages, num_micro_batches, num_virtual_stages, work)
    if not smallest.flush:
        # A longer stream takes only its work longer: what idles is the one ramp at its start and end.
        twice, twice_busy, _ = _time(schedule, num_stages, 2 * num_micro_batches, num_virtual_stages, work)
        makespan, busy = twice - makespan, twice_busy - busy
    peak = max(peaks)
    return Comparison(
        schedule=smallest.name,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        bubble=(makespan - busy) / makespan,
        bubble_of_ideal=(makespan - busy) / busy,
        peak_live=peak,
        peak_live_ranks=Fraction(peak, num_virtual_stages),
        relative_step_time=makespan / (num_micro_batches * (work.forward + work.backward)),
        flush=smallest.flush,
    )


def smallest_for_bubble(
    schedule: str | Generator,
    num_stages: int,
    num_virtual_stages: int,
    work: Work,
    target: Fraction,
    *,
    strictly: bool = False,
) -> Comparison | None:
    """The schedule with the smallest M whose bubble is at most (or ``strictly`` below) ``target``.

    Returns:
        None if there is none up to four times what GPipe needs: idle time that grows with M keeps it away for good.

    Raises:
        ScheduleError: the target is not between 0 and 1, the schedule cannot have these numbers, or it has no closed
            form for these costs and would have to be replayed for more than ``_MOST_REPLAYED`` forward passes.
    """
    if not 0 < target < 1:
        raise ScheduleError(f"target={float(target):g}: give a bubble between 0 and 1, like 0.1")
    limit = 4 * (ceil(num_stages * (1 - target) / target) + num_stages)
    by_form = _predicted(schedule, num_stages, 2, num_virtual_stages, work.remat, work.forward, work.backward)
    replayed = 0

    def compared(count: int) -> Comparison:
        nonlocal replayed
        if by_form is None:
            replayed += num_stages * num_virtual_stages * count
        if replayed > _MOST_REPLAYED:
            raise ScheduleError(
                f"target={float(target):g}: without a closed form for these costs, schedule {schedule!r} would have to "
                f"be replayed with M = {count:,} on num_stages={num_stages}; give a larger target"
            )
        return compare(schedule, num_stages, count, num_virtual_stages, work)

    def is_enough(found: Comparison) -> bool:
        return found.bubble < target or (found.bubble == target and not strictly)

    if schedule in _FALLING:
        return _bisect(compared, is_enough, limit)
    return _step_by_step(compared, is_enough, limit, work, target)


def _bisect(
    compared: Callable[[int], Comparison], is_enough: Callable[[Comparison], bool], limit: int
) -> Comparison | None:
    """Where the bubble falls with M."""
    high = 1
    while not is_enough(found := compared(high)):
        if high == limit:
            return None
        high = min(2 * high, limit)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        between = compared(middle)
        if is_enough(between):
            high, found = middle, between
        else:
            low = middle
    return found


def _step_by_step(
    compared: Callable[[int], Comparison],
    is_enough: Callable[[Comparison], bool],
    limit: int,
    work: Work,
    target: Fraction,
) -> Comparison | None:
    """Where the bubble may rise and fall with M.

    A step of more micro-batches takes no less time. So if M of them take T, no M' above M with a smaller bubble comes
    before M' c = (1 - target) T, where c is the work per micro-batch: M goes there at once.
    """
    per_micro_batch = work.forward + work.backward + (work.forward if work.remat is not Remat.NEVER else 0)
    count = 1
    while count <= limit:
        found = compared(count)
        if is_enough(found):
            return found
        makespan = found.relative_step_time * count * (work.forward + work.backward)
        count = max(count + 1, ceil(makespan * (1 - target) / per_micro_batch))
    return None


def _time(
    schedule: str | Generator, num_stages: int, num_micro_batches: int, num_virtual_stages: int, work: Work
) -> tuple[Fraction, Fraction, tuple[int, ...]]:
    """Makespan, time at work and peaks of one step, exactly."""
    # Whole numbers instead of fractions make the replay fast.
    scale = lcm(work.forward.denominator, work.backward.denominator) * 2 * num_virtual_stages
    forward, backward = (int(cost * scale / num_virtual_stages) for cost in (work.forward, work.backward))
    recomputed = work.remat.num_recomputed(num_micro_batches)
    busy = num_virtual_stages * (num_micro_batches * (forward + backward) + recomputed * forward)
    makespan, peaks = _makespan(
        schedule, num_stages, num_micro_batches, num_virtual_stages, work.remat, forward, backward
    )
    return Fraction(makespan) / scale, Fraction(busy, scale), peaks


def _makespan(
    schedule: str | Generator, stages: int, count: int, virtual: int, remat: Remat, forward: int, backward: int
) -> tuple[Time, tuple[int, ...]]:
    found = _predicted(schedule, stages, count, virtual, remat, forward, backward)
    if found is not None:
        return found.makespan, found.peak_live
    built = make_schedule(schedule, num_stages=stages, num_micro_batches=count, num_virtual_stages=virtual, remat=remat)
    timeline = simulate(built, forward, backward, forward, backward // 2)
    return timeline.makespan, timeline.peak_live


def _predicted(
    schedule: str | Generator, stages: int, count: int, virtual: int, remat: Remat, forward: Time, backward: Time
) -> Prediction | None:
    """By the closed form; None where there is none for these costs."""
    if schedule not in FORMS:
        return None
    try:
        return predict(
            str(schedule),
            stages,
            count,
            num_virtual_stages=virtual,
            remat=remat,
            forward=forward,
            backward=backward,
            recompute=forward,
            weight=Fraction(backward) / 2,
        )
    except ScheduleError:
        return None
