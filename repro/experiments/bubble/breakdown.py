"""The paper's time breakdown: where the time of a step goes, from traces of real and emulated runs with K = 2."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from repro.errors import UserError

from ..costs.full_models import amoebanet_d, transformer_l
from ..costs.scaled_down import SmallAmoebaNet, SmallModel, SmallTransformer
from ..sweeps.checks import Check
from ..sweeps.rows import Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..traces.step_plan import StepCell, StepPlan, WaitsOf, can_measure, check_pipeline, label_of
from ..traces.tracing_overhead import OverheadPlan

EXPERIMENT, OVERHEAD = "breakdown", "tracing_overhead"
STAGES = 2
"""Of the paper's breakdown: it gives the imbalance with two partitions."""
MICRO_BATCHES = 16
"""The paper states none; its bubble of 4% fits K = 2 with M = 16."""
OVERHEAD_LIMIT = 0.01
"""Of the step time, with actions of a millisecond."""
_SIZES: Mapping[str, tuple[tuple[tuple[SmallModel, int], ...], float, int]] = {
    "smoke": (
        ((SmallTransformer(num_layers=4, length=32), 1), (SmallAmoebaNet(num_layers=3, num_filters=8, side=16), 2)),
        0.6,
        2,
    ),
    "laptop": (
        (
            (SmallTransformer(d_model=256, d_ff=1024, vocab_size=500), 2),
            (SmallAmoebaNet(num_layers=3, num_filters=16, side=16), 8),
        ),
        3.0,
        7,
    ),
    "gpu": (
        (
            (SmallTransformer(num_layers=16, d_model=1024, d_ff=4096, num_heads=16, vocab_size=32000, length=512), 4),
            (SmallAmoebaNet(num_layers=18, num_filters=64, side=64, num_classes=1000), 16),
        ),
        3.0,
        7,
    ),
}
"""By scale: real models with the rows of a micro-batch; seconds of an emulated mini-batch on one device; steps."""


def plans(request: Request) -> list[StepPlan]:
    """Real models where each stage can have a core or GPU, and full-size ones emulated.

    Raises:
        UserError: a single stage, or a model has fewer layers than stages.
    """
    check_pipeline(request.num_stages)
    models, seconds, steps = _SIZES[request.scale]
    made = []
    for stages in request.num_stages or (STAGES,):
        for number in request.num_micro_batches or (MICRO_BATCHES,):
            for model, rows in models:
                if can_measure(stages, request.device, os.cpu_count()) is not None:
                    continue
                layers = len(model.factories())
                if stages > layers:
                    raise UserError(f"-K {stages}: {model.label} has {layers} layers; give {layers} or less")
                cell = StepCell(number, rows, "always")
                made.append(StepPlan(model, stages, (cell,), steps, 2, keep=True, device=request.device))
            for full in (amoebanet_d(256, "tpu-v2"), transformer_l(48, "tpu-v3")):
                rows = max(1, full.batch_size // number)
                waits = WaitsOf(full, seconds * number * rows / full.batch_size)
                made.append(StepPlan(waits, stages, (StepCell(number, rows, "always"),), steps, 1, keep=True))
    return made


def parts(request: Request) -> Sequence[SweepPart]:
    """A part for each run, and one for what tracing itself costs; raises as ``plans`` does."""
    from ..traces.traced_steps import run_steps
    from ..traces.tracing_overhead import time_tracing

    made = [
        SweepPart(
            name=_name(plan),
            title=f"{label_of(plan.model)}, K = {plan.num_stages}, M = {plan.cells[0].num_micro_batches}",
            function=run_steps,
            arguments=(plan,),
            world_size=plan.num_stages,
            seconds=_seconds(plan),
        )
        for plan in plans(request)
    ]
    overhead = _overhead(request)
    made.append(
        SweepPart(
            name="tracing",
            title="steps with and without tracing, in turns",
            function=time_tracing,
            arguments=(overhead,),
            world_size=overhead.num_stages,
            seconds=5.0 + overhead.seconds,
        )
    )
    return made


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Shares of the time of all ranks in the step of median length, its timeline, and what tracing costs."""
    from ..traces.step_rows import cells_of
    from .breakdown_rows import overhead_rows, share_rows

    made: list[Row] = []
    checks: list[Check] = []
    for plan in plans(request):
        for ran in cells_of(plan, results.get(_name(plan), ())):
            shares, check = share_rows(ran, EXPERIMENT)
            made += shares
            made += ran.timeline(EXPERIMENT)
            checks.append(check)
    if "tracing" in results:
        costs, (recorder, step) = overhead_rows(_overhead(request), results["tracing"], OVERHEAD, OVERHEAD_LIMIT)
        made += costs
        # The smallest scale is too short to judge the time of a step.
        checks += [recorder] if request.scale == "smoke" else [recorder, step]
    return made, checks


def _overhead(request: Request) -> OverheadPlan:
    return OverheadPlan(rounds=6 if request.scale == "smoke" else 100)


def _name(plan: StepPlan) -> str:
    model = plan.model
    family = model.model.family if isinstance(model, WaitsOf) else type(model).__name__.removeprefix("Small").lower()
    how = "emulated" if plan.emulated else "measured"
    return f"{how}-{family}-k{plan.num_stages}-m{plan.cells[0].num_micro_batches}"


def _seconds(plan: StepPlan) -> float:
    steps = plan.steps + plan.warm_up
    if isinstance(plan.model, WaitsOf):
        return 6.0 + steps * plan.model.seconds * 4 / 3 / plan.num_stages * 1.1
    return 5.0 + 1.5 * steps if plan.steps > 2 else 6.0


TARGET = Target(
    name=EXPERIMENT,
    summary="Where the time of a step goes: computation, recompute, bubble, imbalance, communication, update, setup.",
    minutes={"smoke": 0.5, "laptop": 1.4},
    parts=parts,
    rows=rows,
)
