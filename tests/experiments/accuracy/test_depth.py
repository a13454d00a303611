from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.accuracy.depth import (
    CLIP,
    SMOKE_STEPS,
    STEPS,
    TARGET,
    TOO_HIGH_RATE,
    VOCABULARY,
    DeepRun,
    deep_runs,
    parts,
    rows,
    train_deep,
)
from tests.experiments.depth_results import LAPTOP, SMOKE, depth_results

NEITHER, BOTH = (f"depth_{cures}_{TOO_HIGH_RATE:g}" for cures in ("neither", "scaled_and_clipped"))


def silent(share: float, words: str) -> None:
    """Nobody reads the progress."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """64 layers without cures and with both, at a learning rate that is too high."""
    runs = [DeepRun(False, None, TOO_HIGH_RATE, 14), DeepRun(True, CLIP, TOO_HIGH_RATE, 14)]
    return {run.name: train_deep(0, silent, run) for run in runs}


def test_without_cures_a_deep_model_diverges_and_with_them_it_stays_bounded(found: dict[str, Any]) -> None:
    plain, cured = found[NEITHER], found[BOTH]
    for result in (plain, cured):
        assert result["losses"][0] == pytest.approx(math.log(VOCABULARY), abs=0.7)  # both start near chance
        assert len({len(values) for values in result.values()}) == 1
    assert max(plain["losses"]) > 2 * plain["losses"][0]
    assert max(plain["largest_logits"]) > 2 * CLIP
    assert min(plain["entropies"]) < 0.5 * plain["entropies"][0]  # peaked
    assert len(cured["losses"]) == 14
    assert max(cured["largest_logits"]) <= CLIP
    assert max(cured["losses"]) < max(plain["losses"])
    assert cured["entropies"][-1] > min(plain["entropies"])


def test_the_smallest_run_is_a_training_run() -> None:
    (run,) = (run for run in deep_runs(SMOKE) if run.name == BOTH)
    assert 2 * run.num_layers == 4 and run.steps == 2
    told: list[float] = []
    result = train_deep(0, lambda share, words: told.append(share), run)
    assert told == [0.5, 1.0]
    assert all(len(values) == 2 for values in result.values())
    assert result["losses"][0] != result["losses"][1]
    made, checks = rows(SMOKE, {run.name: result})
    assert not checks, "nothing is asked of it"
    assert {row.model for row in made} == {"T(2, 64, 2), width 16"}


def test_parts() -> None:
    for request in (LAPTOP, SMOKE):
        made = parts(request)
        assert len({part.name for part in made}) == len({part.title for part in made}) == len(deep_runs(request)) == 8
        assert all(part.together for part in made)
        assert sum(part.seconds for part in made) / 2 < 60 * TARGET.minutes[request.scale]
    assert {run.device for run in deep_runs(replace(LAPTOP, device="cuda:1,cuda:0"))} == {"cuda:1"}


@pytest.mark.parametrize(
    ("changes", "message"), [({"num_stages": (2, 4)}, "-K 2 4"), ({"num_micro_batches": (8,)}, "-M 8")]
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"{message}: the runs of depth take one process each"):
        parts(replace(LAPTOP, **changes))


def test_rows() -> None:
    results = depth_results()
    results[NEITHER]["losses"][6] = 100.0
    made, _ = rows(LAPTOP, results)
    summed = [row for row in made if row.params["part"] == "run"]
    assert len(summed) == 8 * 6
    assert {(row.params["scaled"], row.params["clip"]) for row in summed} == {
        (scaled, clip) for scaled in (False, True) for clip in (None, CLIP)
    }
    ours = [row for row in made if row.params["learning_rate"] == TOO_HIGH_RATE and _uncured(row)]
    (largest,) = (row.value for row in ours if row.metric == "largest_loss")
    curve = {row.params["step"]: row.value for row in ours if row.metric == "training_loss"}
    assert list(curve) == list(range(2, STEPS + 1, 2))
    assert largest == max(results[NEITHER]["losses"]) and max(curve.values()) == largest, "thinned, but no peak is lost"
    assert curve[8] == 100.0
    assert len(made) == 8 * (6 + 2 * STEPS // 2)
    assert rows(LAPTOP, {}) == ([], [])


def test_checks() -> None:
    low, high = rows(LAPTOP, depth_results())[1]
    assert low.passed and high.passed
    assert "learning rate 1.5" in low.text and "(41.1 times without cures, 1.0 times with both)" in high.text
    calm = depth_results(growth=1.0)
    assert not any(check.passed for check in rows(LAPTOP, calm)[1])
    # A run that stops early has met a number that is not finite.
    short = {name: values[:2] for name, values in calm[NEITHER].items()}
    assert rows(LAPTOP, {NEITHER: short, BOTH: calm[BOTH]})[1][0].passed
    cut = {name: values[:-1] for name, values in calm[BOTH].items()}
    higher = {**calm[BOTH], "losses": [3.5, *[7.0] * (STEPS - 1)]}
    for plain, cured in ((short, cut), (depth_results()[NEITHER], higher)):
        assert not rows(LAPTOP, {NEITHER: plain, BOTH: cured})[1][0].passed
    assert rows(LAPTOP, {NEITHER: short})[1] == []
    assert rows(SMOKE, depth_results(SMOKE, growth=1.0))[1] == [] and SMOKE_STEPS < STEPS


def _uncured(row: Any) -> bool:
    return not row.params["scaled"] and row.params["clip"] is None
