"""Training jobs that keep their files: one that was killed ends as one that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from repro.errors import UserError
from repro.experiments.accuracy import fitting
from repro.experiments.accuracy.fitting import CHECKPOINT, FitPlan, fit
from repro.experiments.accuracy.scales import IMAGES
from repro.experiments.accuracy.training import TrainingPlan
from tests.datasets.builders import write_images


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packaged")
    write_images(root, train=40, test=6)
    return root


@pytest.fixture
def plan(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> FitPlan:
    # The code may be edited while its tests run.
    monkeypatch.setattr(fitting, "code_revision", lambda: "0123456789ab")
    overrides = (
        f"--data.root={packaged}",
        "--data.batch_size=8",
        "--data.validation=8",
        "--data.limit_train=24",
        "--model.num_filters=4",
        "--trainer.precision=64-true",
    )
    training = TrainingPlan(IMAGES.configs("smoke"), 2, 2, processes=False, steps=5, overrides=overrides)
    return FitPlan("images", training)


def quiet(share: float, words: str) -> None:
    """Nobody reads the progress."""


def test_a_killed_job_goes_on_to_the_same_curve(plan: FitPlan, tmp_path: Path) -> None:
    whole = fit(0, quiet, plan, str(tmp_path / "whole" / plan.name))

    def killed(share: float, words: str) -> None:
        if words.startswith("step 4"):
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(0, killed, plan, str(tmp_path / "killed" / plan.name))
    checkpoint = plan.folder(tmp_path / "killed") / CHECKPOINT
    assert torch.load(checkpoint, weights_only=False)["global_step"] in (3, 4)
    resumed = fit(0, quiet, plan, str(tmp_path / "killed" / plan.name))
    for name in ("losses", "gradient_norms", "held_out", "num_parameters", "partition"):
        assert resumed[name] == whole[name], name
    assert len(resumed["losses"]) == 5
    finished = fit(0, quiet, plan, str(tmp_path / "killed" / plan.name))
    assert (finished["losses"], finished["held_out"]) == (whole["losses"], whole["held_out"])


def test_curves_are_logged(plan: FitPlan, tmp_path: Path) -> None:
    plan = replace(plan, training=replace(plan.training, steps=21))  # a checkpoint every 2 steps, and the last one
    found = fit(0, quiet, plan, str(tmp_path / plan.name))
    assert torch.load(plan.folder(tmp_path) / CHECKPOINT, weights_only=False)["global_step"] == 21
    logs = Path(found["log_folder"])
    assert plan.folder(tmp_path) in logs.parents
    head, *lines = (logs / "metrics.csv").read_text().splitlines()
    assert {"train_loss_step", "lr-AdamW/pg1"} <= set(head.split(","))
    assert len(lines) >= 5
    assert list(logs.glob("events.out.tfevents.*"))


def test_another_plan_or_other_code_keeps_other_files(
    plan: FitPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {plan.folder(tmp_path), replace(plan, start=plan).folder(tmp_path)}
    monkeypatch.setattr(fitting, "code_revision", lambda: "ba9876543210")
    folders.add(plan.folder(tmp_path))
    assert len(folders) == 3


def test_what_it_begins_with_must_be_there(plan: FitPlan, tmp_path: Path) -> None:
    tuned = replace(plan, name="tuned", start=plan)
    with pytest.raises(UserError, match=r"tuned begins with the weights of images, but .*last.ckpt is gone"):
        fit(0, quiet, tuned, str(tmp_path / tuned.name))


def test_only_single_processes_share_the_machine(plan: FitPlan) -> None:
    assert plan.part("one", 5.0).together
    pair = replace(plan, training=replace(plan.training, processes=True))
    assert (pair.part("two", 5.0).together, pair.part("two", 5.0).world_size) == (False, 2)
