"""A run that was stopped goes on with other stages as if it had never been stopped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from fsspec.implementations.local import LocalFileOpener
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, RandomSampler

from repro.errors import UserError
from tests.helpers.ranks import Pools, fresh_ranks
from tests.trainer.modules import Points, Regression
from tests.trainer.running import (
    ONE,
    PLAIN,
    Outcome,
    Pipeline,
    Recorder,
    Run,
    assert_same,
    fit,
    fit_all,
    load,
    loader,
    trainer,
    untouched,
)

K2, K3 = Pipeline(2), Pipeline(3)
# Five batches an epoch in windows of two: after batches 1, 3, 6 and 8 a window is open, after 5 and 10 an epoch ends.
WHOLE = Run(trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 0.3})


@dataclass(frozen=True)
class Chain:
    """Pipelines one after the other; each but the last is left at its checkpoint ``at[i]``, where the next goes on."""

    pipelines: tuple[Pipeline, ...]
    at: tuple[int, ...]
    layers: str = "dropout"
    scheduler: str = "step"
    shuffle: bool = True
    workers: int = 0
    optimizer: str = "adamw"

    @property
    def run(self) -> Run:
        """The uninterrupted run."""
        module = {"layers": self.layers, "scheduler": self.scheduler, "optimizer": self.optimizer}
        return WHOLE.but(shuffle=self.shuffle, workers=self.workers, module=module)


CHAINS = {
    "inside windows": Chain((K3, K2, ONE), (3, 6)),
    "first batch": Chain((ONE, K3, K2), (1, 8)),
    "between windows": Chain((K3, K2, ONE), (2, 9), scheduler="epoch"),
    "workers": Chain((K2, ONE), (3,), workers=2),
    "in order": Chain((K2, K3), (3,), shuffle=False, scheduler="epoch"),
    "virtual stages": Chain((K3, Pipeline(2, num_virtual_stages=2), Pipeline(4, local=True)), (3, 6)),
    "schedules": Chain(
        (
            Pipeline(2, num_virtual_stages=2, schedule="zb-v"),
            Pipeline(3, schedule="1f1b"),
            Pipeline(2, schedule="zb-h1", remat="never"),
        ),
        (3, 6),
    ),
    "replicas": Chain((K2, Pipeline(2, data_parallel_size=2), K3), (3, 6), layers="plain"),
    "from replicas": Chain((Pipeline(2, data_parallel_size=2), ONE), (8,), layers="plain"),
    "plateau": Chain((K3, K2, ONE), (3, 8), scheduler="plateau"),
    "frozen": Chain((K2, K3, ONE), (3, 6), layers="frozen_first"),
    "factored states": Chain((K2, ONE, K3), (3, 6), optimizer="adafactor"),
    "extra state": Chain((K3, K2, ONE), (3, 6), layers="extra_state"),
    "empty stage": Chain((Pipeline(3, partition=(2, 2, 1)), K2, ONE), (3, 6), layers="empty_stage"),
}
WHAT = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step", "loops", "gpipe")


def follow(chain: Chain, pools: Pools, directory: Path) -> list[Outcome]:
    """Runs the chain; every run but the first resumes."""
    outcomes: list[Outcome] = []
    resume = None
    for number, pipeline in enumerate(chain.pipelines):
        folder = directory / str(number)
        folder.mkdir()
        run = chain.run.but(resume=resume, save_at=chain.at[number : number + 1])
        outcomes += fit_all(pools, [(pipeline, run)], folder)
        if number < len(chain.at):
            resume = str(outcomes[-1].directory / f"{chain.at[number]}.ckpt")
    return outcomes


class LoadsByHand(Regression):
    """Loads the weights of a plain ``nn.Sequential`` where it is set up."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def configure_model(self) -> None:
        super().configure_model()
        assert self.model is not None
        self.model.load_state_dict(torch.load(self.path))


class KeepWeights(pl.Callback):
    """Keeps the names of all weights, and those of this rank as they are before the first step."""

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        state = module.model.state_dict()
        self.names = list(state)
        self.own = {name: value.clone() for name, value in state.items() if not value.is_meta}


def load_weights(rank: int, world_size: int, path: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    pipeline = Pipeline(world_size)
    with untouched():
        keep = KeepWeights()
        runner = trainer(pipeline, callbacks=[keep], max_steps=1, enable_checkpointing=False, precision="32-true")
        data = DataLoader(Points(4, dtype=torch.float32), batch_size=4)
        runner.fit(LoadsByHand(path), data)
    return keep.names, keep.own


@pytest.mark.parametrize("name", CHAINS)
def test_resuming_equals_the_uninterrupted_run(name: str, pools: Pools, tmp_path: Path) -> None:
    chain = CHAINS[name]
    (whole,) = fit_all(pools, [(ONE, chain.run)], tmp_path)
    for number, outcome in enumerate(follow(chain, pools, tmp_path)):
        where = f"{chain.pipelines[number]} (run {number} of {name})"
        done = chain.at[number - 1] if number else 0
        for said in outcome.ranks:
            assert_same(said["steps"], whole.ranks[0]["steps"][done:], f"{where}, losses")
        for key in WHAT:
            assert_same(outcome.final[key], whole.final[key], f"{where}, {key}")


def end_of_first_epoch(outcome: Outcome, moment: str) -> str:
    """The checkpoint saved at ``moment``, by the recorder or by ModelCheckpoint."""
    return str(outcome.directory / ("5.ckpt" if moment == "last batch" else "kept/epoch=0-step=3.ckpt"))


@pytest.mark.parametrize(
    ("moment", "scheduler"),
    [
        ("last batch", "epoch"),
        ("validation", "epoch"),
        ("validation", "plateau"),
        ("epoch", "epoch"),
        ("epoch", "plateau"),
    ],
)
def test_resuming_at_the_end_of_an_epoch(moment: str, scheduler: str, pools: Pools, tmp_path: Path) -> None:
    """After the last batch Lightning goes on without the validation, in which loaders draw: so not shuffled there."""
    run = WHOLE.but(
        shuffle=moment != "last batch",
        module={"layers": "dropout" if moment != "last batch" else "plain", "scheduler": scheduler},
        save_at=(5,),
        checkpoint={"save_top_k": -1, "save_on_train_epoch_end": moment == "epoch"},
    )
    folders = [tmp_path / name for name in ("whole", "second")]
    for folder in folders:
        folder.mkdir()
    whole, stopped = fit_all(pools, [(ONE, run), (K3, run)], folders[0])
    again = run.but(resume=end_of_first_epoch(stopped, moment))
    for pipeline, resumed in zip((K2, ONE), fit_all(pools, [(K2, again), (ONE, again)], folders[1]), strict=True):
        where = f"{pipeline} after the {moment}"
        for said in resumed.ranks:
            assert_same(said["steps"], whole.ranks[0]["steps"][5:], f"{where}, losses")
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert_same(resumed.final[key], whole.final[key], f"{where}, {key}")
        if run.shuffle:
            assert_same(resumed.final["gpipe"], whole.final["gpipe"], where)


def test_resuming_after_a_validation_inside_a_window(pools: Pools, tmp_path: Path) -> None:
    """Validation after batches 3 and 8, each the first of a window, whose gradients the checkpoint must hold."""
    run = WHOLE.but(
        module={"layers": "dropout", "scheduler": "step"},
        checkpoint={"save_top_k": -1, "save_on_train_epoch_end": False},
        trainer={**WHOLE.trainer, "val_check_interval": 3},
    )
    folders = [tmp_path / name for name in ("whole", "second")]
    for folder in folders:
        folder.mkdir()
    whole, stopped = fit_all(pools, [(ONE, run), (K3, run)], folders[0])
    again = run.but(resume=str(stopped.directory / "kept/epoch=0-step=1.ckpt"))
    assert load(again.resume or "")["gpipe"]["gradients"]
    for pipeline, resumed in zip((K2, ONE), fit_all(pools, [(K2, again), (ONE, again)], folders[1]), strict=True):
        for said in resumed.ranks:
            assert_same(said["steps"], whole.ranks[0]["steps"][3:], f"{pipeline}, losses")
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "gpipe"):
            assert_same(resumed.final[key], whole.final[key], f"{pipeline}, {key}")


class Stumble(pl.Callback):
    """Fails in a batch, counted from 0 over the run: before its step, or after its backward."""

    def __init__(self, batch: int, hook: str = "on_train_batch_start") -> None:
        self.batch = batch
        setattr(self, hook, self.stumble)

    def stumble(self, trainer: pl.Trainer, *arguments: Any) -> None:
        # Lightning's total counts a batch that is read again twice.
        if trainer.current_epoch * trainer.num_training_batches + trainer.fit_loop.epoch_loop.batch_idx == self.batch:
            raise KeyError("stumbled")


@pytest.mark.parametrize("batch", [2, 3, 5, 9])
def test_a_batch_that_an_exception_has_ended_is_read_again(batch: int, pools: Pools, tmp_path: Path) -> None:
    """It used to be left out in silence. A window is open before batches 3 and 9; the second epoch begins with 5."""
    module = {"layers": "dropout", "scheduler": "epoch"}
    callbacks = (partial(Stumble, batch), partial(OnExceptionCheckpoint, tmp_path))
    with pytest.raises(KeyError, match="stumbled"):
        fit(Pipeline(3, local=True), WHOLE.but(module=module, callbacks=callbacks, checkpoint={}), str(tmp_path))
    resumed = WHOLE.but(module=module, resume=str(tmp_path / "on_exception.ckpt"))
    whole, outcome = fit_all(pools, [(ONE, WHOLE.but(module=module)), (K2, resumed)], tmp_path)
    assert_same(outcome.ranks[0]["steps"], whole.ranks[0]["steps"][batch:])
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
        assert_same(outcome.final[key], whole.final[key], key)


@pytest.mark.parametrize(
    ("batch", "hook"),
    [(1, "on_after_backward"), (1, "on_before_optimizer_step"), (2, "on_after_backward"), (3, "on_after_backward")],
)
def test_a_batch_that_has_ended_after_its_backward_counts_once(
    batch: int, hook: str, pools: Pools, tmp_path: Path
) -> None:
    """Its gradients are in the window that is saved, and it used to add them again. It stumbles twice."""
    module = {"layers": "dropout"}
    end = tmp_path / "on_exception.ckpt"
    for again in (None, str(end)):
        for place in ("on_train_batch_start", hook) if again else (hook,):
            callbacks = (partial(Stumble, batch, place), partial(OnExceptionCheckpoint, tmp_path))
            with pytest.raises(KeyError, match="stumbled"):
                run = WHOLE.but(module=module, callbacks=callbacks, checkpoint={}, resume=again)
                fit(Pipeline(3, local=True), run, str(tmp_path))
    resumed = WHOLE.but(module=module, resume=str(end))
    whole, outcome = fit_all(pools, [(ONE, WHOLE.but(module=module)), (K2, resumed)], tmp_path)
    assert_same(outcome.ranks[0]["steps"], whole.ranks[0]["steps"][batch:])
    for key in ("state_dict", "optimizer_states", "global_step"):
        assert_same(outcome.final[key], whole.final[key], key)


class Pairs(Regression):
    """Learns from a short loader and a long one at once."""

    def split_batch(self, batch: Any) -> Any:
        rows = [part for part in batch if part is not None]
        return torch.cat([inputs for inputs, _ in rows]), torch.cat([targets for _, targets in rows])


def fit_pairs(rank: int, world_size: int, mode: str, folder: str, resume: str | None) -> list[float]:
    """Loss of every step; saves after each batch."""
    with untouched():
        torch.manual_seed(5 if resume is None else 6)
        pipeline = Pipeline(world_size) if world_size > 1 else Pipeline(2, local=True)
        loaders = [loader(Points(rows, dtype=torch.float32), 4, pipeline=pipeline, shuffle=True) for rows in (8, 20)]
        recorder = Recorder(Path(folder), tuple(range(1, 10)))
        runner = trainer(pipeline, callbacks=[recorder], max_epochs=2, enable_checkpointing=False)
        runner.fit(Pairs(), CombinedLoader(loaders, mode), ckpt_path=resume, weights_only=False)
        return recorder.steps


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
def test_of_several_loaders_each_goes_on_where_it_was(mode: str, pools: Pools, tmp_path: Path) -> None:
    """The short one has two batches: it begins again, or is over, before the epoch of five batches is."""
    whole = fit_pairs(0, 1, mode, str(tmp_path), None)
    again = tmp_path / "again"
    again.mkdir()
    for done in range(1, len(whole)):
        resume = str(tmp_path / f"{done}.ckpt")
        steps = pools(2).run(fit_pairs, mode, str(again), resume)[0] if done % 2 else None
        assert_same(steps or fit_pairs(0, 1, mode, str(again), resume), whole[done:], f"after {done}", 1e-6)


class Rows(Regression):
    """Notes which rows it is given, by their first input."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # type: ignore[override]
        self.rows.append(batch[0][:, 0].tolist())
        return super().training_step(batch, batch_idx)


class Estimating(Rows):
    """Asks for the number of steps, as OneCycleLR does, and so has the loader made before it is needed."""

    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.parametrize("case", ["sampler with a generator", "loader that is made again"])
def test_in_mid_epoch_only_the_rest_of_the_rows_is_read(case: str, tmp_path: Path) -> None:
    """Some came twice, and some not at all."""
    points = Points(20, dtype=torch.float32)

    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            if case == "loader that is made again":
                return DataLoader(points, 4, shuffle=True)
            return DataLoader(points, 4, sampler=RandomSampler(points, generator=torch.Generator().manual_seed(9)))

    def run(resume: str | None) -> list[list[float]]:
        torch.manual_seed(1 if resume is None else 2)
        module = Estimating() if case == "loader that is made again" else Rows()
        runner = trainer(
            Pipeline(2, local=True),
            callbacks=[Recorder(tmp_path, (7,))] if resume is None else [],
            max_epochs=2,
            reload_dataloaders_every_n_epochs=int(case == "loader that is made again"),
            enable_checkpointing=False,
        )
        runner.fit(module, datamodule=Data(), ckpt_path=resume, weights_only=False)
        return module.rows

    whole = run(None)
    assert run(str(tmp_path / "7.ckpt")) == whole[7:]


def test_in_mid_epoch_batches_of_another_size_are_refused(tmp_path: Path) -> None:
    """Rows were left out."""
    pipeline = Pipeline(2, local=True)
    runner = trainer(pipeline, callbacks=[Recorder(tmp_path, (2,))], max_epochs=1, enable_checkpointing=False)
    runner.fit(Regression(), loader(Points(16, dtype=torch.float32), 4, pipeline=pipeline))
    with pytest.raises(UserError, match=r"after 2 batches of 4 rows .* now a batch has 8"):
        trainer(pipeline, max_epochs=1, enable_checkpointing=False).fit(
            Regression(),
            loader(Points(16, dtype=torch.float32), 8, pipeline=pipeline),
            ckpt_path=str(tmp_path / "2.ckpt"),
            weights_only=False,
        )


def test_checkpoints_of_pipelines_open_in_plain_lightning(pools: Pools, tmp_path: Path) -> None:
    """They load, and resume: at the end of an epoch with the same end, within one wherever Lightning then starts."""
    run = WHOLE.but(
        shuffle=False,
        module={"layers": "plain", "scheduler": "epoch"},
        save_at=(3, 4),
        checkpoint={"save_top_k": -1, "save_on_train_epoch_end": True},
    )
    pipelines = (K3, Pipeline(2, data_parallel_size=2), Pipeline(2, num_virtual_stages=2), Pipeline(4, local=True))
    folders = [tmp_path / name for name in ("pipelines", "plain")]
    for folder in folders:
        folder.mkdir()
    whole, *saved = fit_all(pools, [(PLAIN, run), *((pipeline, run) for pipeline in pipelines)], folders[0])
    inputs = torch.ones(2, 4, dtype=torch.float64)
    wanted = Regression.load_from_checkpoint(whole.directory / "final.ckpt", weights_only=False).double()(inputs)
    for pipeline, outcome in zip(pipelines, saved, strict=True):
        loaded = Regression.load_from_checkpoint(outcome.directory / "final.ckpt", weights_only=False).double()
        torch.testing.assert_close(loaded(inputs), wanted, rtol=0, atol=1e-10, msg=str(pipeline))
        assert list(outcome.final["state_dict"]) == list(whole.final["state_dict"]), pipeline
    names = ("3.ckpt", "4.ckpt", "kept/epoch=0-step=3.ckpt")
    jobs = [(PLAIN, run.but(resume=str(outcome.directory / name))) for outcome in saved for name in names]
    resumed = fit_all(pools, jobs, folders[1])
    for (_, job), outcome in zip(jobs, resumed, strict=True):
        assert outcome.ranks[0]["stopped_at"] == (3, 9), job.resume
        if job.resume is not None and "kept" in job.resume:
            for key in ("state_dict", "optimizer_states", "lr_schedulers", "loops"):
                assert_same(outcome.final[key], whole.final[key], f"{job.resume}, {key}")


def test_weights_of_the_plain_model_load_by_hand(pools: Pools, tmp_path: Path) -> None:
    torch.manual_seed(3)
    plain = Regression()
    plain.configure_model()
    path = tmp_path / "weights.pt"
    assert plain.model is not None
    torch.save(plain.model.state_dict(), path)
    wanted = plain.model.state_dict()
    for rank, (names, loaded) in enumerate(pools(3).run(load_weights, str(path))):
        assert names == list(wanted), f"rank {rank}"
        assert_same(loaded, {name: wanted[name] for name in loaded}, f"rank {rank}")
        assert 0 < len(loaded) < len(wanted)


class OverwritesItsCheckpoint(pl.Callback):
    """Saves to the same path after every batch, and is killed half-way through the second time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.global_step == 2 and trainer.is_global_zero:
            LocalFileOpener.write = _write_half  # type: ignore[method-assign]
        trainer.save_checkpoint(self.path)


def _write_half(opener: LocalFileOpener, data: Any) -> int:
    opener.f.write(bytes(data)[: len(data) // 2])
    opener.f.flush()
    os._exit(77)


def overwrite(rank: int, world_size: int, path: str) -> None:
    runner = trainer(Pipeline(world_size), callbacks=[OverwritesItsCheckpoint(path)], enable_checkpointing=False)
    runner.fit(Regression(), DataLoader(Points(8, dtype=torch.float32), batch_size=4))


def test_killed_while_saving_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "same.ckpt"
    first, second = fresh_ranks(2, overwrite, str(path))
    assert first.exit_code == 77, first.stderr
    assert second.exit_code not in (0, 77) and not second.timed_out and second.seconds < 30, second.stderr
    assert load(path)["global_step"] == 1


class SaveAtOnce(pl.Callback):
    """Saves before the first batch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.path)


def test_a_checkpoint_before_the_first_batch_after_resuming_is_the_one_resumed_from(tmp_path: Path) -> None:
    """Randomness in layers is keyed by the batches of the run, and would begin again."""
    run, again = WHOLE.but(module={"layers": "dropout"}, save_at=(3,)), tmp_path / "again.ckpt"
    fit(ONE, run, str(tmp_path))
    resumed = run.but(resume=str(tmp_path / "3.ckpt"), callbacks=(partial(SaveAtOnce, again),))
    fit(ONE, resumed, str(tmp_path))
    assert load(again)["gpipe"]["batches_seen"] == 3
