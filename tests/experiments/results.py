"""Made-up results of a small run, in the form in which training returns them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from repro.experiments.accuracy.scales import IMAGES, TRANSLATION, Task
from repro.experiments.accuracy.training import TrainingPlan, event_fields
from repro.experiments.comparison.agreement import Tolerance
from repro.experiments.comparison.collect import Run, agreement_rows, bubble_rows, learning_rows
from repro.experiments.costs.workload import BARE_LOOP, ENGINE, ONE_PROCESS, TORCH, SpeedPlan, Workload
from repro.experiments.peers.speed import speed_rows
from repro.experiments.sweeps.rows import Row
from repro.experiments.traces.bubbles import events_of
from repro.schedules import make_schedule, simulate

FORWARD, BACKWARD, RECOMPUTE = 0.01, 0.02, 0.01


def make_run(
    task: Task = IMAGES,
    num_stages: int = 2,
    processes: bool = True,
    *,
    num_micro_batches: int = 4,
    forward: Any = FORWARD,
    **changes: Any,
) -> Run:
    """A run of three steps whose trace is the simulator's with costs 10, 20 and 10 ms; ``changes`` to its result."""
    schedule = make_schedule("gpipe", num_stages=num_stages, num_micro_batches=num_micro_batches, remat="always")
    timeline = simulate(schedule, forward=forward, backward=BACKWARD, recompute=RECOMPUTE)
    # The clock of a real trace starts anywhere.
    events = [replace(event, start=event.start + 100, end=event.end + 100) for event in events_of(timeline)]
    plan = TrainingPlan(("base.yaml",), num_stages, num_micro_batches, processes and num_stages > 1, 3, trace=1)
    held_out = {"accuracy": 0.8, "loss": 0.5}
    if task is TRANSLATION:
        held_out = {"nll": 4.0, "unigram_nll": 6.0, "bleu": 12.0, "bleu_copy": 4.0, "bleu_nearest": 20.0}
    result = {
        "losses": [3.0, 2.0, 1.0],
        "gradient_norms": [0.5, 0.4, 0.3],
        "held_out": held_out,
        "fit_seconds": 9.0,
        "step_seconds": 0.3,
        "partition": [1] * num_stages,
        "num_parameters": 1000,
        "batch_size": 32,
        "num_micro_batches": num_micro_batches,
        "remat": "always",
        "schedule": "gpipe",
        "events": [[event_fields(event) for event in events]],
    }
    return Run(task, plan, result | changes)


def make_rows() -> list[Row]:
    """All rows of a run of both tasks."""
    rows: list[Row] = []
    for task in (IMAGES, TRANSLATION):
        others = [make_run(task, 2), make_run(task, 4, False)]
        rows += agreement_rows(make_run(task, 1), others, Tolerance())[0]
        for run in others:
            rows += bubble_rows(run)
        rows += learning_rows(make_run(task, 2), ())[0]
    seconds = {ENGINE: [0.6, 0.61], BARE_LOOP: [0.59, 0.6], TORCH: [0.65, 0.66], ONE_PROCESS: [1.0, 1.02]}
    return rows + speed_rows(Workload(), SpeedPlan(2, 1), seconds)
