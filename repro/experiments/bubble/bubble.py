"""The bubble over K x M beside its closed forms, and what M costs: memory, throughput, the best M.

The bubble is emulated with equal stages for every K, and measured with real layers where each stage can have a core or
GPU. What M costs is measured twice, with a different thing held fixed: the mini-batch (its rows are cut into more and
smaller micro-batches), or the micro-batch (the mini-batch grows with M).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.errors import UserError

from ..costs.workload import Workload
from ..sweeps.checks import Check
from ..sweeps.rows import Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..traces.step_plan import EqualWaits, StepCell, StepPlan, can_measure, check_pipeline
from .bubble_rows import EXPERIMENT, GRID, MICRO_BATCH, MINI_BATCH, cell_rows

REMATS = ("never", "always")
_STAGES, _MEASURED_STAGES = (2, 4, 8), (2,)
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Size:
    """How big a run is.

    Attributes:
        workload: the real layers.
        mini_batch: rows, where the mini-batch is fixed; the largest M gives each micro-batch one row.
        micro_batch: rows, where the micro-batch is fixed.
        waits: of an emulated stage and row.
        emulated_steps: of each cell.
        measured_steps: likewise.
        stages: K that are emulated.
        micro_batches: M.
    """

    workload: Workload
    mini_batch: int
    micro_batch: int
    waits: EqualWaits
    emulated_steps: int
    measured_steps: int
    stages: tuple[int, ...] = _STAGES
    micro_batches: tuple[int, ...] = _MICRO_BATCHES


_SIZES = {
    "smoke": Size(Workload(d_model=128, d_ff=512, length=32), 16, 1, EqualWaits(0.005, 0.01), 2, 2, (4,), (1, 4, 16)),
    "laptop": Size(Workload(length=64), 32, 2, EqualWaits(0.01, 0.02), 3, 5),
    "gpu": Size(
        Workload(num_layers=16, d_model=2048, d_ff=8192, num_heads=32, length=512), 32, 2, EqualWaits(0.01, 0.02), 3, 7
    ),
}


def plans(request: Request) -> dict[str, StepPlan]:
    """By part name: the emulated grid for each K, and both panels for each K that can be measured.

    Raises:
        UserError: a single stage, or the mini-batch cannot be cut into as many equal micro-batches.
    """
    check_pipeline(request.num_stages)
    size = _SIZES[request.scale]
    numbers = request.num_micro_batches or size.micro_batches
    made: dict[str, StepPlan] = {}
    for stages in request.num_stages or size.stages:
        cells = tuple(StepCell(number, 1, remat) for remat in REMATS for number in numbers)
        made[f"emulated-k{stages}"] = StepPlan(size.waits, stages, cells, size.emulated_steps)
    for stages in request.num_stages or _MEASURED_STAGES:
        if can_measure(stages, request.device, os.cpu_count()) is not None or stages > size.workload.num_layers:
            continue
        for number in numbers:
            if size.mini_batch % number:
                raise UserError(
                    f"-M {number}: where the mini-batch is fixed it has {size.mini_batch} rows, which have no {number} "
                    f"equal parts; give divisors of {size.mini_batch}"
                )
        rows = {MINI_BATCH: [size.mini_batch // number for number in numbers]}
        rows[MICRO_BATCH] = [size.micro_batch] * len(numbers)
        for panel, of in rows.items():
            cells = tuple(
                StepCell(number, count, remat) for remat in REMATS for number, count in zip(numbers, of, strict=True)
            )
            made[f"{panel.replace(' ', '-')}-k{stages}"] = StepPlan(
                size.workload, stages, cells, size.measured_steps, 2, memory=True, device=request.device
            )
    return made


def parts(request: Request) -> Sequence[SweepPart]:
    """A part for each plan; raises as ``plans`` does."""
    from ..traces.traced_steps import run_steps

    return [
        SweepPart(
            name=name,
            title=f"K = {plan.num_stages}, {panel_of(name)}" + (", emulated" if plan.emulated else ", measured"),
            function=run_steps,
            arguments=(plan,),
            world_size=plan.num_stages,
            seconds=_seconds(plan),
        )
        for name, plan in plans(request).items()
    ]


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Bubbles with their closed forms, throughput and live activations; the verdicts that follow; what must hold."""
    from ..traces.step_rows import cells_of
    from .bubble_verdicts import check_bubbles, check_memory, verdict_rows

    made: list[Row] = []
    for name, plan in plans(request).items():
        for ran in cells_of(plan, results.get(name, ())):
            made += cell_rows(ran, panel_of(name))
    waits = _SIZES[request.scale].waits
    checks = check_memory(made)
    if request.scale != "smoke":  # too short to judge times
        checks = [*check_bubbles(made, waits.forward + waits.backward), *checks]
    return [*made, *verdict_rows(made)], checks


def panel_of(name: str) -> str:
    """What is held fixed in a part."""
    return next((panel for panel in (MINI_BATCH, MICRO_BATCH) if name.startswith(panel.replace(" ", "-"))), GRID)


def _seconds(plan: StepPlan) -> float:
    runs = plan.steps + plan.warm_up
    if isinstance(plan.model, EqualWaits):
        one = plan.model.forward + plan.model.backward
        return 5.0 + runs * sum((cell.num_micro_batches + plan.num_stages) * one * 1.25 for cell in plan.cells)
    # About 8 ms a row and stage on one core for the layers of the laptop scale, a third more with R.
    share = 0.008 if plan.steps > 2 else 0.002
    return 6.0 + (runs + 2) * sum(cell.batch_size for cell in plan.cells) * share


TARGET = Target(
    name=EXPERIMENT,
    summary="The bubble over K x M against its closed forms, and what M costs in memory and throughput.",
    minutes={"smoke": 0.5, "laptop": 2.9},
    parts=parts,
    rows=rows,
)
