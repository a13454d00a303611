from __future__ import annotations

import pytest

from repro.experiments.schedules.schedule_plan import ORDERS, Order
from repro.experiments.traces.bubbles import events_of
from repro.experiments.traces.schedule_costs import TracedCosts, replayed_with, traced_costs
from repro.schedules import make_schedule, simulate

BETWEEN, MESSAGE = 0.5, 0.75


@pytest.mark.parametrize("remat", ["never", "always"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.label)
def test_a_trace_of_known_costs_replays_to_itself(order: Order, remat: str) -> None:
    schedule = make_schedule(
        order.schedule,
        num_stages=4,
        num_micro_batches=9,
        num_virtual_stages=order.num_virtual_stages,
        remat=remat,
    )
    total = schedule.total_stages
    costs = TracedCosts(
        {
            "F": tuple(10.0 + stage for stage in range(total)),
            "R": tuple(9.0 + stage for stage in range(total)),
            **(
                {"I": (11.0,) * total, "W": tuple(12.0 + stage for stage in range(total))}
                if order.schedule.startswith("zb")
                else {"B": (23.0,) * total}
            ),
        },
        BETWEEN,
        MESSAGE,
    )
    timeline = replayed_with(schedule, costs)
    # As a trace shows it: an action ends, and its rank and its message take some time more.
    events = [
        type(event)(**(event.as_dict() | {"end": event.end - BETWEEN}))  # type: ignore[arg-type]
        for event in events_of(timeline)
    ]
    found = traced_costs(events, total)
    for kind, expected in costs.actions.items():
        if kind != "R" or remat == "always":
            assert found.actions[kind] == pytest.approx(expected), kind
    assert found.between >= BETWEEN - 1e-9
    again = TracedCosts.from_dict(found.as_dict())
    assert again.actions.keys() == found.actions.keys()
    assert float(replayed_with(schedule, again).makespan) == pytest.approx(float(timeline.makespan), rel=0.02)


def test_time_between_actions_and_messages_are_told_apart() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=3)
    timeline = simulate(schedule, forward=[10.5, 20.5], backward=[20.5, 40.5], transfer=0.25)
    events = [
        type(event)(**(event.as_dict() | {"end": event.end - BETWEEN}))  # type: ignore[arg-type]
        for event in events_of(timeline)
    ]
    found = traced_costs(events, 2)
    assert found.between == pytest.approx(BETWEEN)
    assert found.message == pytest.approx(BETWEEN + 0.25)


def test_a_kind_that_some_stages_lack_is_an_error() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=1)
    events = [event for event in events_of(simulate(schedule)) if (event.kind, event.stage) != ("B", 1)]
    with pytest.raises(ValueError, match="B on some stages only"):
        traced_costs(events, 2)
