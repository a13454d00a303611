from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.experiments.costs.scaled_models import SCALED, ScaledModel
from repro.experiments.sweeps.ranks import Job, run_jobs
from repro.experiments.throughput.measured_steps import MeasuredPlan, batch_of, cross_entropy, factories_of, measure

TINY = ScaledModel("transformer", num_layers=2, width=8, side=4, num_classes=5, batch_size=4, num_heads=2)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "gpu"])
def test_scaled_models_are_what_their_names_say(scale: str) -> None:
    for model in SCALED[scale]:
        assert model.name.startswith("scaled-down ")
        assert len(factories_of(model)) == model.depth
        # Two rows of the smallest micro-batch of Table 2 must be there for BatchNorm, or one with more than a pixel.
        assert model.batch_size % 32 == 0


@pytest.mark.parametrize("model", SCALED["smoke"])
def test_their_loss_counts_every_classification(model: ScaledModel) -> None:
    inputs, targets = batch_of(model, 3, "meta")
    with torch.device("meta"):
        value = inputs
        for make in factories_of(model):
            value = make()(value)
    loss, count = cross_entropy(value, targets)
    assert loss.shape == () and count == (3 if model.family == "amoebanet" else 3 * model.side)


def test_every_kind_of_step_is_timed_once_a_round(tmp_path: Path) -> None:
    plan = MeasuredPlan(TINY, 2, ((1, 4), (2, 4)), ("always", "never"), ("cpu", "cpu"), rounds=2)
    ((found, _),) = run_jobs([Job("measured", measure, (plan,), tmp_path / "log", 2, timeout=120)])
    assert [(step["num_micro_batches"], step["remat"]) for step in found] == [
        (1, "always"),
        (1, "never"),
        (2, "always"),
        (2, "never"),
    ]
    for step in found:
        assert len(step["seconds"]) == 2 and min(step["seconds"]) > 0
        assert sum(step["partition"]) == TINY.depth
