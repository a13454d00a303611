"""Made-up results of the parts of depth: without cures the loss grows, with both it stays."""

from __future__ import annotations

from typing import Any

from repro.experiments.accuracy.depth import CLIP, deep_runs
from repro.experiments.sweeps.sweep import Request

LAPTOP = Request("laptop", "cpu", None, None, {})
SMOKE = Request("smoke", "cpu", None, None, {})


def depth_results(request: Request = LAPTOP, growth: float = 1.1) -> dict[str, Any]:
    """By name of the part; the loss of runs without cures grows by ``growth`` a step."""
    return {
        run.name: {
            "losses": [3.5 * (growth if run.cures == "neither" else 1.0) ** step for step in range(run.steps)],
            "gradient_norms": [2.0] * run.steps,
            "largest_logits": [5.0 if run.logit_clip is None else CLIP] * run.steps,
            "entropies": [3.0] * run.steps,
        }
        for run in deep_runs(request)
    }
