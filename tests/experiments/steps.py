"""What traced steps of a plan return, made by the simulator: equal stages, free messages, known costs."""

from __future__ import annotations

from typing import Any

from repro.experiments.traces.bubbles import events_of, measured_bubble, stage_costs
from repro.experiments.traces.step_plan import StepPlan
from repro.schedules import edges, make_schedule, simulate


def results_of(plan: StepPlan, row_seconds: float = 0.01, fixed_seconds: float = 0.0) -> list[dict[str, Any]]:
    """As of ``traced_steps.run_steps``.

    Args:
        row_seconds: F of a row on each stage; R takes as long, B twice.
        fixed_seconds: of every action beside that, however few its rows are.
    """
    made = []
    for cell in plan.cells:
        schedule = make_schedule(
            "gpipe", num_stages=plan.num_stages, num_micro_batches=cell.num_micro_batches, remat=cell.remat
        )
        cost = row_seconds * cell.rows + fixed_seconds
        timeline = simulate(schedule, forward=cost, backward=2 * cost, recompute=cost)
        events = events_of(timeline)
        span = float(timeline.makespan)
        step = {
            "events": [list(event.as_dict().values()) for event in events],
            "transfers": [
                [rank, side, *message, 4096, 0.0, 0.001]
                for (source, target, _), messages in edges(schedule).items()
                for message in messages
                for rank, side in ((source, "send"), (target, "receive"))
            ],
            "begun": -0.1 * span,
            "ended": 1.1 * span,
            "updates": [[span, 1.05 * span]] * plan.num_stages,
        }
        live = cell.batch_size if cell.remat == "never" else cell.rows
        made.append(
            {
                "cell": {},
                "partition": [1] * plan.num_stages,
                "spans": [span] * plan.steps,
                "bubbles": [measured_bubble(events)] * plan.steps,
                "costs": [stage_costs([events], plan.num_stages).as_dict()] * plan.steps,
                "seconds": [1.2 * span] * plan.steps,
                "live_bytes": [1000 * live] * plan.num_stages if plan.memory else [],
                "steps": [step] * plan.steps if plan.keep else [],
            }
        )
    return made
