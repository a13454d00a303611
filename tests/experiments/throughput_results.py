"""Made-up results of the parts of Table 2, in the form in which the parts return them."""

from __future__ import annotations

from typing import Any

from repro.experiments.sweeps.sweep import Request
from repro.experiments.throughput import table2
from repro.experiments.throughput.cells import Host, simulated_step
from repro.experiments.throughput.table import choose

OPTIONS: dict[str, Any] = {
    "models": ["transformer"],
    "costs": "flops",
    "accelerator": None,
    "link": None,
    "bandwidth": None,
    "latency": None,
    "remat": None,
    "batch_policy": "fixed",
    "batch_size": None,
}
HOST = {"overshoot": 1e-4, "latency": 1e-3, "bandwidth": 1e8}


def asked(scale: str = "laptop", stages: Any = None, micro_batches: Any = None, **options: Any) -> Request:
    """A request for the Transformer on CPUs."""
    return Request(scale, "cpu", stages, micro_batches, OPTIONS | options)


def finished(request: Request, late: float = 1.0) -> dict[str, Any]:
    """What the parts would return if every step were ``late`` times as long as simulated, and measured ones 1 s."""
    settings = {row.setting.model: row.setting for row in choose(table2.TABLE, request)}
    results: dict[str, Any] = {}
    for part in table2.TARGET.parts(request):
        (plan,) = part.arguments
        if part.name.startswith("measured"):
            results[part.name] = [
                {"num_micro_batches": m, "remat": remat, "seconds": [1.0, 1.0], "partition": [4, 4]}
                for m, _ in plan.cells
                for remat in plan.remats
            ]
            continue
        steps = [
            {
                "num_micro_batches": cell.num_micro_batches,
                "remat": remat,
                "seconds": [
                    late
                    * simulated_step(settings[plan.setting.model], cell, remat, factor=plan.factor, host=Host(**HOST))
                ]
                * plan.repeats,
            }
            for cell in plan.cells
            for remat in plan.remats
        ]
        results[part.name] = HOST | {"steps": steps}
    return results
