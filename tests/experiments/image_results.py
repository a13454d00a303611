"""Made-up results of the training runs of Table 4."""

from __future__ import annotations

from typing import Any

from repro.experiments.accuracy.table4_plans import ImageRun, image_runs
from repro.experiments.sweeps.sweep import Request

PARAMETERS = {"small": 8_000, "middle": 26_000, "large": 97_000}
BASE = {"small": 0.80, "middle": 0.84, "large": 0.88}
SPREAD = 0.005


def request(scale: str = "laptop", **options: Any) -> Request:
    stages = options.pop("stages", None)
    micro_batches = options.pop("micro_batches", None)
    return Request(scale, "cpu", stages, micro_batches, options)


def result(run: ImageRun) -> dict[str, Any]:
    """What a run would return: seeds differ by SPREAD, fine-tuning is 10 points better than from scratch."""
    seed, number = run.plan.training.seed, run.plan.training.num_micro_batches or 1
    accuracy = {"fine_tuning": 0.7, "scratch": 0.6}.get(run.part, BASE[run.size]) + SPREAD * seed
    made = {
        "held_out": {"accuracy": accuracy, "loss": 1.0},
        "losses": [2.3 - 0.1 * step for step in range(10)],
        "num_parameters": PARAMETERS[run.size],
        "batch_size": 128,
        "schedule": "gpipe",
        "remat": "never",
    }
    if run.statistics:
        made["statistics"] = None
        if run.norm == "batch":
            made["statistics"] = {
                "running_mean_error": 0.01 * number,
                "running_variance_error": 0.02 * number,
                "accuracy_recomputed": accuracy + 0.01,
                "channels": 100,
            }
    return made


def results(asked: Request) -> dict[str, Any]:
    """Of every part of a request."""
    made: dict[str, Any] = {run.plan.name: result(run) for run in image_runs(asked)}
    sets = dict.fromkeys(run.data for run in image_runs(asked))
    made["data"] = {
        name: {"train_images": 1000, "test_images": 360, "classes": 10, "largest_class_share": 0.3} for name in sets
    }
    return made
