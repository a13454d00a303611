from __future__ import annotations

from fractions import Fraction

import pytest

from repro.schedules import (
    Remat,
    ScheduleError,
    Timeline,
    bubble,
    gpipe_bubble,
    gpipe_makespan,
    gpipe_peak_live,
    make_schedule,
    naive_bubble,
    naive_makespan,
    simulate,
    smallest_num_micro_batches,
)

FORWARD, BACKWARD, RECOMPUTE = Fraction(3, 7), Fraction(5, 6), Fraction(4, 9)


def simulated(
    num_stages: int,
    num_micro_batches: int,
    remat: Remat,
    costs: tuple[Fraction, Fraction, Fraction],
    num_virtual_stages: int = 1,
) -> Timeline:
    schedule = make_schedule(
        "gpipe",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
    )
    return simulate(schedule, *costs)


@pytest.mark.parametrize("remat", Remat)
@pytest.mark.parametrize("num_stages", range(1, 17))
def test_gpipe_equals_the_simulator(num_stages: int, remat: Remat) -> None:
    for num_micro_batches in range(1, 65):
        timeline = simulated(num_stages, num_micro_batches, remat, (FORWARD, BACKWARD, RECOMPUTE))
        costs = {"forward": FORWARD, "backward": BACKWARD, "recompute": RECOMPUTE, "remat": remat}
        makespan = gpipe_makespan(num_stages, num_micro_batches, **costs)
        recomputed = {"always": num_micro_batches, "except_last": num_micro_batches - 1, "never": 0}[remat]
        by_hand = (num_micro_batches + num_stages - 1) * (FORWARD + BACKWARD) + recomputed * RECOMPUTE
        assert timeline.makespan == makespan == by_hand
        assert timeline.bubble == gpipe_bubble(num_stages, num_micro_batches, **costs)
        assert timeline.bubble == (num_stages - 1) * (FORWARD + BACKWARD) / by_hand
        assert timeline.peak_live == gpipe_peak_live(num_stages, num_micro_batches, remat=remat)


@pytest.mark.parametrize("remat", Remat)
@pytest.mark.parametrize(
    "costs",
    [
        (FORWARD, BACKWARD, RECOMPUTE),
        (Fraction(1), Fraction(2), Fraction(0)),
        # R is dearer than everything else, then cheaper: what hides between two passes differs.
        (Fraction(1), Fraction(1, 3), Fraction(5)),
        (Fraction(1), Fraction(9), Fraction(1, 5)),
    ],
)
def test_gpipe_with_virtual_stages_equals_the_simulator(
    costs: tuple[Fraction, Fraction, Fraction], remat: Remat
) -> None:
    forward, backward, recompute = costs
    for num_stages in range(1, 7):
        for num_micro_batches in range(1, 10):
            for virtual in (2, 3):
                timeline = simulated(num_stages, num_micro_batches, remat, costs, virtual)
                named = {
                    "forward": forward,
                    "backward": backward,
                    "recompute": recompute,
                    "remat": remat,
                    "num_virtual_stages": virtual,
                }
                assert timeline.makespan == gpipe_makespan(num_stages, num_micro_batches, **named)
                assert timeline.bubble == gpipe_bubble(num_stages, num_micro_batches, **named)
                assert timeline.peak_live == gpipe_peak_live(
                    num_stages, num_micro_batches, remat=remat, num_virtual_stages=virtual
                )


@pytest.mark.parametrize("num_stages", range(1, 17))
def test_unit_costs_give_the_papers_bubble_exactly(num_stages: int) -> None:
    for num_micro_batches in range(1, 65):
        schedule = make_schedule("gpipe", num_stages=num_stages, num_micro_batches=num_micro_batches)
        assert simulate(schedule).bubble == bubble(num_stages, num_micro_batches)


@pytest.mark.parametrize("num_stages", range(1, 17))
def test_naive_model_parallelism_is_one_micro_batch(num_stages: int) -> None:
    timeline = simulated(num_stages, 1, Remat.NEVER, (FORWARD, BACKWARD, RECOMPUTE))
    assert timeline.makespan == naive_makespan(num_stages, forward=FORWARD, backward=BACKWARD)
    assert timeline.bubble == Fraction(num_stages - 1, num_stages)
    assert naive_bubble(num_stages) == (num_stages - 1) / num_stages


@pytest.mark.parametrize(("num_stages", "below", "expected"), [(1, 0.2, 1), (2, 0.2, 5), (8, 0.2, 29), (8, 0.5, 8)])
def test_smallest_num_micro_batches(num_stages: int, below: float, expected: int) -> None:
    assert smallest_num_micro_batches(num_stages, below) == expected


def test_smallest_num_micro_batches_is_smallest() -> None:
    for num_stages in range(1, 40):
        for below in (0.01, 0.1, 0.2, 0.33, 0.9):
            found = smallest_num_micro_batches(num_stages, below)
            assert bubble(num_stages, found) < below
            assert found == 1 or bubble(num_stages, found - 1) >= below


@pytest.mark.parametrize("below", [0, 1, -0.1, 20])
def test_a_share_is_between_0_and_1(below: float) -> None:
    with pytest.raises(ScheduleError, match=f"below={below}"):
        smallest_num_micro_batches(4, below)
