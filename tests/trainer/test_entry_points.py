"""Entry points one after the other, several loaders, loaders that are made anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from tests.helpers.ranks import Pools
from tests.trainer.modules import Points, Regression
from tests.trainer.running import ONE, PLAIN, Pipeline, Recorder, assert_same, loader, own_seed, trainer, untouched

PIPELINES = (ONE, Pipeline(2), Pipeline(3), Pipeline(2, data_parallel_size=2))


class Pairs(Regression):
    """Trains on one batch of each of two loaders."""

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        if not isinstance(batch, dict):
            return super().split_batch(batch)
        one, other = batch["one"], batch["other"]
        return torch.cat([one[0], other[0]]), torch.cat([one[1], other[1]])


class Reloading(pl.LightningDataModule):
    """Makes a loader of other rows for each epoch, and two loaders to validate with."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.made = 0

    def train_dataloader(self) -> Any:
        self.made += 1
        return loader(Points(8 + self.made, seed=self.made), 4, pipeline=self.pipeline, shuffle=True)

    def val_dataloader(self) -> Any:
        return [loader(Points(rows), 4, pipeline=self.pipeline) for rows in (7, 4)]


def one_after_the_other(rank: int, world_size: int, pipeline: Pipeline, folder: str) -> dict[str, Any]:
    """Fit, then validate, test and predict with the weights at the end and with the best ones."""
    seen: dict[str, Any] = {}
    with untouched():
        own_seed(4)
        best = ModelCheckpoint(Path(folder), monitor="val_loss", mode="max")
        runner = trainer(pipeline, callbacks=[best], max_epochs=2, precision="64-true", num_sanity_val_steps=0)
        module, data = Regression(), loader(Points(11), 4, pipeline=pipeline)
        runner.fit(module, data, data)
        seen["validate"] = runner.validate(module, data)
        seen["test"] = runner.test(module, data)
        seen["test best"] = runner.test(module, data, ckpt_path="best", weights_only=False)
        seen["validate best"] = runner.validate(Regression(), data, ckpt_path=best.best_model_path, weights_only=False)
        for name, path in (("end", None), ("best", "best")):
            outputs = runner.predict(module, data, ckpt_path=path, weights_only=False)
            kept = [output for output in outputs or [] if isinstance(output, Tensor)]
            seen[f"predict {name}"] = torch.cat(kept) if kept else None
        # A checkpoint that was only looked at is not one to resume from.
        again = trainer(pipeline, max_epochs=1, precision="64-true", enable_checkpointing=False)
        recorder = Recorder(Path(folder), ())
        again.validate(module, data, ckpt_path=best.best_model_path, weights_only=False)
        again.callbacks.append(recorder)
        again.fit(module, data)
        seen["fit after looking"] = recorder.steps
    return seen


def several_loaders(rank: int, world_size: int, pipeline: Pipeline, folder: str) -> dict[str, Any]:
    """Loaders made anew each epoch with two to validate with; and a dict of loaders of different lengths."""
    seen: dict[str, Any] = {}
    jobs: Mapping[str, tuple[type[Regression], Any, dict[str, Any]]] = {
        "anew": (Regression, Reloading(pipeline), {"reload_dataloaders_every_n_epochs": 1}),
        "dict": (
            Pairs,
            {
                "one": loader(Points(10), 4, pipeline=pipeline, shuffle=True),
                "other": loader(Points(8, seed=1), 2, pipeline=pipeline),
            },
            {},
        ),
    }
    for name, (module, data, arguments) in jobs.items():
        with untouched():
            own_seed(4)
            recorder = Recorder(Path(folder), ())
            runner = trainer(
                pipeline,
                callbacks=[recorder],
                max_epochs=3,
                precision="64-true",
                num_sanity_val_steps=0,
                enable_checkpointing=False,
                **arguments,
            )
            given = {"datamodule": data} if name == "anew" else {"train_dataloaders": data}
            runner.fit(module(), **given)
            seen[name] = {"steps": recorder.steps, "epochs": recorder.epochs}
    return seen


@pytest.mark.parametrize("function", [one_after_the_other, several_loaders])
@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_as_in_one_process(pipeline: Pipeline, function: Any, pools: Pools, tmp_path: Path) -> None:
    for name in ("plain", "pipeline"):
        (tmp_path / name).mkdir()
    plain = function(0, 1, PLAIN, str(tmp_path / "plain"))
    arguments = (pipeline, str(tmp_path / "pipeline"))
    processes = pipeline.processes
    by_rank = [function(0, 1, *arguments)] if processes == 1 else pools(processes).run(function, *arguments)
    for rank, seen in enumerate(by_rank):
        for name, wanted in plain.items():
            if name.startswith("predict") and rank > 0:
                assert seen[name] is None
            else:
                assert_same(seen[name], wanted, f"rank {rank}, {name}")
