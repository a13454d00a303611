from __future__ import annotations

from pathlib import Path

from repro.experiments.costs.full_models import FullModel, LayerCosts
from repro.experiments.costs.link import Link
from repro.experiments.sweeps.ranks import Job, run_jobs
from repro.experiments.throughput.cells import Setting, TableCell, simulated_step
from repro.experiments.throughput.emulated_steps import EmulatedPlan, emulate


def test_steps_on_real_processes_take_at_least_what_their_costs_say(tmp_path: Path) -> None:
    costs = LayerCosts((2e-3, 1e-3, 3e-3), (4e-3, 2e-3, 6e-3), (1e5, 1e5, 10.0), distinct=3)
    model = FullModel("a model", "transformer", 1, None, 4, 4, "p100")
    setting = Setting(model, costs, "a test", Link("slow", latency=1e-3, bandwidth=1e7))
    cells = (TableCell(2, 1, 4), TableCell(2, 4, 4))
    plan = EmulatedPlan(setting, cells, ("always", "never"), factor=2.0, repeats=2)
    ((found, _),) = run_jobs([Job("emulated", emulate, (plan,), tmp_path / "log", 2, timeout=120)])
    assert found["overshoot"] >= 0 and found["latency"] > 0 and found["bandwidth"] > 0
    assert [(step["num_micro_batches"], step["remat"]) for step in found["steps"]] == [
        (1, "always"),
        (1, "never"),
        (4, "always"),
        (4, "never"),
    ]
    for step in found["steps"]:
        cell = next(cell for cell in cells if cell.num_micro_batches == step["num_micro_batches"])
        assert len(step["seconds"]) == 2
        assert min(step["seconds"]) >= simulated_step(setting, cell, step["remat"], factor=2.0)
