from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import Any

import pytest

from repro.schedules import (
    GENERATORS,
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
    predict,
    simulate,
    smallest_num_micro_batches,
)
from repro.schedules.theory import FORMS

from .test_registry import VIRTUAL_STAGES, sizes

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
    for num_micro_batches in (*range(1, 20), 31, 32, 64):
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


EXACT: dict[str, Any] = {"forward": Fraction(1), "backward": Fraction(2)}


def assert_as_predicted(name: str, numbers: tuple[int, int, int], remat: Remat, costs: dict[str, Any]) -> None:
    num_stages, num_micro_batches, virtual = numbers
    timeline = simulate(GENERATORS[name](num_stages, num_micro_batches, virtual, remat), **costs)
    predicted = predict(name, num_stages, num_micro_batches, num_virtual_stages=virtual, remat=remat, **costs)
    found = (timeline.makespan, timeline.bubble, timeline.peak_live)
    assert found == (predicted.makespan, predicted.bubble, predicted.peak_live), (name, numbers, remat, costs)


UNIT_COSTS = {"forward": 1, "backward": 2, "weight": 1, "recompute": 1}  # whole numbers: exact, and fast


@pytest.mark.parametrize(
    ("name", "virtual"),
    [
        (name, virtual)
        for name in FORMS
        if name != "pipedream"
        for virtual in range(1, 5)
        if virtual in VIRTUAL_STAGES[name]
    ],
)
def test_every_schedule_equals_the_simulator_with_unit_costs(name: str, virtual: int) -> None:
    """All K to 16, M to 64 and V to 4, with and without R. PipeDream has 1F1B's forms and 1F1B's order."""
    for num_stages, remat in itertools.product(range(1, 17), Remat):
        if sizes(name, num_stages, virtual):
            for num_micro_batches in range(1, 65):
                assert_as_predicted(name, (num_stages, num_micro_batches, virtual), remat, UNIT_COSTS)


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        ("1f1b", {"forward": FORWARD, "backward": BACKWARD, "recompute": RECOMPUTE}),
        ("1f1b", {"forward": Fraction(7), "backward": Fraction(1), "recompute": Fraction(9)}),
        ("interleaved", {"forward": RECOMPUTE, "backward": FORWARD, "recompute": FORWARD}),
        ("interleaved", {"forward": FORWARD, "backward": Fraction(9), "recompute": FORWARD}),
        ("zb-h1", {"forward": FORWARD, "backward": BACKWARD, "weight": Fraction(1, 3), "recompute": RECOMPUTE}),
        ("zb-h1", {"forward": Fraction(9), "backward": Fraction(2), "weight": Fraction(1, 3), "recompute": 7}),
        ("zb-h1", {"forward": Fraction(1), "backward": Fraction(8), "weight": Fraction(1), "recompute": 0}),
        ("zb-h2", {"forward": FORWARD, "backward": 2 * FORWARD, "weight": FORWARD, "recompute": BACKWARD}),
        ("zb-v", {"forward": FORWARD, "backward": 2 * FORWARD, "weight": FORWARD, "recompute": BACKWARD}),
        ("chimera", {"forward": FORWARD, "backward": 2 * FORWARD, "recompute": FORWARD}),
        ("chimera", {"forward": FORWARD, "backward": 2 * FORWARD, "recompute": 0}),
    ],
)
def test_closed_forms_hold_for_the_costs_that_they_name(name: str, costs: dict[str, Any]) -> None:
    for num_stages, num_micro_batches, virtual in itertools.product((1, 2, 3, 4, 6), (1, 2, 3, 5, 6, 8, 13), (1, 2, 3)):
        for remat in Remat:
            if sizes(name, num_stages, virtual):
                assert_as_predicted(name, (num_stages, num_micro_batches, virtual), remat, costs)


def test_pipedream_has_the_order_of_1f1b() -> None:
    assert FORMS["pipedream"] == FORMS["1f1b"]
    for num_stages, num_micro_batches, remat in itertools.product(range(1, 17), (1, 2, 7, 16, 33, 64), Remat):
        ours, theirs = (GENERATORS[name](num_stages, num_micro_batches, 1, remat) for name in ("pipedream", "1f1b"))
        assert (ours.actions, ours.placement) == (theirs.actions, theirs.placement)


def test_chimera_with_equal_forward_and_backward() -> None:
    costs = {"forward": FORWARD, "backward": FORWARD, "recompute": 0}
    for num_stages, num_micro_batches in itertools.product((1, 2, 4, 6, 8), range(1, 20)):
        assert_as_predicted("chimera", (num_stages, num_micro_batches, 1), Remat.NEVER, costs)


@pytest.mark.parametrize(
    ("name", "costs", "part"),
    [
        ("interleaved", {"recompute": 2, "remat": "always", "num_virtual_stages": 2}, "recompute <= forward=1"),
        ("zb-h1", {"weight": Fraction(3, 2), "backward": 4}, "weight <= forward=1"),
        ("zb-h1", {"weight": Fraction(1), "backward": Fraction(3, 2)}, "weight <= backward - weight = 1/2"),
        ("zb-h2", {"backward": 3}, "forward = backward - weight = weight"),
        ("zb-v", {"forward": 3}, "forward = backward - weight = weight"),
        ("chimera", {"backward": 3}, "backward = 2 forward"),
        ("early", {}, "no closed form for schedule='early'"),
    ],
)
def test_closed_forms_say_where_they_do_not_hold(name: str, costs: dict[str, Any], part: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(part)):
        predict(name, 4, 8, **costs)


@pytest.mark.parametrize(
    ("name", "numbers", "bubble_"),
    [
        # Narayanan et al. 2021: 1 / V of (K - 1) / M, as a share of the ideal time.
        ("interleaved", (4, 8, 2), Fraction(3, 2 * 8 + 3)),
        # Qi et al. 2023: a third of 1F1B's idle time; Li and Hoefler 2021, table 2.
        ("zb-h1", (4, 8, 1), Fraction(3, 3 * 8 + 3)),
        ("zb-v", (4, 8, 2), Fraction(3, 2 * 3 * 8 + 3)),
        ("1f1b", (4, 4, 1), Fraction(3, 7)),
    ],
)
def test_published_bubbles(name: str, numbers: tuple[int, int, int], bubble_: Fraction) -> None:
    num_stages, num_micro_batches, virtual = numbers
    assert predict(name, num_stages, num_micro_batches, num_virtual_stages=virtual, **EXACT).bubble == bubble_


def test_chimeras_published_ratios() -> None:
    for ranks in (4, 8, 16):
        equal = predict("chimera", ranks, ranks, forward=Fraction(1), backward=1, recompute=0).bubble
        assert equal == Fraction(ranks - 2, 2 * ranks + ranks - 2)
        double = predict("chimera", ranks, ranks, **EXACT).bubble
        assert double == Fraction(ranks - 2) / (Fraction(3 * ranks, 2) + ranks - 2)


@pytest.mark.parametrize("num_stages", range(1, 17))
def test_unit_costs_give_the_papers_bubble_exactly(num_stages: int) -> None:
    for num_micro_batches in range(1, 65):
        for name in ("gpipe", "1f1b"):
            found = predict(name, num_stages, num_micro_batches)
            assert found.bubble == bubble(num_stages, num_micro_batches)
    schedule = make_schedule("gpipe", num_stages=num_stages, num_micro_batches=13)
    assert simulate(schedule).bubble == bubble(num_stages, 13)


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
