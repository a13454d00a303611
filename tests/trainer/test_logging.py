"""Loggers, progress bar, summary and callbacks see on rank 0 what they see in one process."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateMonitor, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.model_summary import summarize
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from repro.gpipe import PipelineModule
from tests.helpers.ranks import Pools
from tests.trainer.modules import Points, Regression
from tests.trainer.running import ONE, PLAIN, Pipeline, assert_same, loader, own_seed, trainer, untouched

PIPELINES = (ONE, Pipeline(2), Pipeline(2, data_parallel_size=2))


class Bar(TQDMProgressBar):
    """Keeps what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[dict[str, Any]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *arguments: Any) -> None:
        super().on_train_batch_end(trainer, module, *arguments)
        metrics = self.get_metrics(trainer, module)
        self.shown.append({name: metrics[name] for name in metrics if name != "v_num"})


class Logging(Regression):
    """Logs by itself too, where every rank does."""

    def on_train_epoch_end(self) -> None:
        self.log("twice_the_epoch", 2.0 * self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.log("batch", float(batch_idx), on_step=False, on_epoch=True, batch_size=1)


def log(rank: int, world_size: int, pipeline: Pipeline, folder: str) -> dict[str, Any]:
    """Three epochs with a logger, a bar, a summary and a changing accumulation."""
    with untouched():
        own_seed(9)
        bar, logger = Bar(), CSVLogger(folder, name=None, version="log")
        callbacks = [bar, LearningRateMonitor(), GradientAccumulationScheduler({0: 1, 1: 2})]
        runner = trainer(
            pipeline,
            callbacks=callbacks,
            logger=logger,
            log_every_n_steps=2,
            max_epochs=3,
            precision="64-true",
            enable_progress_bar=True,
            enable_model_summary=True,
            enable_checkpointing=False,
        )
        module, data = Logging(scheduler="plateau"), loader(Points(18), 4, pipeline=pipeline, shuffle=True)
        runner.fit(module, data, loader(Points(6), 4, pipeline=pipeline))
        parameters = summarize(module).total_parameters
        path = Path(folder) / "log" / "metrics.csv"
        rows = [] if rank else [{k: v for k, v in row.items() if v} for row in csv.DictReader(path.open())]
        metrics = {name: value.item() for name, value in runner.callback_metrics.items()}
    return {"shown": bar.shown, "rows": rows, "parameters": parameters, "metrics": metrics}


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_what_is_logged_and_shown(pipeline: Pipeline, pools: Pools, tmp_path: Path) -> None:
    for name in ("plain", "pipeline"):
        (tmp_path / name).mkdir()
    plain = log(0, 1, PLAIN, str(tmp_path / "plain"))
    arguments = (pipeline, str(tmp_path / "pipeline"))
    processes = pipeline.processes
    by_rank = [log(0, 1, *arguments)] if processes == 1 else pools(processes).run(log, *arguments)
    first = by_rank[0]
    assert first["parameters"] == plain["parameters"]
    assert len(first["rows"]) == len(plain["rows"])
    for got, wanted in zip(first["rows"], plain["rows"], strict=True):
        assert sorted(got) == sorted(wanted)
        for name, value in wanted.items():
            assert float(got[name]) == pytest.approx(float(value), abs=1e-10), name
    for shown, wanted in zip(first["shown"], plain["shown"], strict=True):
        assert shown == {name: pytest.approx(value, abs=1e-10) for name, value in wanted.items()}
    for rank, said in enumerate(by_rank):
        assert_same(said["metrics"], plain["metrics"], f"rank {rank}")


def sequential(rank: int, world_size: int, pipeline: Pipeline, folder: str) -> dict[str, Any]:
    """An ordinary ``nn.Sequential`` with the mean as its loss, saved at the end."""
    with untouched():
        torch.manual_seed(1)  # the caller makes the layers, on every rank
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 1))
        module = PipelineModule.from_sequential(model, functional.mse_loss, optimizer=torch.optim.RMSprop)
        own_seed(1)
        runner = trainer(pipeline, max_epochs=2, precision="64-true", enable_checkpointing=False)
        runner.fit(module, loader(Points(10), 4, pipeline=pipeline, shuffle=True))
        return {name: value.item() for name, value in runner.callback_metrics.items()}


@pytest.mark.parametrize("pipeline", [*PIPELINES, Pipeline(4, num_micro_batches=8, local=True)], ids=str)
def test_an_ordinary_sequential(pipeline: Pipeline, pools: Pools, tmp_path: Path) -> None:
    plain = sequential(0, 1, PLAIN, str(tmp_path))
    arguments = (pipeline, str(tmp_path))
    processes = pipeline.processes
    by_rank = [sequential(0, 1, *arguments)] if processes == 1 else pools(processes).run(sequential, *arguments)
    for rank, said in enumerate(by_rank):
        assert_same(said, plain, f"rank {rank}")


class Rare(Regression):
    """A metric over the rows whose target is large, of which a batch may have none."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        large = targets > 0
        return {"large": (targets[large].sum(), large.sum())}


@pytest.mark.parametrize("pipeline", [PLAIN, Pipeline(2, local=True)], ids=str)
def test_a_batch_that_nothing_counts_in_has_no_part_in_the_mean(pipeline: Pipeline) -> None:
    """It made the value of the whole epoch NaN."""
    targets = torch.tensor([1.0, 3.0, -1.0, -1.0, -1.0, -1.0])[:, None]
    data = DataLoader(TensorDataset(torch.ones(6, 4), targets), batch_size=2)
    (seen,) = trainer(pipeline, enable_checkpointing=False).validate(Rare(), data, verbose=False)
    assert seen["val_large"] == 2.0
