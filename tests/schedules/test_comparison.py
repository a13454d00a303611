from __future__ import annotations

from fractions import Fraction

import pytest

from repro.schedules import Remat, ScheduleError, comparison, make_schedule, simulate
from repro.schedules.comparison import Work, compare, smallest_for_bubble

from .test_registry import VIRTUAL_STAGES, sizes

SCHEDULES = [(name, 2 if name in ("interleaved", "zb-v") else 1) for name in VIRTUAL_STAGES]
FAST = ("gpipe", "1f1b", "zb-v")


@pytest.mark.parametrize("work", [Work(), Work(Fraction(2), Fraction(3), Remat.ALWAYS), Work(backward=Fraction("0.7"))])
@pytest.mark.parametrize(("name", "virtual"), SCHEDULES)
def test_figures_are_those_of_the_replay(name: str, virtual: int, work: Work) -> None:
    for num_stages, num_micro_batches in ((1, 3), (2, 1), (4, 3), (4, 8), (6, 13)):
        found = compare(name, num_stages, num_micro_batches, virtual, work)
        schedule = make_schedule(
            name,
            num_stages=num_stages,
            num_micro_batches=num_micro_batches,
            num_virtual_stages=virtual,
            remat=work.remat,
        )
        timeline = simulate(schedule, work.forward / virtual, work.backward / virtual, work.forward / virtual)
        ideal = num_micro_batches * (work.forward + work.backward)
        assert found.peak_live == max(timeline.peak_live) == found.peak_live_ranks * virtual
        assert found.utilisation == 1 - found.bubble
        if found.flush:
            assert found.bubble == timeline.bubble
            assert found.bubble_of_ideal == (timeline.makespan - timeline.busy[0]) / timeline.busy[0]
            assert found.relative_step_time == timeline.makespan / ideal
        else:
            assert (name, found.bubble, found.bubble_of_ideal) == ("pipedream", 0, 0)
            assert found.relative_step_time == timeline.busy[0] / ideal


@pytest.mark.parametrize("work", [Work(), Work(backward=Fraction(3)), Work(remat=Remat.EXCEPT_LAST)])
@pytest.mark.parametrize("target", [Fraction("0.15"), Fraction(1, 3)])
@pytest.mark.parametrize(("name", "virtual"), SCHEDULES)
def test_the_smallest_is_the_first_that_is_small_enough(name: str, virtual: int, target: Fraction, work: Work) -> None:
    # What has no closed form for these costs is replayed again and again: few ranks are enough there.
    for num_stages in (1, 2) if work.backward == 3 else (1, 2, 3, 4):
        if not sizes(name, num_stages, virtual):
            continue
        limit = 4 * (num_stages * 10 + num_stages)
        for strictly in (False, True):
            found = smallest_for_bubble(name, num_stages, virtual, work, target, strictly=strictly)
            tried = (compare(name, num_stages, count, virtual, work) for count in range(1, limit if not found else 99))
            first = next((one for one in tried if one.bubble < target or (one.bubble == target and not strictly)), None)
            assert found == first


@pytest.mark.parametrize(("target", "expected"), [("0.15", [6, 17, 40, 85]), ("0.10", [9, 27, 63, 135])])
def test_smallest_of_gpipe(target: str, expected: list[int]) -> None:
    found = [smallest_for_bubble("gpipe", stages, 1, Work(), Fraction(target)) for stages in (2, 4, 8, 16)]
    assert [one and one.num_micro_batches for one in found] == expected


def test_at_most_and_strictly_below_differ_where_the_bubble_is_the_target() -> None:
    exactly = smallest_for_bubble("gpipe", 8, 1, Work(), Fraction(1, 10))
    below = smallest_for_bubble("gpipe", 8, 1, Work(), Fraction(1, 10), strictly=True)
    assert exactly is not None and below is not None
    assert (exactly.num_micro_batches, exactly.bubble, below.num_micro_batches) == (63, Fraction(1, 10), 64)


def test_none_where_idle_time_grows_with_m() -> None:
    assert smallest_for_bubble("chimera", 8, 1, Work(), Fraction(1, 10)) is None


def test_a_small_target_is_found_at_once() -> None:
    # By the closed forms: (K - 1) 3 t of 3 M t, and with two stages a rank of half the work (K - 1) t of 6 M t.
    found = [smallest_for_bubble(name, 8, 2 if name == "zb-v" else 1, Work(), Fraction(1, 10**7)) for name in FAST]
    assert [one and one.num_micro_batches for one in found] == [7 * (10**7 - 1), 7 * (10**7 - 1), 11_666_666]


def test_what_would_be_replayed_for_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_MOST_REPLAYED", 1000)
    with pytest.raises(ScheduleError, match=r"target=1e-05: .* 'zb-v' .* M = .* num_stages=8; give a larger target"):
        smallest_for_bubble("zb-v", 8, 2, Work(backward=Fraction(3)), Fraction(1, 10**5))


@pytest.mark.parametrize("work", [Work(), Work(backward=Fraction(3)), Work(remat=Remat.EXCEPT_LAST)])
@pytest.mark.parametrize(("name", "virtual"), [one for one in SCHEDULES if one[0] != "chimera"])
def test_the_bubble_falls_with_m(name: str, virtual: int, work: Work) -> None:
    for num_stages in (1, 2, 3, 5):
        bubbles = [compare(name, num_stages, count, virtual, work).bubble for count in range(1, 25)]
        assert bubbles == sorted(bubbles, reverse=True)


@pytest.mark.parametrize("target", [Fraction(0), Fraction(1), Fraction(15)])
def test_a_target_is_a_share(target: Fraction) -> None:
    with pytest.raises(ScheduleError, match=f"target={target}"):
        smallest_for_bubble("gpipe", 2, 1, Work(), target)


def test_costs_are_above_zero() -> None:
    with pytest.raises(ScheduleError, match="backward=0"):
        Work(backward=Fraction(0))
