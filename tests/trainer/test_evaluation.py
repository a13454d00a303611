"""Validate, test and predict, each alone: metrics, torchmetrics, outputs complete and in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.ranks import Pools
from tests.trainer.modules import WIDTH, Points, Regression, head
from tests.trainer.running import ONE, PLAIN, Pipeline, assert_same, loader, own_seed, trainer, untouched

PIPELINES = (
    ONE,
    Pipeline(2),
    Pipeline(3),
    Pipeline(2, data_parallel_size=2),
    Pipeline(4, local=True),
    Pipeline(2, num_virtual_stages=2),
    Pipeline(2, num_virtual_stages=2, schedule="zb-v"),
)


class Measured(Regression):
    """Keeps torchmetrics objects, which are updated where the outputs are."""

    def __init__(self, layers: str = "plain") -> None:
        super().__init__(layers)
        self.square = torchmetrics.MeanSquaredError().set_dtype(torch.float64)
        self.r2 = torchmetrics.R2Score()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, int]]:
        if not self.trainer.sanity_checking:
            self.square.update(outputs, targets)
            self.r2.update(outputs, targets)
        return super().metrics(outputs, targets)

    def on_validation_epoch_end(self) -> None:
        self.log("val_square", self.square.compute())
        self.log("val_r2", self.r2.compute())
        self.square.reset()
        self.r2.reset()


class Outputs(pl.Callback):
    """Keeps what each prediction step gives."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_predict_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, *more: Any) -> None:
        self.seen.append(outputs)


def evaluate(rank: int, world_size: int, pipeline: Pipeline) -> dict[str, Any]:
    """Each entry point with a Trainer of its own, on 11 rows in batches of 4: the last batch has 3."""
    seen: dict[str, Any] = {}
    with untouched():
        for name in ("validate", "test", "predict"):
            for layers in ("plain", "drawing"):
                own_seed(2)
                kept = Outputs()
                runner = trainer(pipeline, callbacks=[kept], precision="64-true", enable_checkpointing=False)
                data = loader(Points(11), 4, pipeline=pipeline)
                given = getattr(runner, name)(Measured(layers), data)
                seen[f"{name} {layers}"] = kept.seen if name == "predict" else given
                if name == "predict":
                    seen[f"given {layers}"] = given
    return seen


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_each_entry_point_alone_equals_one_process(pipeline: Pipeline, pools: Pools) -> None:
    plain = evaluate(0, 1, PLAIN)
    processes = pipeline.processes
    by_rank = [evaluate(0, 1, pipeline)] if processes == 1 else pools(processes).run(evaluate, pipeline)
    for rank, seen in enumerate(by_rank):
        for name, wanted in plain.items():
            where = f"rank {rank}, {name}"
            if name.startswith(("predict", "given")):
                outputs = [] if seen[name] is None else [output for output in seen[name] if output is not None]
                assert bool(outputs) == (rank == 0), f"{where}: {outputs}"
                if rank == 0:
                    assert_same(torch.cat(outputs), torch.cat(wanted), where)
            else:
                assert_same(seen[name], wanted, where)


class Sparse(Regression):
    """Its first layer has sparse gradients."""

    def layers(self) -> Sequence[Callable[[], nn.Module]]:
        return [partial(nn.Embedding, 8, WIDTH, sparse=True), head]


def validate_sparse(rank: int, world_size: int) -> list[str]:
    data = DataLoader(TensorDataset(torch.arange(8), torch.ones(8, 1)), batch_size=2)
    runner = trainer(Pipeline(1, data_parallel_size=2))
    return list(runner.validate(Sparse(), data, verbose=False)[0])


def test_replicas_evaluate_what_they_could_not_train(pools: Pools) -> None:
    """Sparse gradients cannot be summed over replicas, but here there are none."""
    assert pools(2).run(validate_sparse) == [["val_loss", "val_error"]] * 2
