"""Precisions: the number of stages and remat change nothing, and an overflow on one stage is one for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.ranks import Pools
from tests.trainer.running import ONE, PLAIN, Outcome, Pipeline, Run, assert_same, fit_all

K2, K3 = Pipeline(2), Pipeline(3)
PIPELINES = (
    Pipeline(2, remat="never"),
    K2,
    K3,
    Pipeline(2, num_virtual_stages=2, remat="except_last"),
    Pipeline(4, local=True),
)
KEYS = ("state_dict", "optimizer_states")


def compare(got: Outcome, wanted: Outcome, where: str, tolerance: float) -> None:
    for rank, said in enumerate(got.ranks):
        for key in ("steps", "scales", "metrics"):
            assert_same(said[key], wanted.ranks[0][key], f"{where}, rank {rank}, {key}", tolerance)
    for key in KEYS:
        assert_same(got.final[key], wanted.final[key], f"{where}, {key}", tolerance)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-scaled"])
def test_stages_and_remat_change_nothing(precision: str, pools: Pools, tmp_path: Path) -> None:
    """The same micro-batches through the same kernels in the same order: equal to the last bit, but for the norm."""
    run = Run(
        module={"layers": "dropout"},
        trainer={"precision": precision, "accumulate_grad_batches": 2, "max_epochs": 2},
    )
    one, *others = fit_all(pools, [(pipeline, run) for pipeline in (ONE, *PIPELINES)], tmp_path)
    for pipeline, outcome in zip(PIPELINES, others, strict=True):
        compare(outcome, one, f"{precision}, {pipeline}, remat {pipeline.remat}", 0.0)
    dtypes = {str(value.dtype) for value in one.final["state_dict"].values()}
    assert dtypes == {"torch.bfloat16" if precision == "bf16-true" else "torch.float32"}


# How far rounding takes two epochs apart, which start from the same weights and see the same rows.
TOLERANCES = {"32-true": 1e-4, "bf16-mixed": 0.1}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_close_to_plain_lightning(precision: str, pools: Pools, tmp_path: Path) -> None:
    # Neither AdamW nor clipping, which would hide a gradient that is too large.
    run = Run(
        module={"optimizer": "momentum"},
        trainer={"precision": precision, "accumulate_grad_batches": 2, "max_epochs": 2},
    )
    plain, *others = fit_all(pools, [(pipeline, run) for pipeline in (PLAIN, K2, K3)], tmp_path)
    for pipeline, outcome in zip((K2, K3), others, strict=True):
        compare(outcome, plain, f"{precision}, {pipeline}", TOLERANCES[precision])


# The one row whose inputs are large makes the gradients of layer 0 overflow, so of the first stage only.
SPIKE = Run(
    module={"layers": "spike", "optimizer": "momentum"},
    shuffle=False,
    spike=9,
    save_at=(4,),
    trainer={"precision": "16-scaled", "max_epochs": 2},
)


def test_an_overflow_on_one_stage_skips_the_step_on_all(pools: Pools, tmp_path: Path) -> None:
    pipelines = (PLAIN, ONE, K2, K3, Pipeline(2, data_parallel_size=2))
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    plain, one, *others = fit_all(pools, [(pipeline, SPIKE) for pipeline in pipelines], folders[0])
    # Five batches an epoch; the third of each overflows and halves the scale; four good ones in a row double it.
    scales = [1024.0, 1024.0, 512.0, 512.0, 512.0, 512.0, 1024.0, 512.0, 512.0, 512.0]
    for outcome in (plain, one, *others):
        for rank, said in enumerate(outcome.ranks):
            assert said["scales"] == scales, f"{outcome.directory.name}, rank {rank}"
        # What a step that is not skipped, or a scale that is left in, would change by far.
        assert_same(outcome.final["state_dict"], plain.final["state_dict"], outcome.directory.name, 0.01)
    for pipeline, outcome in zip(pipelines[2:4], others, strict=False):
        compare(outcome, one, str(pipeline), 1e-6)
    again = SPIKE.but(resume=str(others[1].directory / "4.ckpt"), save_at=())
    for resumed in fit_all(pools, [(K2, again), (ONE, again)], folders[1]):
        assert all(said["scales"] == scales[4:] for said in resumed.ranks)
        for key in KEYS:
            assert_same(resumed.final[key], one.final[key], f"resumed, {key}", 1e-6)
