"""From a traced cell to its bubble, the closed forms beside it, its throughput and its live activations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..sweeps.rows import Provenance, Row
from ..traces.bubbles import StageCosts, closed_forms, replayed
from ..traces.step_rows import Ran

EXPERIMENT = "bubble"
GRID, MINI_BATCH, MICRO_BATCH = "grid", "mini-batch fixed", "micro-batch fixed"
TRACE, REPLAY, WITH_REMAT, WITHOUT_REMAT = (
    "trace",
    "replay",
    "closed form with remat",
    "closed form without remat",
)


def cell_rows(ran: Ran, panel: str) -> list[Row]:
    """All rows of one cell.

    Args:
        panel: what is held fixed over M.
    """
    costs = median_costs([StageCosts(**{name: tuple(of) for name, of in step.items()}) for step in ran.result["costs"]])
    made = [
        ran.median_row(
            EXPERIMENT,
            "bubble",
            ran.result["bubbles"],
            "1",
            form=TRACE,
            panel=panel,
            costs=costs.as_dict(),
            least=min(ran.result["bubbles"]),
        )
    ]
    forms = {REPLAY: float(replayed(ran.schedule, costs).bubble)}
    forms |= closed_forms(ran.plan.num_stages, ran.cell.num_micro_batches, ran.cell.remat, costs)
    for form, value in forms.items():
        made.append(ran.row(EXPERIMENT, "bubble", value, "1", provenance=Provenance.SIMULATED, form=form, panel=panel))
    made.append(ran.median_row(EXPERIMENT, "step_time", ran.result["seconds"], "s", panel=panel))
    if not ran.plan.emulated:
        rates = [ran.cell.batch_size / seconds for seconds in ran.result["seconds"]]
        made.append(ran.median_row(EXPERIMENT, "throughput", rates, "rows/s", panel=panel))
    if ran.result["live_bytes"]:
        by_rank = [int(held) for held in ran.result["live_bytes"]]
        made.append(ran.row(EXPERIMENT, "live_activations", float(max(by_rank)), "B", panel=panel, by_rank=by_rank))
    return made


def median_costs(steps: Sequence[StageCosts]) -> StageCosts:
    """The medians over the steps, stage by stage."""

    def over(costs: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(statistics.median(values) for values in zip(*costs, strict=True))

    return StageCosts(
        over([step.forward for step in steps]),
        over([step.backward for step in steps]),
        over([step.recompute for step in steps]),
    )
