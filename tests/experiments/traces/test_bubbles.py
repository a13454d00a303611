from __future__ import annotations

from dataclasses import replace

import pytest

from repro.experiments.comparison.collect import bubble_rows
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.traces.bubbles import closed_forms, events_of, measured_bubble, replayed, stage_costs
from repro.gpipe import Event
from repro.schedules import gpipe_bubble, make_schedule, simulate
from tests.experiments.results import make_run


@pytest.mark.parametrize("remat", ["always", "except_last", "never"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 8), (4, 4), (3, 1)])
def test_a_trace_of_the_simulator_has_its_bubble(stages: int, micro_batches: int, remat: str) -> None:
    schedule = make_schedule("gpipe", num_stages=stages, num_micro_batches=micro_batches, remat=remat)
    forward = [0.01 * (stage + 1) for stage in range(stages)]
    timeline = simulate(schedule, forward=forward, backward=0.02, recompute=0.01)
    late = [replace(event, start=event.start + 7, end=event.end + 7) for event in events_of(timeline)]
    assert measured_bubble(late) == pytest.approx(float(timeline.bubble), abs=1e-9)
    again = replayed(schedule, stage_costs([late, late], stages))
    assert float(again.makespan) == pytest.approx(float(timeline.makespan))


def test_costs_are_medians_over_micro_batches_and_steps() -> None:
    steps = [
        [Event(0, "F", 0, m, 0.0, 10.0 * m, 10.0 * m + seconds) for m, seconds in enumerate(step)]
        + [Event(0, "B", 0, 0, 0.0, 90.0, 91.0)]
        for step in ([1.0, 2.0, 9.0], [2.0, 2.0, 3.0])
    ]
    costs = stage_costs(steps, 1)
    assert (costs.forward, costs.backward, costs.recompute) == ((2.0,), (1.0,), (0.0,))


def test_a_stage_that_is_missing_in_a_trace_is_an_error() -> None:
    with pytest.raises(ValueError, match="no F of stage 1"):
        stage_costs([[Event(0, "F", 0, 0, 0.0, 0.0, 1.0), Event(0, "B", 0, 0, 0.0, 1.0, 2.0)]], 2)


@pytest.mark.parametrize("events", [[], [Event(0, "F", 0, 0, 0.0, 1.0, 1.0)]])
def test_no_trace_has_no_bubble(events: list[Event]) -> None:
    with pytest.raises(ValueError, match="events"):
        measured_bubble(events)


def test_closed_forms_of_equal_stages_are_what_the_simulator_gives() -> None:
    run = make_run(num_stages=3, num_micro_batches=5)
    costs = stage_costs(run.steps, 3)
    forms = closed_forms(3, 5, "always", costs)
    assert forms["closed form without remat"] == pytest.approx(2 / 7)
    assert forms["closed form with remat"] == pytest.approx(
        gpipe_bubble(3, 5, forward=1, backward=2, recompute=1, remat="always")
    )
    assert float(replayed(run.schedule, costs).bubble) == pytest.approx(forms["closed form with remat"])


def test_the_bubble_of_processes_is_measured_that_of_local_stages_simulated() -> None:
    rows = bubble_rows(make_run(num_stages=2))
    shown = {row.params["form"]: row for row in rows if row.metric == "bubble"}
    assert shown["trace"].provenance is Provenance.MEASURED
    assert shown["replay"].provenance is Provenance.SIMULATED
    assert shown["trace"].value == pytest.approx(shown["replay"].value)
    assert {row.provenance for row in rows if row.metric == "action"} == {Provenance.MEASURED}

    rows = bubble_rows(make_run(num_stages=4, processes=False))
    assert {row.provenance for row in rows} == {Provenance.SIMULATED}
    assert "trace" not in {row.params.get("form") for row in rows}
    assert len([row for row in rows if row.metric == "action"]) == 4 * 4 * 3


def test_a_run_without_a_trace_has_no_bubble_to_show() -> None:
    assert bubble_rows(make_run(num_stages=2, events=[])) == []
