"""A fit through the pipeline ends where one process ends: weights, optimizer, checkpoints, metrics, stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ranks import Pools
from tests.trainer.running import ONE, PLAIN, Pipeline, Run, assert_same, fit_all

PIPELINES = (
    ONE,
    Pipeline(2),
    Pipeline(3),
    Pipeline(2, data_parallel_size=2),
    Pipeline(4, local=True),
    Pipeline(2, num_virtual_stages=2),
    Pipeline(2, num_virtual_stages=2, local=True),
    Pipeline(2, remat="never", num_micro_batches=1),
    Pipeline(2, num_virtual_stages=2, schedule="interleaved"),
    Pipeline(2, data_parallel_size=2, schedule="zb-h1", remat="never"),
    Pipeline(2, num_virtual_stages=2, schedule="zb-v", remat="except_last"),
)
WHOLE = Run(
    checkpoint={"monitor": "val_loss", "save_top_k": 2},
    stopping={"monitor": "val_loss", "patience": 2},
    module={"scheduler": "plateau"},
    trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 0.3},
)
# 18 rows in batches of 4 are five batches, so the last batch is ragged and the last window incomplete. With 17 rows the
# second of two replicas has no row in the last batch; with 19 it has one and the first has two.
RUNS = {
    "shuffled": WHOLE,
    "in order": WHOLE.but(shuffle=False),
    "by value": WHOLE.but(
        rows=17,
        trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
    ),
    "stopped early": WHOLE.but(rows=19, stopping={"monitor": "val_error", "mode": "max", "patience": 0}),
    "training loss": WHOLE.but(
        module={"scheduler": "plateau", "monitor": "train_loss", "optimizer": "momentum"},
        stopping={"monitor": "train_loss_epoch", "patience": 1, "min_delta": 0.3},
        checkpoint={"monitor": "train_loss", "save_top_k": 1, "save_on_train_epoch_end": True},
    ),
}
WHAT = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")


def compare(got: Any, wanted: Any, where: str) -> None:
    for rank, said in enumerate(got.ranks):
        for key in ("metrics", "steps", "epochs", "stopped_at", "kept"):
            assert_same(said[key], wanted.ranks[0][key], f"{where}, rank {rank}, {key}")
        assert_same(said["best"][1], wanted.ranks[0]["best"][1], f"{where}, rank {rank}, score of the best")
        assert Path(said["best"][0]).name == Path(wanted.ranks[0]["best"][0]).name, f"{where}, rank {rank}, best"
    for name in ("final", "best"):
        one, other = getattr(got, name), getattr(wanted, name)
        for key in WHAT:
            assert_same(one[key], other[key], f"{where}, {name}[{key!r}]")


EPOCHS = {"stopped early": 2, "training loss": 2}


@pytest.mark.parametrize("name", RUNS)
def test_a_fit_equals_plain_lightning(name: str, pools: Pools, tmp_path: Path) -> None:
    run = RUNS[name]
    plain, *others = fit_all(pools, [(PLAIN, run), *((pipeline, run) for pipeline in PIPELINES)], tmp_path)
    for pipeline, outcome in zip(PIPELINES, others, strict=True):
        compare(outcome, plain, f"{pipeline}, {name}")
    assert plain.ranks[0]["stopped_at"] == (EPOCHS.get(name, 3), 3 * EPOCHS.get(name, 3))
    rates = [group["lr"] for group in plain.final["optimizer_states"][0]["param_groups"]]
    assert rates != [0.05, 0.02], "the scheduler had nothing to do in this run"


# With BatchNorm and dropout the result depends on M and on D by design, never on the number of stages.
DRAWING = Run(
    rows=22,
    batch_size=8,
    module={"layers": "drawing", "scheduler": "plateau"},
    checkpoint={"monitor": "val_loss", "save_top_k": 2},
    trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 0.3},
)
AGAINST = {
    Pipeline(1, num_micro_batches=2, local=True): (
        Pipeline(2, num_micro_batches=2),
        Pipeline(3, num_micro_batches=2, remat="never"),
        Pipeline(4, num_micro_batches=2, local=True, remat="except_last"),
        Pipeline(2, num_micro_batches=2, num_virtual_stages=2),
    ),
    Pipeline(1, num_micro_batches=1, data_parallel_size=2): (Pipeline(2, num_micro_batches=1, data_parallel_size=2),),
}


@pytest.mark.parametrize("one", AGAINST, ids=str)
def test_a_fit_with_dropout_and_batch_norm_equals_a_single_stage(one: Pipeline, pools: Pools, tmp_path: Path) -> None:
    reference, *others = fit_all(pools, [(pipeline, DRAWING) for pipeline in (one, *AGAINST[one])], tmp_path)
    for pipeline, outcome in zip(AGAINST[one], others, strict=True):
        compare(outcome, reference, str(pipeline))
