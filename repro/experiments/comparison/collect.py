"""From what training runs returned to rows, and to the checks that a whole run must pass."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.gpipe import Event
from repro.schedules import Schedule, make_schedule

from ..accuracy.scales import Expectation, Task
from ..accuracy.training import TrainingPlan, to_event
from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..traces.bubbles import closed_forms, events_of, measured_bubble, replayed, stage_costs
from .agreement import Curves, Tolerance, compare

AGREEMENT, PLAIN, BUBBLE, TIMELINE, LEARNING = "agreement", "plain", "bubble", "timeline", "learning"
UNITS = {"accuracy": "1", "top5": "1", "perplexity": "1", "bleu": "BLEU", "bleu_copy": "BLEU", "bleu_nearest": "BLEU"}
# A curve has no more points than a plot can show.
MAX_POINTS = 400


@dataclass(frozen=True)
class Run:
    """A training run that has ended: what was asked for, and what ``training.train`` returned."""

    task: Task
    plan: TrainingPlan
    result: Mapping[str, Any]

    @property
    def way(self) -> str:
        """How the stages ran."""
        if self.plan.plain:
            return "plain Lightning"
        if self.plan.num_stages == 1:
            return "one stage"
        return "processes" if self.plan.processes else "local"

    @property
    def label(self) -> str:
        """K and the way."""
        if self.plan.plain:
            return self.way
        return f"K={self.plan.num_stages} ({self.way})"

    @property
    def curves(self) -> Curves:
        """What is compared."""
        return Curves(self.result["losses"], self.result["gradient_norms"], self.result["held_out"])

    @property
    def steps(self) -> list[list[Event]]:
        """The traced steps."""
        return [[to_event(fields) for fields in step] for step in self.result["events"]]

    @property
    def schedule(self) -> Schedule:
        """As it was executed."""
        return make_schedule(
            self.result["schedule"],
            num_stages=self.plan.num_stages,
            num_micro_batches=self.result["num_micro_batches"],
            remat=self.result["remat"],
        )

    def row(
        self,
        experiment: str,
        metric: str,
        value: float,
        unit: str,
        *,
        provenance: Provenance = Provenance.MEASURED,
        spread: float | None = None,
        **params: Any,
    ) -> Row:
        """A row of this run."""
        return Row(
            experiment=experiment,
            model=self.task.model,
            batch_size=self.result["batch_size"],
            num_stages=self.plan.num_stages,
            num_micro_batches=self.result["num_micro_batches"],
            schedule=self.result["schedule"],
            remat=self.result["remat"],
            provenance=provenance,
            metric=metric,
            value=value,
            unit=unit,
            spread=spread,
            params={
                "task": self.task.name,
                "data": self.task.data,
                "way": self.way,
                "partition": list(self.result["partition"]),
                "parameters": self.result["num_parameters"],
                "seed": self.plan.seed,
                "device": self.plan.device,
                **params,
            },
        )


def curve_rows(run: Run, experiment: str) -> list[Row]:
    """Loss and gradient norm by step, and the held-out metrics at the end; a row holds finite numbers only."""
    rows = []
    stride = -(-len(run.result["losses"]) // MAX_POINTS)
    for metric, values in (("loss", run.result["losses"]), ("gradient_norm", run.result["gradient_norms"])):
        unit = "nat" if metric == "loss" else "1"
        rows += [
            run.row(experiment, metric, values[step], unit, step=step + 1, part="train")
            for step in range(0, len(values), stride)
            if math.isfinite(values[step])
        ]
    rows += [
        run.row(experiment, metric, value, UNITS.get(metric, "nat"), part="held out")
        for metric, value in sorted(run.result["held_out"].items())
        if math.isfinite(value)
    ]
    return rows


def agreement_rows(
    reference: Run, others: Sequence[Run], tolerance: Tolerance, experiment: str = AGREEMENT
) -> tuple[list[Row], list[Check]]:
    """The largest differences of each run from the reference, relative, and whether they are within the tolerance."""
    rows = curve_rows(reference, experiment)
    checks = []
    for run in others:
        rows += curve_rows(run, experiment)
        found = compare(reference.curves, run.curves, tolerance)
        wrong = [difference for difference in found if not difference.agrees]
        for difference in found:
            if difference.value != float("inf"):
                rows.append(
                    run.row(
                        experiment,
                        f"{difference.name}_difference",
                        difference.value,
                        "1",
                        reference=reference.label,
                        tolerance=difference.allowed,
                        step=difference.where,
                    )
                )
        largest = max(found, key=lambda difference: difference.value / difference.allowed)
        steps = len(run.result["losses"])
        name = f"{run.task.model} on {run.task.data}, M={run.result['num_micro_batches']}"
        same = f"{name}: {run.label} gives what {reference.label} gives over {steps} steps"
        detail = str(wrong[0]) if wrong else f"largest: {largest.name} off by {largest.value:.1e}"
        checks.append(Check(f"{same} ({detail})" if not wrong else f"{same}: no, {detail}", not wrong))
    return rows, checks


def bubble_rows(run: Run) -> list[Row]:
    """The bubble of a traced run, beside its replay and both closed forms, and the actions of one step.

    Of processes the bubble is measured (median over the traced steps); stages that share one process leave none to
    measure: theirs is only replayed from the costs of their actions. Without a trace there are no rows.
    """
    steps = run.steps
    if not steps:
        return []
    costs = stage_costs(steps, run.plan.num_stages)
    timeline = replayed(run.schedule, costs)
    known = costs.as_dict()
    rows = []
    if run.plan.processes:
        bubbles = [measured_bubble(step) for step in steps]
        middle = statistics.median_low(bubbles)
        spread = (max(bubbles) - min(bubbles)) / 2
        rows.append(run.row(BUBBLE, "bubble", middle, "1", spread=spread, form="trace", costs=known))
        rows += _actions(run, steps[bubbles.index(middle)], Provenance.MEASURED)
    simulated = Provenance.SIMULATED
    rows.append(
        run.row(BUBBLE, "bubble", float(timeline.bubble), "1", provenance=simulated, form="replay", costs=known)
    )
    for form, value in closed_forms(
        run.plan.num_stages, run.result["num_micro_batches"], run.result["remat"], costs
    ).items():
        rows.append(run.row(BUBBLE, "bubble", value, "1", provenance=simulated, form=form, costs=known))
    if not run.plan.processes:
        rows += _actions(run, events_of(timeline), simulated)
    return rows


def learning_rows(run: Run, expectations: Sequence[Expectation]) -> tuple[list[Row], list[Check]]:
    """The curve of the longer run, its speed, and whether it learnt."""
    rows = curve_rows(run, LEARNING)
    rows.append(run.row(LEARNING, "steps", len(run.result["losses"]), "steps"))
    rows.append(run.row(LEARNING, "step_time", run.result["step_seconds"], "s"))
    rows.append(run.row(LEARNING, "fit_time", run.result["fit_seconds"], "s"))
    return rows, [_check(run, expectation) for expectation in expectations] + [_falls(run)]


def _falls(run: Run) -> Check:
    losses = run.result["losses"]
    part = max(1, len(losses) // 5)
    first, last = statistics.fmean(losses[:part]), statistics.fmean(losses[-part:])
    return Check(
        f"{run.task.model} on {run.task.data}: the training loss falls from {first:.3f} to {last:.3f} "
        f"(means of the first and the last {part} of {len(losses)} steps)",
        last < first,
    )


def _check(run: Run, expectation: Expectation) -> Check:
    held_out = run.result["held_out"]
    value = held_out[expectation.metric]
    name = f"{run.task.model} on {run.task.data}: held-out {expectation.metric} {value:.3f}"
    if expectation.at_least is not None:
        return Check(f"{name}, at least {expectation.at_least:.3f}", value >= expectation.at_least)
    if expectation.above is not None:
        other = held_out[expectation.above]
        return Check(f"{name}, above {expectation.above} {other:.3f}", value > other)
    assert expectation.below is not None
    other = held_out[expectation.below]
    return Check(
        f"{name}, below {expectation.below} {other:.3f} by {expectation.margin:g} or more",
        value <= other - expectation.margin,
    )


def _actions(run: Run, events: Sequence[Event], provenance: Provenance) -> list[Row]:
    begun = min(event.start for event in events)
    return [
        run.row(
            TIMELINE,
            "action",
            event.end - event.start,
            "s",
            provenance=provenance,
            kind=event.kind,
            rank=event.rank,
            stage=event.stage,
            micro_batch=event.micro_batch,
            start=event.start - begun,
        )
        for event in sorted(events, key=lambda event: (event.rank, event.start))
    ]
