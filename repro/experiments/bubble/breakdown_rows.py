"""From traced steps to the shares of a breakdown, and from paired step times to the cost of tracing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.gpipe import Event

from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.turns import median_and_spread, paired_ratios
from ..traces.accounting import PARTS, Breakdown, break_down
from ..traces.step_rows import Ran
from ..traces.tracing_overhead import PLAIN, TRACED, OverheadPlan

BETWEEN_STAGES = "of that, between stages"
_STANDARD_ERROR = 1.2533 * 2 / 1.349
"""Of the median of n normal values: this times half their interquartile range / sqrt(n)."""


def share_rows(ran: Ran, experiment: str) -> tuple[list[Row], Check]:
    """The shares of the step of median length, each with its spread over all steps; they add up to 1."""
    found = [_broken_down(ran, step) for step in ran.result["steps"]]
    chosen = found[ran.median_step()].shares()
    made = []
    for part in PARTS:
        _, spread = median_and_spread([one.shares()[part] for one in found])
        made.append(ran.row(experiment, "share", chosen[part], "1", spread=spread, part=part))
    between = [one.between_stages / one.total for one in found]
    spread = median_and_spread(between)[1]
    made.append(
        ran.row(experiment, "share_between_stages", between[ran.median_step()], "1", spread=spread, part=BETWEEN_STAGES)
    )
    made.append(ran.median_row(experiment, "step_time", [one.total / ran.plan.num_stages for one in found], "s"))
    total = sum(chosen.values())
    name = f"{made[0].model}, K = {ran.plan.num_stages}, M = {ran.cell.num_micro_batches}"
    return made, Check(
        f"{name} ({ran.provenance.value}): the parts add up to {100 * total:.2f}% of ranks x step time, none below 0",
        abs(total - 1) < 1e-6 and min(chosen.values()) > -1e-6,
    )


def overhead_rows(
    plan: OverheadPlan, result: Mapping[str, Any], experiment: str, limit: float
) -> tuple[list[Row], list[Check]]:
    """What tracing adds: to a step, paired in every round, and by the recorder's own processor time."""
    seconds: Mapping[str, Sequence[float]] = result["seconds"]
    ratio, spread = median_and_spread(paired_ratios(seconds[TRACED], seconds[PLAIN]))

    def row(metric: str, value: float, unit: str, provenance: Provenance, **options: Any) -> Row:
        return Row(
            experiment=experiment,
            model=plan.label,
            batch_size=plan.num_micro_batches,
            num_stages=plan.num_stages,
            num_micro_batches=plan.num_micro_batches,
            schedule="gpipe",
            remat="never",
            provenance=provenance,
            metric=metric,
            value=value,
            unit=unit,
            params={"way": TRACED, "reference": PLAIN, "rounds": plan.rounds, "action_seconds": plan.seconds_of_action},
            **options,
        )

    rows = [
        row("step_time_ratio", ratio, "1", Provenance.EMULATED, spread=spread),
        row("recorder_time", result["cost"], "s", Provenance.MEASURED),
    ]
    error = _STANDARD_ERROR * spread / len(seconds[PLAIN]) ** 0.5
    action = f"an action of {1000 * plan.seconds_of_action:g} ms"
    share = result["cost"] / plan.seconds_of_action
    return rows, [
        Check(
            f"recording {action} with a receive and a send takes {1e6 * result['cost']:.1f} us of processor time, "
            f"{100 * share:.2f}% of it, less than {100 * limit:g}%",
            share < limit,
        ),
        Check(
            f"a traced step takes {100 * (ratio - 1):+.2f}% longer (standard error {100 * error:.2f}%) with {action}: "
            f"no more than {100 * limit:g}% within twice the error",
            ratio - 1 < limit + 2 * error,
        ),
    ]


def _broken_down(ran: Ran, step: Mapping[str, Any]) -> Breakdown:
    return break_down(
        ran.schedule,
        [Event(*fields) for fields in step["events"]],
        begun=step["begun"],
        ended=step["ended"],
        updates=[(start, end) for start, end in step["updates"]],
    )
