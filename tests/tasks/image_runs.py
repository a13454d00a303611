"""Fits of a tiny AmoebaNet on random pictures, in this process or on the ranks of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from repro.models.amoebanet import Cell
from repro.tasks.image_classification import ImageClassification
from tests.trainer.running import Pipeline, trainer, untouched

TINY: dict[str, Any] = {
    "num_layers": 3,
    "num_filters": 4,
    "num_classes": 5,
    "image_size": 8,
    "stem_stride": 2,
    "aux_head": True,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "schedule": "constant",
}
BATCHES = 3


@dataclass(frozen=True)
class Said:
    """What a rank says of a fit: of every batch the loss, the learning rate and the last cell's drop-path."""

    losses: list[float]
    learning_rates: list[float]
    drop_path: list[float]


class _Recorder(pl.Callback):
    def __init__(self, folder: Path, said: Said) -> None:
        self.folder = folder
        self.said = said

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.folder / "start.ckpt")

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.said.learning_rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        self.said.losses.append(trainer.callback_metrics["train_loss_step"].item())
        self.said.drop_path.append([layer.drop_path.p for layer in module.model if isinstance(layer, Cell)][-1])
        trainer.save_checkpoint(self.folder / f"{len(self.said.losses)}.ckpt")


def fit(
    pipeline: Pipeline,
    folder: str,
    *,
    resume: str | None = None,
    callbacks: tuple[pl.Callback, ...] = (),
    options: dict[str, Any],
    **arguments: Any,
) -> Said:
    """Fits in double precision; saves ``start.ckpt`` and after n batches ``n.ckpt``. Every rank calls it."""
    said = Said([], [], [])
    Path(folder).mkdir(exist_ok=True)
    with untouched():
        torch.manual_seed(0)
        rows = TensorDataset(torch.rand(4 * BATCHES, 1, 8, 8, dtype=torch.float64), torch.arange(4 * BATCHES) % 3)
        arguments = {"max_epochs": 2, "precision": "64-true", "enable_checkpointing": False} | arguments
        runner = trainer(pipeline, callbacks=[*callbacks, _Recorder(Path(folder), said)], **arguments)
        runner.fit(ImageClassification(**TINY | options), DataLoader(rows, 4), ckpt_path=resume, weights_only=False)
    return said


def fit_on_rank(rank: int, world_size: int, jobs: list[tuple[Pipeline, str, dict[str, Any]]]) -> list[Said]:
    """Fits one after another: (pipeline, folder, further arguments of ``fit``)."""
    return [fit(pipeline, folder, **arguments) for pipeline, folder, arguments in jobs]
