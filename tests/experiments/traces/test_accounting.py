from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.experiments.traces.accounting import PARTS, break_down, durations, makespan
from repro.experiments.traces.bubbles import events_of
from repro.gpipe import Event
from repro.schedules import gpipe_bubble, make_schedule, simulate


def late(events: list[Event], delay: float) -> list[Event]:
    """The same step on a clock that starts elsewhere, the work of each rank's later half held up by a message."""
    middle = max(event.end for event in events) / 2
    return [
        replace(
            e,
            start=e.start + 5 + (delay if e.start > middle else 0),
            end=e.end + 5 + (delay if e.start > middle else 0),
        )
        for e in events
    ]


@pytest.mark.parametrize("remat", ["always", "except_last", "never"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 8), (4, 4), (3, 1)])
def test_equal_stages_without_messages_have_the_bubble_of_the_closed_form(
    stages: int, micro_batches: int, remat: str
) -> None:
    schedule = make_schedule("gpipe", num_stages=stages, num_micro_batches=micro_batches, remat=remat)
    timeline = simulate(schedule, forward=1.0, backward=2.0, recompute=1.0)
    found = break_down(schedule, events_of(timeline), begun=0.0, ended=float(timeline.makespan))
    shares = found.shares()
    assert list(shares) == list(PARTS)
    expected = gpipe_bubble(stages, micro_batches, forward=1, backward=2, recompute=1, remat=remat)
    assert shares["bubble"] == pytest.approx(float(expected))
    for part in ("load imbalance", "communication", "weight update", "setup"):
        assert shares[part] == pytest.approx(0.0, abs=1e-12)
    assert (shares["recompute"] > 0) == (remat == "always" or (remat == "except_last" and micro_batches > 1))


def test_every_cause_gets_its_own_time() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=4)
    # F and B of the second stage take twice as long: means of 1.5 and 3.
    timeline = simulate(schedule, forward=[1.0, 2.0], backward=[2.0, 4.0])
    events = late(events_of(timeline), 0.5)
    span = float(timeline.makespan) + 0.5
    found = break_down(
        schedule,
        events,
        begun=5 - 0.25,
        ended=5 + span + 1.0,
        updates=[(5 + span, 5 + span + 0.75), (5 + span - 0.5, 5 + span + 0.25)],
    )
    assert found.computation == pytest.approx(4 * (3 + 6))
    assert found.weight_update == pytest.approx(1.5)
    # (K - 1)(t_F + t_B) idle on each rank, less the half second in which rank 1 updated already.
    assert found.bubble == pytest.approx(2 * 4.5 - 0.5)
    assert found.load_imbalance == pytest.approx(2 * (float(timeline.makespan) - 5 * 4.5))
    assert found.between_stages == pytest.approx(found.load_imbalance)
    assert found.communication == pytest.approx(2 * 0.5)
    assert found.setup == pytest.approx(2 * 1.25 - 1.0)
    assert found.total == pytest.approx(2 * (span + 1.25))


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["always", "except_last", "never"]),
    st.lists(st.floats(0.01, 3.0), min_size=12, max_size=12),
    st.floats(0, 2),
    st.floats(0, 2),
    st.floats(0, 3),
)
def test_the_parts_add_up_and_none_is_negative(
    stages: int, micro_batches: int, remat: str, costs: list[float], before: float, after: float, update: float
) -> None:
    schedule = make_schedule("gpipe", num_stages=stages, num_micro_batches=micro_batches, remat=remat)
    timeline = simulate(
        schedule, forward=costs[:stages], backward=costs[4 : 4 + stages], recompute=costs[8 : 8 + stages], transfer=0.3
    )
    events = events_of(timeline)
    # Each rank updates its weights once its own actions have ended.
    ends = [max(event.end for event in events if event.rank == rank) for rank in range(stages)]
    updates = [(end, end + update) for end in ends]
    found = break_down(
        schedule,
        events,
        begun=-before,
        ended=max(*(end for _, end in updates), float(timeline.makespan)) + after,
        updates=updates,
    )
    shares = found.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= -1e-9


def test_noise_is_no_imbalance_between_stages() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=4)
    events = events_of(simulate(schedule, forward=1.0, backward=2.0))
    # The first F of the first stage takes longer, the second is faster: the mean is as before, the step is longer.
    longer = {0: 0.5, 1: -0.5}
    noisy = [
        replace(e, end=e.end + longer[e.micro_batch])
        if (e.kind, e.stage) == ("F", 0) and e.micro_batch in longer
        else e
        for e in events
    ]
    found = break_down(schedule, noisy, begun=0.0, ended=max(event.end for event in noisy))
    assert found.load_imbalance == pytest.approx(2 * 0.5)
    assert found.between_stages == pytest.approx(0.0)


def test_the_replay_of_a_trace_is_what_the_simulator_gives() -> None:
    schedule = make_schedule("gpipe", num_stages=3, num_micro_batches=4, remat="except_last")
    timeline = simulate(schedule, forward=[1.0, 3.0, 2.0], backward=[2.0, 1.0, 4.0], recompute=[1.0, 2.0, 1.0])
    assert makespan(schedule, durations(schedule, events_of(timeline))) == pytest.approx(float(timeline.makespan))


def test_a_trace_of_another_schedule_is_an_error() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=2)
    other = make_schedule("gpipe", num_stages=2, num_micro_batches=3)
    with pytest.raises(ValueError, match="12 actions of a schedule that has 8"):
        durations(schedule, events_of(simulate(other)))
