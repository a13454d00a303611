"""Figure 2 of the paper from real traces: naive model parallelism (M = 1) beside GPipe, the same mini-batch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from repro.errors import UserError

from ..costs.workload import Workload
from ..sweeps.checks import Check
from ..sweeps.rows import Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..traces.step_plan import EqualWaits, StepCell, StepPlan, can_measure, check_pipeline

EXPERIMENT = "figure2"
DRAWN_STAGES, DRAWN_MICRO_BATCHES = 4, 4
"""Of the paper's figure."""
_MEASURED_STAGES = 2
_STAGE_SECONDS = 0.24
"""F and B of the whole mini-batch on one emulated stage; F is a third of it."""
_SIZES = {
    "smoke": (Workload(d_model=128, d_ff=512, length=32), 16, 2),
    "laptop": (Workload(length=64), 32, 5),
    "gpu": (Workload(num_layers=16, d_model=2048, d_ff=8192, num_heads=32, length=512), 32, 5),
}
"""By scale: the layers, the rows of a mini-batch, the steps of each cell."""


def plans(request: Request) -> list[StepPlan]:
    """Emulated equal stages, and real layers where each stage can have a core or GPU.

    No re-materialization, as in the paper's figure.

    Raises:
        UserError: a single stage, or the real mini-batch cannot be cut into as many equal micro-batches.
    """
    check_pipeline(request.num_stages)
    workload, batch, steps = _SIZES[request.scale]
    numbers = tuple(dict.fromkeys((1, *(request.num_micro_batches or (DRAWN_MICRO_BATCHES,)))))
    rows = math.lcm(*numbers)
    waits = EqualWaits(_STAGE_SECONDS / rows / 3, 2 * _STAGE_SECONDS / rows / 3)
    cells = tuple(StepCell(number, rows // number, "never") for number in numbers)
    made = [StepPlan(waits, stages, cells, steps, keep=True) for stages in request.num_stages or (DRAWN_STAGES,)]
    for stages in request.num_stages or (_MEASURED_STAGES,):
        if can_measure(stages, request.device, os.cpu_count()) is not None or stages > workload.num_layers:
            continue
        for number in numbers:
            if batch % number:
                raise UserError(
                    f"-M {number}: a mini-batch of {batch} rows has no {number} equal parts; give a divisor of {batch}"
                )
        cells = tuple(StepCell(number, batch // number, "never") for number in numbers)
        made.append(StepPlan(workload, stages, cells, steps, keep=True, device=request.device))
    return made


def parts(request: Request) -> Sequence[SweepPart]:
    """One for each K and way; raises as ``plans`` does."""
    from ..traces.traced_steps import run_steps

    return [
        SweepPart(
            name=_name(plan),
            title=f"naive and GPipe, K = {plan.num_stages}, {'emulated' if plan.emulated else 'measured'}",
            function=run_steps,
            arguments=(plan,),
            world_size=plan.num_stages,
            seconds=8.0 + (plan.steps + plan.warm_up) * (1.5 if plan.emulated else 1.0),
        )
        for plan in plans(request)
    ]


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """The timeline of the median step of each cell, its bubble and its length.

    GPipe must be faster than the naive way wherever there is more than one stage; the smallest scale does not judge.
    """
    from ..traces.step_rows import cells_of

    made: list[Row] = []
    checks: list[Check] = []
    for plan in plans(request):
        if _name(plan) not in results:
            continue
        spans: dict[int, float] = {}
        for ran in cells_of(plan, results[_name(plan)]):
            made += ran.timeline(EXPERIMENT)
            made.append(ran.median_row(EXPERIMENT, "bubble", ran.result["bubbles"], "1"))
            made.append(ran.median_row(EXPERIMENT, "step_span", ran.result["spans"], "s"))
            spans[ran.cell.num_micro_batches] = made[-1].value
        for number, span in spans.items():
            if number > 1 and plan.num_stages > 1 and request.scale != "smoke":
                how = "emulated" if plan.emulated else "measured"
                text = (
                    f"K = {plan.num_stages}, {how}: GPipe with M = {number} takes {span / spans[1]:.2f} x the time of "
                    "naive model parallelism on the same mini-batch"
                )
                checks.append(Check(text, span < spans[1]))
    return made, checks


def _name(plan: StepPlan) -> str:
    return f"{'emulated' if plan.emulated else 'measured'}-k{plan.num_stages}"


TARGET = Target(
    name=EXPERIMENT,
    summary="Figure 2: naive model parallelism beside GPipe, drawn from real traces.",
    minutes={"smoke": 0.4, "laptop": 0.3},
    parts=parts,
    rows=rows,
)
