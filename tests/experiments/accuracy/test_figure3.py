"""Figure 3: which runs there are, rows and checks from made-up results, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.datasets.paths import DataError
from repro.errors import UserError
from repro.experiments.accuracy import figure3, figure3_plans, translation_runs
from repro.experiments.accuracy.figure3_plans import BASELINES, STANDS_FOR, runs, settings
from repro.experiments.accuracy.figure3_rows import rows, trailing_average
from repro.experiments.accuracy.translation_runs import overlay
from repro.experiments.sweeps.rows import Row
from repro.experiments.sweeps.sweep import Request, side_by_side
from tests.experiments.translation_results import BLEU, LAPTOP, NLL, SMOKE, figure3_results


def find(made: list[Row], metric: str, **params: Any) -> list[Row]:
    return [
        row
        for row in made
        if row.metric == metric and all(row.params.get(name) == value for name, value in params.items())
    ]


@pytest.mark.parametrize("request_", [LAPTOP, SMOKE], ids=["laptop", "smoke"])
def test_settings_agree_with_the_overlay(request_: Request) -> None:
    chosen = settings(request_.scale)
    config = yaml.safe_load(Path(overlay(request_.scale)[1]).read_text(encoding="utf-8"))
    model, data = config["model"]["init_args"], config["data"]["init_args"]
    assert list(chosen.languages) == data["languages"]
    assert (chosen.width, chosen.batch_size) == (model["d_model"], data["batch_size"])
    assert (chosen.steps, chosen.warmup_steps) == (config["trainer"]["max_steps"], model["warmup_steps"])
    base = chosen.sizes["base"]
    assert (base.num_layers, base.d_ff, base.num_heads) == (model["num_layers"], model["d_ff"], model["num_heads"])
    if "vocabulary_languages" in data:
        assert request_.scale == "smoke"  # where bilingual models need no option for it
    assert set(chosen.sizes) == set(STANDS_FOR)
    for group in chosen.groups:
        assert set(group.bilingual) <= set(group.languages)


def layer_parameters(size: translation_runs.ModelSize) -> int:
    """Channels of attention (12 products of a pair of layers) and of the feed-forward layers (4), times the width."""
    return size.num_layers * (12 * 32 * size.num_heads + 4 * size.d_ff)


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_wide_and_deep_are_of_equal_size(scale: str) -> None:
    sizes = {name: layer_parameters(size) for name, size in settings(scale).sizes.items()}
    assert sizes["base"] < sizes["wide"] == sizes["deep"] < sizes["large"]


def test_runs() -> None:
    made = {run.plan.name: run for run in runs(LAPTOP)}
    assert len(made) == 4 + 8
    large = made["multilingual-large"].plan.training
    assert (large.num_stages, large.world_size, large.processes) == (2, 2, True)
    assert all(run.plan.training.world_size == 1 for name, run in made.items() if name != "multilingual-large")
    alone = made["bilingual-fy"].plan.training
    assert "--data.languages=[fy]" in alone.overrides and alone.steps == settings("laptop").groups[-1].bilingual_steps
    assert any(word.startswith("--data.vocabulary_languages=[es,") for word in alone.overrides)
    other = {run.plan.name: run for run in runs(replace(LAPTOP, num_stages=(3,), options={"seed": 7}))}
    assert other["multilingual-large"].plan.training.world_size == 3
    assert {run.plan.training.seed for run in other.values()} == {7}
    unsplit = {run.plan.name: run for run in runs(replace(LAPTOP, num_stages=(1,)))}["multilingual-large"]
    assert (unsplit.plan.training.world_size, unsplit.plan.training.num_micro_batches) == (1, 1)


def test_one_gpu_holds_all_stages() -> None:
    (large,) = [run for run in runs(replace(LAPTOP, device="cuda:0")) if run.plan.name == "multilingual-large"]
    assert large.plan.training.num_stages == 2 and large.plan.training.world_size == 1


def test_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure3_plans, "check_corpus", lambda: None)
    made = list(figure3.parts(LAPTOP))
    together, last = side_by_side(made)
    assert [part.name for part in last] == ["multilingual-large"]
    assert together[0].name == BASELINES
    work = sum(part.seconds for part in together) / 2 + last[0].seconds
    assert 60 * figure3.TARGET.minutes["laptop"] / 2 < work < 60 * figure3.TARGET.minutes["laptop"]
    for part in made:
        assert part.cell.parameters  # all arguments are plain data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_stages": (2, 4)}, r"-K 2 4: only the largest model runs in a pipeline; give one K"),
        ({"num_micro_batches": (1, 4)}, r"-M 1 4: .* give one M"),
        ({"num_stages": (7,)}, r"-K 7: T\(2, 1024, 8\) has 6 layers"),
        ({"num_micro_batches": (65,)}, r"-M 65: a mini-batch has 64 sentence pairs"),
        ({"options": {"seed": -1}}, r"--seed -1: give a number from 0"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        figure3.parts(replace(LAPTOP, **changes))


def test_no_corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(translation_runs, "packaged_root", lambda: tmp_path)
    with pytest.raises(DataError, match="translation"):
        figure3.parts(LAPTOP)


def test_rows() -> None:
    made, checks = rows(LAPTOP, figure3_results())
    assert [check.passed for check in checks] == [True] * len(checks) and len(checks) == 4
    assert {row.experiment for row in made} == {"figure3"}
    (large,) = find(made, "nll", trained_on="multilingual", size="large")
    assert large.value == NLL["large"] and large.num_stages == 2 and large.params["processes"] == 2
    (average,) = find(made, "average_bleu", size="deep")
    assert average.value == pytest.approx(BLEU["deep"]) and average.params["parameters"] == 2_000_000
    (fy,) = find(made, "bleu", language="fy", size="wide", trained_on="multilingual")
    assert fy.value == pytest.approx(BLEU["wide"]) and fy.params["group"] == "low" and fy.params["rank"] == 11
    assert len(find(made, "bleu", part="language", trained_on="bilingual")) == 8
    assert len(find(made, "chrf", part="language", trained_on="copy")) == 12
    gains = {row.params["group"]: row.value for row in find(made, "bleu_gain", part="group", size="large")}
    assert gains == pytest.approx({"high": 3.0, "middle": 6.0, "low": 12.0, "all": 8.25})
    (enough,) = find(made, "bleu", pool="enough", trained_on="copy")
    assert enough.params["test_sentences"] == 8 * 200
    (few,) = find(made, "bleu", pool="fewer, low", size="large", trained_on="multilingual")
    assert few.params["test_sentences"] == 4 * 80 and not find(made, "bleu", pool="fewer, high")
    curve = find(made, "training_loss", size="base", trained_on="multilingual")
    assert len(curve) == 20 and curve[-1].params["step"] == settings("laptop").steps


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"nll": NLL | {"deep": 3.3}}, "falls with the size"),
        ({"nll": NLL | {"large": 2.95}}, "falls with the size"),
        ({"bleu": BLEU | {"large": 2.9}}, "above"),
        ({"copy": 15.1}, "copying the source"),
    ],
)
def test_checks_fail(changes: dict[str, Any], failed: str) -> None:
    _, checks = rows(LAPTOP, figure3_results(**changes))
    wrong = [check.text for check in checks if not check.passed]
    assert wrong and all(failed in text for text in wrong)


def test_bilingual_models_that_are_better_fail() -> None:
    found = figure3_results()
    for language in settings("laptop").groups[-1].bilingual:
        found[f"bilingual-{language}"]["languages"][language]["right"] = [160] * 4
    _, checks = rows(LAPTOP, found)
    (wrong,) = [check.text for check in checks if not check.passed]
    assert wrong.endswith("on nn, sr_Latn, fy, eu, low group: BLEU 15.00, above 16.00 of their bilingual models")


def test_what_has_not_finished_is_left_out() -> None:
    assert rows(LAPTOP, {}) == ([], [])
    found = figure3_results()
    del found["multilingual-large"], found[BASELINES]
    made, checks = rows(LAPTOP, found)
    assert not checks and not find(made, "bleu", trained_on="copy")
    assert find(made, "bleu_gain", size="deep", part="group", group="low")


def test_quality_is_not_asked_at_smoke_scale() -> None:
    made, checks = rows(SMOKE, figure3_results(SMOKE, nll=dict.fromkeys(NLL, 7.0)))
    assert made and not checks


def test_trailing_average() -> None:
    assert trailing_average([4.0, 2.0, 0.0, 6.0], 2) == [4.0, 3.0, 1.0, 3.0]
    assert trailing_average([4.0, 2.0], 5) == [4.0, 3.0]
    assert trailing_average([], 3) == []
    with pytest.raises(ValueError, match="window=0"):
        trailing_average([1.0], 0)
