from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import UserError
from repro.experiments.costs.link import Link, step_seconds, with_links
from repro.schedules import Kind, Remat, Schedule, make_schedule, simulate, validate

COSTS = st.floats(0, 10)


def replayed_by_hand(
    schedule: Schedule, forward: list[float], backward: list[float], occupancy: list[float], latency: float
) -> float:
    """One action after the other, links as clocks that say when each direction is free again."""
    durations = {Kind.FORWARD: forward, Kind.RECOMPUTE: forward, Kind.BACKWARD: backward}
    clock = [0.0] * schedule.num_stages
    free = {(edge, way): 0.0 for edge in range(schedule.num_stages - 1) for way in ("F", "B")}
    arrived: dict[tuple[str, int, int], float] = {}
    left = [list(actions) for actions in schedule.actions]
    while any(left):
        for stage, actions in enumerate(left):
            while actions:
                kind, _, micro_batch = actions[0]
                needs = None
                if kind is Kind.FORWARD and stage > 0:
                    needs = ("F", stage, micro_batch)
                if kind is Kind.BACKWARD and stage < schedule.num_stages - 1:
                    needs = ("B", stage, micro_batch)
                if needs is not None and needs not in arrived:
                    break
                actions.pop(0)
                begun = max(clock[stage], 0.0 if needs is None else arrived[needs])
                clock[stage] = begun + durations[kind][stage]
                target = stage + 1 if kind is Kind.FORWARD else stage - 1
                if kind is not Kind.RECOMPUTE and 0 <= target < schedule.num_stages:
                    edge = min(stage, target), kind.value
                    free[edge] = max(free[edge], clock[stage]) + occupancy[edge[0]]
                    arrived[kind.value, target, micro_batch] = free[edge] + latency
    return max(clock)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), stages=st.integers(1, 5), micro_batches=st.integers(1, 6), remat=st.sampled_from(list(Remat)))
def test_a_link_passes_one_message_at_a_time(
    data: st.DataObject, stages: int, micro_batches: int, remat: Remat
) -> None:
    forward, backward = (data.draw(st.lists(COSTS, min_size=stages, max_size=stages)) for _ in range(2))
    occupancy = data.draw(st.lists(COSTS, min_size=stages - 1, max_size=stages - 1))
    latency = data.draw(COSTS)
    schedule = make_schedule("gpipe", num_stages=stages, num_micro_batches=micro_batches, remat=remat)
    ours = step_seconds(schedule, forward, backward, occupancy=occupancy, latency=latency)
    assert ours == pytest.approx(replayed_by_hand(schedule, forward, backward, occupancy, latency))


def test_a_fast_link_is_no_link() -> None:
    schedule = make_schedule("gpipe", num_stages=4, num_micro_batches=5, remat="always")
    bare = simulate(schedule, forward=1.0, backward=2.0, recompute=1.0).makespan
    assert step_seconds(schedule, [1.0] * 4, [2.0] * 4, occupancy=[0.0] * 3, latency=0.0) == pytest.approx(bare)


def test_the_schedule_with_links_is_valid() -> None:
    validate(with_links(make_schedule("gpipe", num_stages=3, num_micro_batches=4, remat="never")))


@pytest.mark.parametrize(
    ("bandwidth", "latency", "words"),
    [
        (0.0, 0.0, "--bandwidth: the link 'slow' has 0 GB/s"),
        (-1e9, 0.0, "has -1 GB/s; give a number above 0"),
        (float("nan"), 0.0, "--bandwidth"),
        (float("inf"), 0.0, "--bandwidth"),
        (1e9, -1e-6, "--latency: the link 'slow' has -1 microseconds; give 0 or more"),
    ],
)
def test_a_link_that_cannot_be_is_refused(bandwidth: float, latency: float, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Link("slow", latency, bandwidth)


@pytest.mark.parametrize("options", [{"schedule": "1f1b"}, {"num_virtual_stages": 2}])
def test_links_are_modelled_for_the_schedule_of_the_tables(options: dict[str, object]) -> None:
    name = str(options.pop("schedule", "gpipe"))
    schedule = make_schedule(name, num_stages=2, num_micro_batches=4, remat="never", **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="links are modelled for schedule='gpipe'"):
        with_links(schedule)


def test_there_is_a_link_between_any_two_stages() -> None:
    schedule = make_schedule("gpipe", num_stages=3, num_micro_batches=2, remat="never")
    with pytest.raises(ValueError, match="1 links between 3 stages"):
        step_seconds(schedule, [1.0] * 3, [2.0] * 3, occupancy=[0.1], latency=0.0)
