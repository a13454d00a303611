"""Table 4: which runs there are, and rows and checks from what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from repro.datasets.paths import DataError
from repro.errors import UserError
from repro.experiments.accuracy import table4, table4_plans
from repro.experiments.accuracy.table4_plans import image_runs, settings, sweep_parts
from repro.experiments.sweeps.checks import Check
from repro.experiments.sweeps.rows import Row
from repro.experiments.sweeps.sweep import side_by_side
from tests.experiments.image_results import SPREAD, request, results

FETCHED = ("fashion-mnist", "digits", "emoji")


@pytest.fixture(autouse=True)
def _fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table4_plans, "present_sets", lambda: FETCHED)
    monkeypatch.setattr("repro.experiments.accuracy.table4_rows.present_sets", lambda: FETCHED)


def rows(asked: Any, found: Any) -> tuple[list[Row], list[Check]]:
    return table4.TARGET.rows(asked, found)


def only(some: Sequence[Row], metric: str, part: str, **params: Any) -> Row:
    (row,) = [
        row
        for row in some
        if row.metric == metric
        and row.params["part"] == part
        and all(getattr(row, name, row.params.get(name)) == value for name, value in params.items())
    ]
    return row


def test_runs_of_the_laptop() -> None:
    made = table4.TARGET.parts(request())
    names = [part.name for part in made]
    assert len(set(names)) == len(names) == len({part.title for part in made})
    assert sum(name.startswith("sizes-") for name in names) == 3 * settings("laptop").size_seeds
    assert {name for name in names if name.startswith("micro-batches")} == {
        f"micro-batches-{number}-{norm}" for norm in ("batch", "group") for number in (1, 4, 16, 64)
    } - {"micro-batches-4-batch"}, "the small model of the sizes is that one"
    assert {part.name: part.world_size for part in made if part.world_size > 1} == {"stages-2": 2, "stages-4": 4}
    assert {name.rsplit("-", 1)[0] for name in names if name.startswith(("fine", "scratch"))} == {
        "fine-tuning-digits", "scratch-digits", "fine-tuning-emoji", "scratch-emoji",
    }  # fmt: skip


@pytest.mark.parametrize("stages", [None, (1,)])
def test_fine_tuning_never_begins_before_its_start_is_finished(stages: tuple[int, ...] | None) -> None:
    groups = [[part.name for part in group] for group in side_by_side(sweep_parts(request(stages=stages)))]
    (before,) = [place for place, group in enumerate(groups) if "pre-training" in group]
    after = [place for place, group in enumerate(groups) if any(name.startswith("fine") for name in group)]
    assert before < min(after)


def test_options_of_a_run() -> None:
    runs = {run.plan.name: run for run in image_runs(request())}
    tuned, fresh = (runs[f"{kind}-emoji-1"].plan for kind in ("fine-tuning", "scratch"))
    assert tuned.training == fresh.training, "they differ in where they start only"
    assert (tuned.start, fresh.start) == (runs["pre-training"].plan, None)
    assert {"--data.dataset=emoji", "--model.num_classes=9"} <= set(tuned.training.overrides)
    assert runs["stages-4"].plan.training.processes and not runs["sizes-small-0"].plan.training.processes
    assert "--model.norm=group" in runs["micro-batches-16-group"].plan.training.overrides
    assert len([run for run in image_runs(request(seeds=7)) if run.part == "sizes" and run.size == "small"]) == 7


def test_the_last_checkpoint_is_that_of_the_last_step() -> None:
    # One is kept every tenth of a run, rounded down.
    for scale in ("smoke", "laptop"):
        for run in image_runs(request(scale)):
            steps = run.plan.training.steps or 0
            assert steps % max(1, steps // 10) == 0, run.plan.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": (2, 9)}, r"-K 9: the model has 7 layers"),
        ({"micro_batches": (1, 256)}, r"-M 256: a mini-batch has 128 rows"),
        ({"seeds": 0}, r"--seeds 0: give a number from 1 to 20"),
    ],
)
def test_what_cannot_be_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        table4.TARGET.parts(request(**options))


def test_without_pictures_to_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table4_plans, "present_sets", lambda: ("digits",))
    with pytest.raises(DataError, match=r"fashion-mnist"):
        table4.TARGET.parts(request())


def test_rows() -> None:
    made, checks = rows(request(), results(request()))
    assert all(check.passed for check in checks), [check.text for check in checks if not check.passed]
    assert len(checks) == 2 + 2 + 2, "two steps in size, K = 2 and 4, two sets"
    size = only(made, "mean_accuracy", "sizes", size="large")
    assert size.value == pytest.approx(0.88 + SPREAD) and size.spread == pytest.approx(SPREAD)
    assert (size.params["parameters"], size.params["seeds"], size.model) == (97_000, 3, "AmoebaNet-D (3, 16)")
    assert "seed" not in size.params
    gain = only(made, "fine_tuning_gain", "transfer", data="digits")
    assert gain.value == pytest.approx(0.1) and gain.spread == pytest.approx(0, abs=1e-9)
    assert only(made, "running_mean_error", "micro_batches", num_micro_batches=16).value == pytest.approx(0.16)
    # The run of the sizes is a row of this comparison too.
    assert only(made, "accuracy", "micro_batches", num_micro_batches=4, norm="batch").value == pytest.approx(0.8)
    assert only(made, "correct", "stages", num_stages=4).value == 0.8 * settings("laptop").test_images
    assert [only(made, "fetched", "data", data=name).value for name in (*FETCHED, "openclipart")] == [1, 1, 1, 0]
    assert only(made, "largest_class_share", "data", data="emoji").value == 0.3


def test_rows_of_what_has_finished() -> None:
    assert [row.metric for row in rows(request(), {})[0]] == ["fetched"] * 4
    every = results(request())
    for name in every:
        rows(request(), {name: every[name]})
        rows(request(), {other: value for other, value in every.items() if other != name})


@pytest.mark.parametrize(
    ("changed", "accuracy", "text"),
    [
        # Standard deviations of 0.5 points each: 81% and 81.5% are not apart.
        (("sizes-middle-0", "sizes-middle-1", "sizes-middle-2"), 0.809, "the middle model is better than the small"),
        # 0.8 has a standard error of 0.89 points on 2000 images; with the seeds' 0.5 that is 1.02, twice that 2.05.
        (("stages-2",), 0.8 - 0.021, "K = 2 is as accurate as K = 1"),
        (tuple(f"fine-tuning-emoji-{seed}" for seed in range(5)), 0.3, "emoji: fine-tuned"),
    ],
)
def test_a_shape_that_does_not_hold_fails(changed: tuple[str, ...], accuracy: float, text: str) -> None:
    found = results(request())
    for name in changed:
        seed = int(name.rsplit("-", 1)[1]) if "stages" not in name else 0
        shift = SPREAD * seed if name.startswith("sizes") else 0
        found[name]["held_out"]["accuracy"] = accuracy + shift
    failed = [check.text for check in rows(request(), found)[1] if not check.passed]
    assert len(failed) == 1 and failed[0].startswith(text)


def test_smoke_asks_for_equality_alone() -> None:
    asked = request("smoke")
    found = results(asked)
    texts = [check.text for check in rows(asked, found)[1]]
    assert [check.passed for check in rows(asked, found)[1]] == [True] * 3
    assert [text.split(" is right")[0] for text in texts[:2]] == ["K = 2", "K = 4"] and "GroupNorm" in texts[2]
    found["stages-4"]["held_out"]["accuracy"] += 1 / settings("smoke").test_images  # one image more
    found["stages-2"]["losses"][1] *= 1 + 1e-8
    found["micro-batches-8-group"]["losses"][0] *= 1 + 1e-8
    assert [check.passed for check in rows(asked, found)[1]] == [False] * 3
