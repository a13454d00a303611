"""What steps of a plan of schedules return, made by the simulator: messages free, the waits as planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.experiments.schedules.schedule_plan import SchedulePlan
from repro.experiments.traces.bubbles import events_of, measured_bubble
from repro.experiments.traces.schedule_costs import traced_costs


def results_of(plan: SchedulePlan, slower: Mapping[str, float]) -> list[dict[str, Any]]:
    """As of ``schedule_steps.run_schedules``.

    Args:
        slower: how many times the seconds of its actions the step of a schedule takes, by name; 1 by default.
    """
    made = []
    for number in plan.micro_batches:
        for order in plan.orders:
            timeline = plan.simulated(order, number)
            events = events_of(timeline)
            costs = traced_costs(events, plan.num_stages * order.num_virtual_stages)
            made.append(
                {
                    "num_micro_batches": number,
                    "schedule": order.schedule,
                    "num_virtual_stages": order.num_virtual_stages,
                    "seconds": [slower.get(order.schedule, 1.0) * float(timeline.makespan)] * plan.rounds,
                    "bubbles": [measured_bubble(events)] * plan.rounds,
                    "costs": [costs.as_dict()] * plan.rounds,
                    "peak_live": list(timeline.peak_live),
                }
            )
    return made
