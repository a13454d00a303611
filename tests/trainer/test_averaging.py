"""The moving average of the weights: what Lightning's own callback gives in one process, for any K."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging

from repro.gpipe import ExponentialMovingAverage
from repro.gpipe.averaging import warmed_up
from repro.tasks.cli import ReproCLI
from tests.helpers.ranks import Pools
from tests.trainer.modules import Regression
from tests.trainer.running import ONE, PLAIN, Outcome, Pipeline, Run, assert_same, fit_all, load, untouched

K2, K3 = Pipeline(2), Pipeline(3)
AVERAGE = ("state_dict", "current_model_state", "averaging_state")
STATE = (*AVERAGE, "optimizer_states", "lr_schedulers", "epoch", "global_step", "callbacks")
# Five batches an epoch in windows of two: after batches 1, 3, 6 and 8 a window is open, after 5 and 10 an epoch ends.
WHOLE = Run(
    rows=40,
    batch_size=8,  # two rows in a micro-batch: what BatchNorm needs
    save_at=(3,),
    callbacks=(partial(ExponentialMovingAverage, decay=0.7),),
    trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_epochs": 2},
)
# Lightning's callback copies the module before it is built and before its precision is known, unless it is built.
STOCK: dict[str, Any] = {"callbacks": (partial(EMAWeightAveraging, decay=0.7),), "prebuilt": True}


def folder(directory: Path, name: str) -> Path:
    made = directory / name
    made.mkdir()
    return made


def assert_same_run(got: Outcome, wanted: Outcome, where: str, *, done: int = 0) -> None:
    """Losses, validation (which uses the average), and the last checkpoint with its layout."""
    validated = [{name: value for name, value in epoch.items() if "val" in name} for epoch in wanted.ranks[0]["epochs"]]
    for said in got.ranks:
        assert_same(said["steps"], wanted.ranks[0]["steps"][done:], f"{where}, losses")
        for epoch, expected in zip(reversed(said["epochs"]), reversed(validated), strict=False):
            assert_same({name: epoch[name] for name in expected}, expected, f"{where}, validation")
    for key in STATE:
        assert_same(got.final[key], wanted.final[key], f"{where}, {key}")
    for key in AVERAGE:
        assert list(got.final[key]) == list(wanted.final[key]), f"{where}, order of {key}"


def average_of(outcome: Outcome) -> dict[str, torch.Tensor]:
    """The averaged weights at the end."""
    average: dict[str, torch.Tensor] = outcome.final["state_dict"]
    return average


@pytest.mark.parametrize(
    ("layers", "whole", "pipelines", "options"),
    [
        # BatchNorm's statistics are those of micro-batches: Lightning's callback with all stages in one process.
        ("drawing", ONE, (K3, Pipeline(2, num_virtual_stages=2), Pipeline(4, local=True)), {}),
        ("drawing", ONE, (K3,), {"use_buffers": False, "update_every_n_steps": 2, "update_starting_at_step": 2}),
        ("plain", PLAIN, (K3, Pipeline(2, data_parallel_size=2), PLAIN), {}),
        ("frozen_first", PLAIN, (Pipeline(3, partition=(2, 2, 1)),), {"update_starting_at_epoch": 1}),
    ],
    ids=["batch norm", "seldom", "replicas", "frozen stage"],
)
def test_equals_lightnings_callback_in_one_process(
    layers: str,
    whole: Pipeline,
    pipelines: tuple[Pipeline, ...],
    options: dict[str, Any],
    pools: Pools,
    tmp_path: Path,
) -> None:
    run = WHOLE.but(
        module={"layers": layers, "scheduler": "step"},
        callbacks=(partial(ExponentialMovingAverage, decay=0.7, **options),),
    )
    stock = run.but(callbacks=(partial(EMAWeightAveraging, decay=0.7, **options),), prebuilt=True)
    wanted, *outcomes = fit_all(pools, [(whole, stock), *((pipeline, run) for pipeline in pipelines)], tmp_path)
    assert wanted.final["averaging_state"]["n_averaged"] > 1
    for pipeline, outcome in zip(pipelines, outcomes, strict=True):
        assert_same_run(outcome, wanted, str(pipeline))
        half, wanted_half = (load(one.directory / "3.ckpt") for one in (outcome, wanted))
        for key in STATE:
            assert_same(half[key], wanted_half[key], f"{pipeline} within a window, {key}")


def test_a_run_goes_on_with_other_stages(pools: Pools, tmp_path: Path) -> None:
    """Left within a window by three stages, by two, and by all in one process, where validation used the average."""
    run = WHOLE.but(module={"layers": "drawing", "scheduler": "step"}, save_at=())
    (whole,) = fit_all(pools, [(ONE, run)], folder(tmp_path, "whole"))
    resume = None
    for pipeline, done, leave in ((K3, 0, 3), (K2, 3, 8), (ONE, 8, None)):
        job = run.but(resume=resume, save_at=() if leave is None else (leave,))
        (outcome,) = fit_all(pools, [(pipeline, job)], folder(tmp_path, str(done)))
        assert_same_run(outcome, whole, str(pipeline), done=done)
        resume = str(outcome.directory / f"{leave}.ckpt")


def test_lightnings_callback_goes_on_and_the_other_way_round(pools: Pools, tmp_path: Path) -> None:
    """At the end of an epoch, the only place at which plain Lightning goes on where it was."""
    run = WHOLE.but(
        shuffle=False,
        module={"layers": "plain", "scheduler": "epoch"},
        checkpoint={"save_top_k": -1, "save_on_train_epoch_end": True},
        save_at=(),
    )
    stock = run.but(**STOCK)
    first = fit_all(pools, [(PLAIN, stock), (K3, run)], folder(tmp_path, "first"))
    whole, pipeline = first
    kept = [str(outcome.directory / "kept/epoch=0-step=3.ckpt") for outcome in first]
    # A module that was built in double precision: plain Lightning then loads the weights as they are.
    jobs = [(PLAIN, stock.but(resume=kept[1])), (K3, run.but(resume=kept[0])), (PLAIN, run.but(resume=kept[1]))]
    for (_, job), outcome in zip(jobs, fit_all(pools, jobs, folder(tmp_path, "second")), strict=True):
        for said in outcome.ranks:
            assert_same(said["steps"], whole.ranks[0]["steps"][5:], f"{job.resume}, losses")
        for key in (*AVERAGE, "optimizer_states", "lr_schedulers"):
            assert_same(outcome.final[key], whole.final[key], f"{job.resume}, {key}")
    opened = Regression.load_from_checkpoint(pipeline.directory / "final.ckpt", weights_only=False)
    averaged = {name: value.float() for name, value in average_of(whole).items()}
    assert_same(dict(opened.state_dict()), averaged, "load_from_checkpoint", tolerance=1e-6)
    trained = whole.final["current_model_state"]
    assert any((trained[name] - averaged[name]).abs().max() > 1e-3 for name in averaged)


def test_averaging_begins_from_a_checkpoint_without_average(pools: Pools, tmp_path: Path) -> None:
    run = WHOLE.but(module={"layers": "drawing"}, callbacks=())
    (before,) = fit_all(pools, [(K2, run)], folder(tmp_path, "before"))
    again = WHOLE.but(module={"layers": "drawing"}, resume=str(before.directory / "3.ckpt"), save_at=())
    jobs = [(ONE, again.but(**STOCK)), (K3, again)]
    wanted, outcome = fit_all(pools, jobs, folder(tmp_path, "after"))
    assert_same_run(outcome, wanted, "K3 from a checkpoint without average")


def test_the_best_checkpoint_is_chosen_by_the_average(pools: Pools, tmp_path: Path) -> None:
    run = WHOLE.but(checkpoint={"monitor": "val_loss"})
    for outcome in fit_all(pools, [(K2, run), (ONE, run)], tmp_path):
        best = outcome.best
        for said in outcome.ranks:
            assert said["best"][1] == min(epoch["val_loss"] for epoch in said["epochs"])
        assert list(best["current_model_state"]) == list(best["state_dict"])


def test_a_config_calls_it_by_its_short_name(tmp_path: Path) -> None:
    path = tmp_path / "average.yaml"
    path.write_text("trainer: {callbacks: [{class_path: ExponentialMovingAverage, init_args: {decay: 0.9}}]}")
    configs = [f"--config={name}" for name in ("configs/amoebanet/base.yaml", "configs/amoebanet/laptop.yaml", path)]
    with untouched():
        runner = ReproCLI(configs, run=False).trainer
    (average,) = [callback for callback in runner.callbacks if isinstance(callback, EMAWeightAveraging)]
    assert isinstance(average, ExponentialMovingAverage) and average.should_update(step_idx=0)


@pytest.mark.parametrize(("updates", "kept"), [(1, 2 / 11), (90, 91 / 100), (10_000, 0.95)])
def test_warm_up_keeps_the_memory_shorter_than_the_run(updates: int, kept: float) -> None:
    average, current = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    following = warmed_up(average, current, torch.tensor(updates), 0.95)
    torch.testing.assert_close(following, torch.full_like(average, 1 - kept), rtol=1e-6, atol=0)


def test_warm_up_depends_on_no_partition(pools: Pools, tmp_path: Path) -> None:
    run = WHOLE.but(
        callbacks=(partial(ExponentialMovingAverage, decay=0.999, warm_up=True),), module={"layers": "drawing"}
    )
    whole, pipeline = fit_all(pools, [(ONE, run), (K3, run)], tmp_path)
    assert_same_run(pipeline, whole, "K3")
    assert any((whole.final["current_model_state"][name] != value).any() for name, value in average_of(whole).items())
