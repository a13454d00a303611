"""From what ``traced_steps.run_steps`` returned to rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.schedules import Schedule, make_schedule

from ..sweeps.rows import Provenance, Row
from ..sweeps.turns import median_and_spread
from .step_plan import StepCell, StepPlan, label_of

ACTION, TRANSFER = "action", "transfer"


@dataclass(frozen=True)
class Ran:
    """A cell of a plan that has run: what was asked for and what was seen."""

    plan: StepPlan
    cell: StepCell
    result: Mapping[str, Any]

    @property
    def provenance(self) -> Provenance:
        """Of its times."""
        return Provenance.EMULATED if self.plan.emulated else Provenance.MEASURED

    @property
    def schedule(self) -> Schedule:
        """As it was executed."""
        return make_schedule(
            "gpipe",
            num_stages=self.plan.num_stages,
            num_micro_batches=self.cell.num_micro_batches,
            remat=self.cell.remat,
        )

    def median_step(self) -> int:
        """The step of median length from first to last action."""
        spans: list[float] = self.result["spans"]
        return spans.index(statistics.median_low(spans))

    def row(
        self,
        experiment: str,
        metric: str,
        value: float,
        unit: str,
        *,
        spread: float | None = None,
        provenance: Provenance | None = None,
        **params: Any,
    ) -> Row:
        """A row of this cell."""
        return Row(
            experiment=experiment,
            model=label_of(self.plan.model),
            batch_size=self.cell.batch_size,
            num_stages=self.plan.num_stages,
            num_micro_batches=self.cell.num_micro_batches,
            schedule="gpipe",
            remat=self.cell.remat,
            provenance=provenance or self.provenance,
            metric=metric,
            value=value,
            unit=unit,
            spread=spread,
            params={
                "way": "processes",
                "rows": self.cell.rows,
                "partition": list(self.result["partition"]),
                "device": self.plan.device,
                "steps": self.plan.steps,
                **params,
            },
        )

    def median_row(self, experiment: str, metric: str, values: Sequence[float], unit: str, **params: Any) -> Row:
        """A row with the median of the steps, and half their interquartile range."""
        value, spread = median_and_spread(values)
        return self.row(experiment, metric, value, unit, spread=spread, **params)

    def timeline(self, experiment: str, **params: Any) -> list[Row]:
        """The actions and messages of the median step; nothing where none were kept."""
        if not self.result["steps"]:
            return []
        step = self.result["steps"][self.median_step()]
        begun = min(start for *_, start, _ in step["events"])
        made = []
        for rank, kind, stage, micro_batch, waited, start, end in step["events"]:
            place = {"kind": kind, "rank": rank, "stage": stage, "micro_batch": micro_batch, "waited": waited}
            made.append(self.row(experiment, ACTION, end - start, "s", start=start - begun, **place, **params))
        for rank, side, direction, source, target, micro_batch, num_bytes, start, end in step["transfers"]:
            place = {"side": side, "direction": direction, "rank": rank, "source_stage": source}
            place |= {"target_stage": target, "micro_batch": micro_batch, "bytes": num_bytes}
            made.append(self.row(experiment, TRANSFER, end - start, "s", start=start - begun, **place, **params))
        return made


def cells_of(plan: StepPlan, results: Sequence[Mapping[str, Any]]) -> Iterator[Ran]:
    """The cells of a part; none where it has not finished."""
    if not results:
        return
    for cell, result in zip(plan.cells, results, strict=True):
        yield Ran(plan, cell, result)
