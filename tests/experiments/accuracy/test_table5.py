"""Table 5: which runs there are, rows and checks from made-up results, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.errors import UserError
from repro.experiments.accuracy import table5, table5_plans
from repro.experiments.accuracy.figure3_plans import BASELINES
from repro.experiments.accuracy.table5_plans import runs, settings
from repro.experiments.accuracy.table5_rows import rows
from repro.experiments.accuracy.translation_runs import overlay
from tests.experiments.translation_results import LAPTOP, SMOKE, table5_results


def batch(run: Any) -> int:
    return int(next(word for word in run.plan.training.overrides if "batch_size" in word).partition("=")[2])


def test_runs() -> None:
    chosen = settings("laptop")
    small, middle, large = chosen.batch_sizes
    assert large == 4 * middle == 16 * small
    made = {(batch(run), run.plan.training.steps): run for run in runs(LAPTOP)}
    assert {key for key, run in made.items() if "steps" in run.params["held_fixed"]} == {
        (size, chosen.steps) for size in chosen.batch_sizes
    }
    equal = [key for key, run in made.items() if "samples" in run.params["held_fixed"]]
    assert sorted(size for size, _ in equal) == [small, middle, large]
    assert {size * (steps or 0) for size, steps in equal} == {middle * chosen.steps}
    assert len(made) == 5
    assert len(runs(SMOKE)) == 3


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_settings_agree_with_the_overlay(scale: str) -> None:
    config = yaml.safe_load(Path(overlay(scale)[1]).read_text(encoding="utf-8"))
    model, chosen = config["model"]["init_args"], settings(scale)
    assert chosen.width == model["d_model"]
    assert (chosen.size.num_layers, chosen.size.d_ff) == (model["num_layers"], model["d_ff"])
    if scale == "laptop":
        assert config["data"]["init_args"]["batch_size"] in chosen.batch_sizes


def test_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table5_plans, "check_corpus", lambda: None)
    made = list(table5.parts(LAPTOP))
    assert made[0].name == BASELINES and all(part.together for part in made)
    assert sum(part.seconds for part in made) / 2 < 60 * table5.TARGET.minutes["laptop"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_stages": (2,)}, "-K 2: the runs of table5 take one process each"),
        ({"num_micro_batches": (2, 4)}, "-M 2 4: the runs of table5 take one process each"),
        ({"options": {"seed": 2**40}}, f"--seed {2**40}: give a number"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        table5.parts(replace(LAPTOP, **changes))


def test_rows_and_checks() -> None:
    made, checks = rows(LAPTOP, table5_results())
    assert [check.passed for check in checks] == [True, True]
    bleu = [row for row in made if row.metric == "bleu" and "steps" in row.params.get("held_fixed", ())]
    assert [row.batch_size for row in bleu] == list(settings("laptop").batch_sizes)
    assert all(row.params["test_sentences"] == 200 and row.params["language"] == "de" for row in bleu)
    assert {row.model for row in made if row.metric == "chrf" and row.batch_size is None} == {
        "copying the source",
        "nearest training sentence",
    }
    _, checks = rows(LAPTOP, table5_results(falling=False))
    assert [check.passed for check in checks] == [False, False]


def test_what_has_not_finished_is_left_out() -> None:
    assert rows(LAPTOP, {}) == ([], [])
    found = table5_results()
    del found[BASELINES], found[f"batch-16-steps-{settings('laptop').steps}"]
    made, checks = rows(LAPTOP, found)
    assert made and not checks


def test_quality_is_not_asked_at_smoke_scale() -> None:
    made, checks = rows(SMOKE, table5_results(SMOKE, falling=False))
    assert made and not checks
