"""Every formula in circulation against the schedule that it is about, and what each of them does describe."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from repro.datasets.paper import published
from repro.report.claims.circulating import claims, target
from repro.report.claims.formulas import FORMULAS, int_plus_one
from repro.report.claims.replay import Case, replay, smallest
from repro.report.claims.synchronous_entries import all_forwards_first
from repro.schedules import make_schedule

# What the claim says for P = M = 4, exactly, and what replaying gives.
FOUR = {
    "closed form": (Fraction(3, 7), Fraction(3, 7)),
    "forward ramp": (Fraction(1, 4), Fraction(3, 7)),
    "two forward ramps": (Fraction(2, 7), Fraction(3, 7)),
    "about 30%": (Fraction(3, 10), Fraction(3, 7)),
    "scaled 1F1B": (Fraction(9, 49), Fraction(3, 11)),
    "interleaved": (Fraction(3, 11), Fraction(3, 11)),
}
NUMBERS = [(stages, count) for stages, count in product((1, 2, 3, 4, 8), (1, 2, 4, 7, 16))]


def test_every_claim_is_known() -> None:
    assert list(claims()) and set(claims()) == set(FOUR)
    assert set(FORMULAS) == {name for name, claim in claims().items() if claim.formula}


@pytest.mark.parametrize("name", FOUR)
def test_stated_and_replayed(name: str) -> None:
    claim = claims()[name]
    told, replayed = FOUR[name]
    assert (claim.case.num_stages, claim.case.num_micro_batches) == (4, 4)
    assert replay(claim.case).bubble == replayed
    assert round(100 * float(told), 1) == claim.stated
    if name in FORMULAS:
        assert FORMULAS[name](claim.case) == told


@pytest.mark.parametrize(("stages", "count"), NUMBERS)
@pytest.mark.parametrize("backward", [Fraction(1), Fraction(2), Fraction(5, 2)])
def test_the_closed_form_is_the_bubble_of_both_whatever_a_backward_costs(
    stages: int, count: int, backward: Fraction
) -> None:
    for name in ("gpipe", "1f1b"):
        case = Case(name, stages, count, backward=backward)
        assert FORMULAS["closed form"](case) == replay(case).bubble
        # Two ramps of forwards are right where a backward costs a forward, or nothing idles, and too few elsewhere.
        assert (FORMULAS["two forward ramps"](case) == replay(case).bubble) == (backward == 1 or stages == 1)


@pytest.mark.parametrize(("stages", "count"), [(stages, count) for stages, count in NUMBERS if count >= stages])
def test_the_forward_ramp_is_the_idle_time_of_zb_h1(stages: int, count: int) -> None:
    case = Case("zb-h1", stages, count)
    assert FORMULAS["forward ramp"](case) == replay(case).of_ideal
    assert stages == 1 or FORMULAS["forward ramp"](case) < replay(replace(case, schedule="gpipe")).of_ideal


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (3, 3), (4, 4), (4, 7), (4, 16), (8, 16)])
@pytest.mark.parametrize("virtual", [1, 2, 3, 4])
def test_interleaved_is_slower_than_a_scaled_1f1b(stages: int, count: int, virtual: int) -> None:
    case = Case("interleaved", stages, count, virtual)
    found = replay(case).bubble
    assert FORMULAS["interleaved"](case) == found
    estimate = FORMULAS["scaled 1F1B"](case)
    assert estimate == found if virtual == 1 else estimate < found


@pytest.mark.parametrize(
    "row", published("circulating_smallest"), ids=lambda row: f"{row['num_stages']}-{row['target_percent']}"
)
def test_smallest_m(row: dict[str, int]) -> None:
    stages, share = row["num_stages"], target(row["target_percent"])
    at_most, below = smallest(stages, share).num_micro_batches, smallest(stages, share, strictly=True).num_micro_batches
    assert at_most == row["at_most"]
    assert below == int_plus_one(stages, share)
    assert row["int_plus_one"] in (None, below)
    for count in (at_most, below):
        bubbles = [replay(Case("1f1b", stages, one)).bubble for one in (count - 1, count)]
        assert bubbles[1] <= share <= bubbles[0]


def test_ten_percent_over_eight_stages_is_reached_at_63_and_passed_at_64() -> None:
    assert replay(Case("gpipe", 8, 63)).bubble == Fraction(1, 10)
    assert replay(Case("gpipe", 8, 64)).bubble < Fraction(1, 10) < replay(Case("gpipe", 8, 62)).bubble
    assert smallest(8, Fraction(1, 10)).num_micro_batches == 63
    assert smallest(8, Fraction(1, 10), strictly=True).num_micro_batches == 64


@pytest.mark.parametrize(
    "row",
    [row for row in published("circulating_cases") if row["stated_percent"] is not None],
    ids=lambda row: f"{row['num_stages']}-{row['num_micro_batches']}",
)
def test_worked_cases(row: dict[str, int]) -> None:
    bubble = replay(Case("1f1b", row["num_stages"], row["num_micro_batches"])).bubble
    assert round(100 * float(bubble), 1) == row["stated_percent"]


@pytest.mark.parametrize("count", [1, 4, 8])
def test_all_forwards_first_is_gpipe_in_time_and_memory(count: int) -> None:
    told, gpipe = replay(Case(all_forwards_first, 4, count)), replay(Case("gpipe", 4, count))
    assert (told.makespan, told.bubble, told.peak_live) == (gpipe.makespan, gpipe.bubble, gpipe.peak_live)
    assert told.peak_live == (count,) * 4


def test_only_the_first_rank_of_1f1b_looks_like_all_forwards_first() -> None:
    numbers = {"num_stages": 4, "num_micro_batches": 4}
    told, true = make_schedule(all_forwards_first, **numbers), make_schedule("1f1b", **numbers)
    assert [a == b for a, b in zip(told.actions, true.actions, strict=True)] == [True, False, False, False]
