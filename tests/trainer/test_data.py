"""What is read, by whom, in which order, and when: as in one process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.utilities.data import _set_sampler_epoch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from repro.errors import UserError
from repro.gpipe.reading import deal_out
from repro.gpipe.workers import end_workers_with_rank
from tests.helpers.ranks import Pools
from tests.trainer.modules import Points, Regression, hidden, target_of
from tests.trainer.running import (
    ONE,
    PLAIN,
    Pipeline,
    Recorder,
    Run,
    assert_same,
    fit_all,
    loader,
    own_seed,
    trainer,
    untouched,
)

K2, K3, K2D2 = Pipeline(2), Pipeline(3), Pipeline(2, data_parallel_size=2)


class Noisy(Points):
    """Random augmentation: other noise each time a row is read, wherever it is read."""

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[row] + torch.randn(self.inputs.shape[1], dtype=torch.float64)
        return inputs, target_of(inputs)


class Stream(IterableDataset[Any]):
    """Rows of which nobody knows how many there are."""

    def __iter__(self) -> Iterator[Any]:
        points = Points(11)
        return iter([points[row] for row in range(len(points))])


class Beside(nn.Module):
    """A layer that works on the first of two elements and passes the second on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = hidden()

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.inner(value[0]), value[1]


class Matching(Regression):
    """Compares, in the loss, the targets with what they must be for the inputs that the first stage has seen."""

    def layers(self) -> Sequence[Callable[[], nn.Module]]:
        return [Beside] * 4

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        return (batch[0], batch[0]), batch[1]

    def loss(self, outputs: Any, targets: Tensor) -> tuple[Tensor, int]:
        hidden_states, inputs = outputs
        if not torch.equal(target_of(inputs), targets):
            raise ValueError("these targets do not belong to these inputs")
        return super().loss(hidden_states, targets)

    def metrics(self, outputs: Any, targets: Tensor) -> dict[str, tuple[Tensor, int]]:
        return super().metrics(outputs[0], targets)


class Hooked(Regression):
    """Counts its batch-transfer hooks and changes the batch in them."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks = [0, 0]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.hooks[0] += 1
        return batch[0] + 1.0, batch[1]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.hooks[1] += 1
        return batch[0] * 2.0, batch[1]


SOURCES: Mapping[str, tuple[type[Regression], Callable[[], Any], dict[str, Any]]] = {
    "shuffled in workers, with noise": (Matching, partial(Noisy, 14), {"workers": 2, "shuffle": True}),
    "in order": (Matching, partial(Points, 14), {"shuffle": False}),
    "of unknown length": (Matching, Stream, {}),
    "of unknown length in a worker": (Matching, Stream, {"workers": 1}),
    "hooked": (Hooked, partial(Points, 14), {"shuffle": True}),
}


def read(rank: int, world_size: int, pipeline: Pipeline, folder: str) -> dict[str, Any]:
    """Two epochs from each source: losses, rows read and hooks run."""
    seen: dict[str, Any] = {}
    for name, (module, make, options) in SOURCES.items():
        if pipeline.data_parallel_size > 1 and make is Stream:
            continue
        with untouched():
            own_seed(11)
            recorder = Recorder(Path(folder), ())
            runner = trainer(
                pipeline, callbacks=[recorder], max_epochs=2, precision="64-true", enable_checkpointing=False
            )
            model, data = module(), make()
            runner.fit(model, loader(data, 4, pipeline=pipeline, **options))
        seen[name] = {"losses": recorder.steps, "epochs": recorder.epochs}
        seen[name]["rows"] = getattr(data, "read", None)
        seen[name]["hooks"] = getattr(model, "hooks", None)
    return seen


@pytest.mark.parametrize("pipeline", [K2, K3, Pipeline(2, num_virtual_stages=2), K2D2], ids=str)
def test_rows_and_their_order_are_those_of_one_process(pipeline: Pipeline, pools: Pools, tmp_path: Path) -> None:
    plain = read(0, 1, PLAIN, str(tmp_path))
    by_rank = pools(pipeline.processes).run(read, pipeline, str(tmp_path))
    replicas = pipeline.data_parallel_size
    for name in SOURCES:
        said = [seen[name] for seen in by_rank if name in seen]
        if not said:
            assert replicas > 1
            continue
        if replicas == 1 or "noise" not in name:
            for rank, one in enumerate(said):
                where = f"{name}, rank {rank}"
                assert_same(one["losses"], plain[name]["losses"], where)
                assert_same(one["epochs"], plain[name]["epochs"], where)
        reads = [rank % pipeline.num_stages == 0 for rank in range(pipeline.processes)]
        for key in ("rows", "hooks"):
            if plain[name][key]:
                parts = [one[key] for one in said]
                assert [part not in (0, [0, 0]) for part in parts] == reads, f"{name}: {key} by rank {parts}"
        if plain[name]["rows"]:
            assert sum(one["rows"] for one in said) == plain[name]["rows"], name


TRAINERS: Mapping[str, dict[str, Any]] = {
    "limits": {"limit_train_batches": 3, "limit_val_batches": 1},
    "share of an epoch": {"limit_train_batches": 0.5, "num_sanity_val_steps": 2},
    "validation within an epoch": {"val_check_interval": 2, "num_sanity_val_steps": -1},
    "many validations": {"val_check_interval": 1, "max_epochs": 4},
    "every other epoch": {"check_val_every_n_epoch": 2, "num_sanity_val_steps": 1},
    "same batches again": {"overfit_batches": 2},
    "one batch": {"fast_dev_run": True},
    "without inference mode": {"inference_mode": False, "detect_anomaly": True},
    "by steps": {"max_steps": 7, "max_epochs": -1, "accumulate_grad_batches": 2},
}


def test_loops_of_the_trainer_are_those_of_one_process(pools: Pools, tmp_path: Path) -> None:
    runs = [Run(shuffle=True, trainer=arguments) for arguments in TRAINERS.values()]
    pipelines = (PLAIN, K3, K2D2)
    outcomes = fit_all(pools, [(pipeline, run) for pipeline in pipelines for run in runs], tmp_path)
    plain, others = outcomes[: len(runs)], outcomes[len(runs) :]
    for number, outcome in enumerate(others):
        name, wanted = list(TRAINERS)[number % len(runs)], plain[number % len(runs)]
        for rank, said in enumerate(outcome.ranks):
            for key in ("steps", "epochs", "metrics", "stopped_at"):
                where = f"{pipelines[1 + number // len(runs)]}, {name}, rank {rank}, {key}"
                assert_same(said[key], wanted.ranks[0][key], where)


def fit_again(rank: int, world_size: int, pipeline: Pipeline, shuffle: bool, folder: str) -> dict[str, Any]:
    """One Trainer that fits twice, then another; what is alive before, in between and after."""
    alive = []

    def count() -> None:
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("gpipe")]
        for thread in ours:
            thread.join(5)  # one that has been told to end may not be there yet
        threads = sum(thread.is_alive() for thread in ours)
        alive.append((threads, len(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else 0))

    losses = []
    with untouched():
        own_seed(3)
        count()
        for _ in range(3):
            recorder = Recorder(Path(folder), ())
            runner = trainer(
                pipeline, callbacks=[recorder], max_epochs=1, precision="64-true", enable_checkpointing=False
            )
            model = Regression()
            runner.fit(model, loader(Points(10), 4, pipeline=pipeline, shuffle=shuffle))
            runner.fit_loop.max_epochs = 3
            runner.fit(model, loader(Points(10), 4, pipeline=pipeline, shuffle=shuffle))
            losses.append(recorder.steps)
            count()
    return {"losses": losses, "alive": alive}


@pytest.mark.parametrize("pipeline", [ONE, K2, K2D2], ids=str)
def test_fitting_again_goes_on_and_leaves_nothing_behind(pipeline: Pipeline, pools: Pools, tmp_path: Path) -> None:
    for shuffle in (False, True):
        wanted = fit_again(0, 1, PLAIN, shuffle, str(tmp_path))
        assert [len(losses) for losses in wanted["losses"]] == [9, 9, 9]
        processes, arguments = pipeline.processes, (pipeline, shuffle, str(tmp_path))
        by_rank = [fit_again(0, 1, *arguments)] if processes == 1 else pools(processes).run(fit_again, *arguments)
        for rank, said in enumerate(by_rank):
            assert_same(said["losses"], wanted["losses"], f"rank {rank}, shuffle={shuffle}")
            assert len(set(said["alive"])) == 1, f"rank {rank}: threads and process groups {said['alive']}"


class Collecting(Points):
    """Collects garbage in whatever process reads a row."""

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        gc.collect()
        return super().__getitem__(row)


def fit_over_garbage(rank: int, world_size: int, pipeline: Pipeline) -> int:
    """Reads in workers, within a fit and without, while what is left of a fit before has not been collected."""
    gc.collect()
    gc.disable()
    try:
        with untouched():
            for _ in range(2):
                runner = trainer(pipeline, max_epochs=1, precision="64-true", enable_checkpointing=False)
                runner.fit(Regression(), loader(Collecting(8), 4, pipeline=pipeline, workers=1))
        return len(list(loader(Collecting(8), 4, pipeline=PLAIN, workers=1)))
    finally:
        gc.enable()


@pytest.mark.parametrize("pipeline", [K2, K2D2], ids=str)
def test_workers_do_not_collect_the_garbage_of_their_rank(pipeline: Pipeline, pools: Pools) -> None:
    """Process groups of an earlier run among it: their destructors crash or hang in a forked process."""
    assert set(pools(pipeline.processes).run(fit_over_garbage, pipeline)) == {2}


class OwnProcess(Dataset[int]):
    """Rows that tell who reads them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def read_and_be_killed(path: Path) -> None:
    """Reads in a worker as a rank does, and dies with the worker at rest."""
    loader = DataLoader(OwnProcess(), 2, num_workers=1, multiprocessing_context="fork")
    end_workers_with_rank(loader)
    batches = iter(loader)
    path.write_text(str(int(next(batches)[0])))
    os.kill(os.getpid(), signal.SIGKILL)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_of_a_killed_rank_end_at_once(tmp_path: Path) -> None:
    """They look for their parent every five seconds, and hold its connections open meanwhile: nobody noticed."""
    told = tmp_path / "worker"
    rank = multiprocessing.get_context("forkserver").Process(target=read_and_be_killed, args=(told,))
    rank.start()
    rank.join()
    worker, begun = int(told.read_text()), time.monotonic()
    while is_running(worker) and time.monotonic() < begun + 3:
        time.sleep(0.02)
    assert not is_running(worker)


class ByEpoch(Sampler[int]):
    """Another order in every epoch that it is told of."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(8, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self) -> int:
        return 8


def test_replicas_share_an_order_that_is_another_in_every_epoch() -> None:
    """With replicas the sampler was not told of the epoch."""
    rows = torch.arange(8)
    whole = DataLoader(rows, batch_size=2, sampler=ByEpoch())
    shares = [deal_out(DataLoader(rows, batch_size=2, sampler=ByEpoch()), replica, 2) for replica in range(2)]
    for epoch in range(3):
        for dealt in (whole, *shares):
            _set_sampler_epoch(dealt, epoch)
        alternating = [batch.tolist() for pair in zip(*shares, strict=True) for batch in pair]
        assert alternating == [batch.tolist() for batch in whole]


class Shifted(DataLoader[Any]):
    """Gives its batches in a way of its own."""

    def __iter__(self) -> Any:
        return (batch + 1 for batch in super().__iter__())


def test_replicas_refuse_a_loader_that_they_would_have_to_replace() -> None:
    """What it did to its batches was left out."""
    with pytest.raises(UserError, match="Shifted has an __iter__ of its own"):
        deal_out(Shifted(torch.arange(8), batch_size=2), 0, 2)
