from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.schedules import Action, Kind, Schedule, ScheduleError, forward_only, make_schedule, simulate

from .strategies import needs, schedules
from .test_validate import parse

Times = dict[Action, tuple[int, int]]


def step_by_step(schedule: Schedule, costs: dict[Kind, list[int]], transfer: list[int]) -> Times:
    """Start and end of every action from a clock that ticks: the reference, slow and plain."""
    all_actions = {action: rank for rank, actions in enumerate(schedule.actions) for action in actions}
    times: Times = {}
    waiting = [list(actions) for actions in schedule.actions]
    free_at = [0] * len(waiting)

    def is_there(needed: Action, action: Action, now: int) -> bool:
        if needed not in times:
            return False
        remote = all_actions[needed] != all_actions[action]
        return times[needed][1] + (transfer[min(needed.stage, action.stage)] if remote else 0) <= now

    now = 0
    while any(waiting):
        started = True
        while started:  # an action that costs nothing lets others start in the same tick
            started = False
            for rank, actions in enumerate(waiting):
                if not actions or free_at[rank] > now:
                    continue
                action = actions[0]
                if all(is_there(one, action, now) for one in needs(action, schedule.total_stages, set(all_actions))):
                    free_at[rank] = now + costs[action.kind][action.stage]
                    times[action] = (now, free_at[rank])
                    actions.pop(0)
                    started = True
        now += 1
        assert now < 10_000, "the reference does not end"
    return times


@given(schedule=schedules(), data=st.data())
def test_equals_a_clock_that_ticks(schedule: Schedule, data: st.DataObject) -> None:
    total = schedule.total_stages

    def costs(length: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, 4), min_size=length, max_size=length))

    forward, recompute, input_gradient, weight = costs(total), costs(total), costs(total), costs(total)
    backward = [one + other for one, other in zip(input_gradient, weight, strict=True)]
    transfer = costs(total - 1)
    timeline = simulate(schedule, forward, backward, recompute, weight, transfer)
    times = step_by_step(
        schedule,
        {
            Kind.FORWARD: forward,
            Kind.RECOMPUTE: recompute,
            Kind.BACKWARD: backward,
            Kind.INPUT_GRADIENT: input_gradient,
            Kind.WEIGHT_GRADIENT: weight,
        },
        transfer,
    )
    for actions, starts, ends in zip(schedule.actions, timeline.starts, timeline.ends, strict=True):
        assert [times[action] for action in actions] == list(zip(starts, ends, strict=True))

    makespan = max(end for _, end in times.values())
    busy = [sum(times[action][1] - times[action][0] for action in actions) for actions in schedule.actions]
    assert timeline.makespan == makespan
    assert list(timeline.busy) == busy
    if makespan:
        assert timeline.bubble == pytest.approx(1 - sum(busy) / (len(busy) * makespan))
        assert list(timeline.rank_bubbles) == pytest.approx([1 - one / makespan for one in busy])


def peak_by_counting(schedule: Schedule, rank: int) -> int:
    """Which micro-batches are alive after each action of ``rank``, spelled out as a set."""
    actions = schedule.actions[rank]
    kinds = dict.fromkeys(actions, True)
    alive: set[tuple[int, int]] = set()
    peak = 0
    for kind, stage, micro_batch in actions:
        recomputed = Action(Kind.RECOMPUTE, stage, micro_batch) in kinds
        if kind is Kind.RECOMPUTE or (kind is Kind.FORWARD and not recomputed):
            alive.add((stage, micro_batch))
        if kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
            alive.remove((stage, micro_batch))
        peak = max(peak, len(alive))
    return peak


@given(schedules())
def test_peak_live_equals_counting(schedule: Schedule) -> None:
    expected = tuple(peak_by_counting(schedule, rank) for rank in range(schedule.num_stages))
    assert simulate(schedule).peak_live == expected


@pytest.mark.parametrize(
    ("schedule", "peak_live"),
    [
        (parse("F0 F1 B0 B1", "F0 B0 F1 B1"), (2, 1)),
        # I keeps the activations for W.
        (parse("F0 F1 I0 I1 W0 W1", "F0 I0 W0 F1 I1 W1"), (2, 1)),
        (parse("F0 F1 R1 B1 R0 B0", remat="always"), (1,)),
        # R of both before the first B: both are alive again.
        (parse("F0 F1 R1 R0 B1 B0", remat="always"), (2,)),
        (parse("F0 F1 R0 B1 B0", remat="except_last"), (2,)),
        (parse("F0@0 F0@1 B0@1 B0@0", placement=((0,), (0,))), (2,)),
    ],
)
def test_peak_live(schedule: Schedule, peak_live: tuple[int, ...]) -> None:
    assert simulate(schedule).peak_live == peak_live


def test_evaluation_keeps_nothing() -> None:
    schedule = forward_only(make_schedule("gpipe", num_stages=3, num_micro_batches=5, remat="always"))
    timeline = simulate(schedule)
    assert timeline.peak_live == (0, 0, 0)
    assert timeline.makespan == 7


def test_split_backward_hides_in_the_bubble() -> None:
    whole = simulate(parse("F0 B0", "F0 B0"), forward=1, backward=2)
    split = simulate(parse("F0 I0 W0", "F0 I0 W0"), forward=1, backward=2)
    #   whole  F . . . B B     split  F . . I W
    #          . F B B . .            . F I W .
    assert (whole.makespan, split.makespan) == (6, 5)


def test_half_of_the_backward_is_weight_by_default() -> None:
    timeline = simulate(parse("F0 I0 W0"), forward=Fraction(1), backward=Fraction(3))
    assert timeline.ends == ((1, Fraction(5, 2), 4),)


def test_recompute_runs_while_the_gradient_is_on_its_way() -> None:
    schedule = parse("F0 R0 B0", "F0 R0 B0", remat="always")
    timeline = simulate(schedule, forward=1, backward=2, recompute=1)
    #   F R . . . B B
    #   . F R B B . .   7 long; an R that waited for the gradient would make it 8
    assert timeline.starts == ((0, 1, 5), (1, 2, 3))
    assert timeline.makespan == 7


def test_transfer_delays_only_between_ranks() -> None:
    both = simulate(parse("F0 B0", "F0 B0"), forward=1, backward=1, transfer=5)
    assert both.makespan == 14
    one = simulate(parse("F0@0 F0@1 B0@1 B0@0", placement=((0,), (0,))), forward=1, backward=1, transfer=5)
    assert one.makespan == 4


def test_fractions_stay_exact() -> None:
    schedule = make_schedule("gpipe", num_stages=3, num_micro_batches=4)
    timeline = simulate(schedule, Fraction(1, 3), Fraction(2, 3))
    assert isinstance(timeline.makespan, Fraction)
    assert timeline.bubble == Fraction(1, 3)


def test_a_step_that_costs_nothing_has_no_bubble() -> None:
    timeline = simulate(make_schedule("gpipe", num_stages=2, num_micro_batches=2), 0, 0)
    assert (timeline.makespan, timeline.bubble, timeline.rank_bubbles) == (0, 0, (0, 0))


@pytest.mark.parametrize(
    ("costs", "parts"),
    [
        ({"forward": [1, 2]}, ["forward has 2 values for 3 stages"]),
        ({"transfer": [1, 2, 3]}, ["transfer has 3 values for 2 boundaries"]),
        ({"backward": -1}, ["backward=-1", "at least 0"]),
        ({"recompute": math.nan}, ["recompute=nan"]),
        ({"forward": [1, math.inf, 1]}, ["forward=inf"]),
        ({"backward": 2, "weight": [1, 3, 1]}, ["weight=3 of stage 1", "backward=2"]),
    ],
)
def test_errors(costs: dict[str, Any], parts: list[str]) -> None:
    schedule = make_schedule("gpipe", num_stages=3, num_micro_batches=2)
    with pytest.raises(ScheduleError) as caught:
        simulate(schedule, **costs)
    for part in parts:
        assert part in str(caught.value)


def test_a_large_schedule() -> None:
    timeline = simulate(make_schedule("gpipe", num_stages=128, num_micro_batches=1024), 1, 2)
    assert timeline.makespan == 3 * (1024 + 127)
    assert timeline.bubble == 127 / 1151


def test_the_bubble_without_a_flush_counts_from_first_to_last_action() -> None:
    late = parse("F0 B0", "F0 B0")
    timeline = simulate(late, forward=1, backward=2)
    # Rank 0 works 3 of 6; rank 1 works 3 of 3: 6 of 2 x 6, with a flush too.
    assert (timeline.bubble_without_flush, timeline.bubble) == (0.5, 0.5)
    for ranks in (2, 5, 8):
        zero = simulate(make_schedule("zb-h2", num_stages=ranks, num_micro_batches=2 * ranks), 1, 2)
        assert zero.bubble_without_flush == 0
        assert zero.bubble == pytest.approx((ranks - 1) / (6 * ranks + ranks - 1))
        one = simulate(make_schedule("zb-h1", num_stages=ranks, num_micro_batches=2 * ranks), 1, 2)
        assert one.bubble_without_flush == one.bubble
