from __future__ import annotations

import math
from typing import Any

import pytest

from repro.experiments.depth import CLIP, STEPS, TOO_HIGH_RATE, VOCABULARY, DeepRun, deep_runs, parts, rows, train_deep


def silent(share: float, words: str) -> None:
    """Nobody reads the progress."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """64 layers without cures and with both, at a learning rate that is too high."""
    runs = [DeepRun(False, None, TOO_HIGH_RATE, 14), DeepRun(True, CLIP, TOO_HIGH_RATE, 14)]
    return {run.name: train_deep(0, silent, run) for run in runs}


def test_without_cures_a_deep_model_diverges_and_with_them_it_stays_bounded(found: dict[str, Any]) -> None:
    plain, cured = (found[f"depth_{cures}_{TOO_HIGH_RATE:g}"] for cures in ("neither", "scaled_and_clipped"))
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


def test_rows_and_check(found: dict[str, Any]) -> None:
    made, checks = rows("figure3", found)
    assert {row.params["clip"] for row in made} == {None, CLIP}
    assert {row.params["part"] for row in made} == {"depth"}
    assert len(made) == 12
    (check,) = checks
    assert "without cures the loss goes from" in check.text
    # A run that stops early has met a number that is not finite.
    plain, cured = found.values()
    short = {name: values[:2] for name, values in plain.items()}
    whole = {name: values + values[-1:] * (STEPS - len(values)) for name, values in cured.items()}
    calm = {name: [values[0]] * STEPS for name, values in plain.items()}
    for first, second, passed in ((short, {**whole, "losses": [0.0] * STEPS}, True), (calm, whole, False)):
        (check,) = rows("figure3", dict(zip(found, (first, second), strict=True)))[1]
        assert check.passed is passed
    assert rows("figure3", {}) == ([], [])


def test_every_run_has_a_part_of_its_own() -> None:
    assert len({part.name for part in parts()}) == len({part.title for part in parts()}) == len(deep_runs()) == 8
