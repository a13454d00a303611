"""What cannot work is told before any work starts, in one message that names what to change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from repro.errors import UserError
from repro.gpipe import GPipeStrategy, PipelineModule
from repro.gpipe.launcher import CheckingLauncher
from tests.helpers.ranks import fresh_ranks
from tests.trainer.modules import WIDTH, Points, Regression, Shift, head, hidden, norm
from tests.trainer.running import QUIET, Pipeline, loader, trainer


class Outside(Regression):
    """Has a parameter that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))


class LateOutside(Regression):
    """Makes such a parameter when the layers are made."""

    def configure_model(self) -> None:
        super().configure_model()
        self.temperature = nn.Parameter(torch.ones(1))


class ByHand(Regression):
    """Optimizes by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class LogsInLoss(Regression):
    """Logs where only the last stage is."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        self.log("inner", outputs.mean())
        return super().loss(outputs, targets)


class LogsInMetrics(Regression):
    """Logs where only the last stage is."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, int]]:
        self.log("inner", outputs.mean())
        return super().metrics(outputs, targets)


class Made(Regression):
    """Of the layers given."""

    def __init__(self, *factories: Callable[[], Any]) -> None:
        super().__init__()
        self._layers = factories


class NoLoss(Made):
    """Forgets to define the loss."""

    loss = PipelineModule.loss  # type: ignore[assignment]


class Unequal(Dataset[Any]):
    """Batches whose inputs and targets disagree in the number of rows: the collate function drops one."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> int:
        return row


def drop_a_target(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.ones(len(rows), 4), torch.ones(len(rows) - 1, 1)


def synchronised() -> nn.Module:
    return nn.SyncBatchNorm(4)


def twice(layer: nn.Module) -> list[Callable[[], nn.Module]]:
    return [lambda: layer, lambda: layer]


def tied() -> tuple[Callable[[], nn.Module], ...]:
    first = hidden()
    return lambda: first, Shift, lambda: first


# The module, options of the strategy, devices, and what the message must name.
BEFORE_START: dict[str, tuple[Callable[[], pl.LightningModule], dict[str, Any], int, tuple[str, ...]]] = {
    "an ordinary module": (BoringModel, {}, 2, ("BoringModel", "PipelineModule", "from_sequential")),
    "by hand": (ByHand, {}, 2, ("automatic_optimization=False",)),
    "outside": (Outside, {}, 2, ("temperature", "layers()")),
    "more stages than layers": (Regression, {"num_stages": 6}, 6, ("num_stages=6", "5 layers")),
    "more virtual stages": (Regression, {"num_stages": 2, "num_virtual_stages": 3}, 2, ("num_virtual_stages=3", "5")),
    "partition": (Regression, {"num_stages": 2, "partition": [2, 2]}, 2, ("[2, 2]", "4", "5")),
    "partition of inferred stages": (Regression, {"partition": [2, 2, 1]}, 2, ("[2, 2, 1]", "2")),
    "processes": (Regression, {"num_stages": 3}, 2, ("num_stages=3", "has 2", "devices=3")),
    "replicas": (Regression, {"num_stages": 2, "data_parallel_size": 2}, 3, ("data_parallel_size=2", "has 3", "4")),
    "replicas alone": (
        Regression,
        {"num_stages": 2, "data_parallel_size": 2},
        1,
        ("data_parallel_size=2", "has 1", "4"),
    ),
    "devices of stages": (Regression, {"num_stages": 2, "virtual_devices": ["cpu"]}, 1, ("virtual_devices", "2")),
}


@pytest.mark.parametrize("name", BEFORE_START)
def test_told_before_processes_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options, devices, parts = BEFORE_START[name]

    def start(launcher: CheckingLauncher) -> None:
        raise AssertionError("processes were started")

    monkeypatch.setattr(CheckingLauncher, "_call_children_scripts", start)
    runner = pl.Trainer(accelerator="cpu", devices=devices, strategy=GPipeStrategy(**options), max_epochs=1, **QUIET)
    with pytest.raises(UserError) as caught:
        runner.fit(make(), DataLoader(Points(8, dtype=torch.float32), 4))
    for part in parts:
        assert part in str(caught.value), str(caught.value)


OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "schedule": ({"schedule": "gpip"}, ("gpip", "gpipe")),
    "remat": ({"remat": "sometimes"}, ("sometimes", "always", "except_last", "never")),
    "rule": ({"partition": "flop"}, ("flop", "flops", "parameters")),
    "no micro-batches": ({"num_micro_batches": 0}, ("num_micro_batches", "0")),
    "no stages": ({"num_stages": 0}, ("num_stages", "0")),
    "no virtual stages": ({"num_virtual_stages": 0}, ("num_virtual_stages", "0")),
    "no replicas": ({"data_parallel_size": 0}, ("data_parallel_size=0",)),
    "partition of other length": ({"num_stages": 2, "partition": [1, 1, 3]}, ("[1, 1, 3]", "2")),
    "empty stage": ({"num_stages": 2, "partition": [5, 0]}, ("[5, 0]",)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_told_when_the_strategy_is_made(name: str) -> None:
    options, parts = OPTIONS[name]
    with pytest.raises(UserError) as caught:
        GPipeStrategy(**options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


AT_SET_UP: dict[str, tuple[Callable[[], pl.LightningModule], dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "late outside": (LateOutside, {}, {}, ("temperature", "layers()")),
    "SyncBatchNorm": (lambda: Made(hidden, synchronised, head), {}, {}, ("SyncBatchNorm", "nn.BatchNorm")),
    "sync_batchnorm": (lambda: Made(hidden, norm, head), {}, {"sync_batchnorm": True}, ("sync_batchnorm=False",)),
    "tied": (lambda: Made(*tied()), {}, {}, ("share a parameter", "layers 0", "2")),
    "shared statistics": (
        lambda: Made(hidden, *twice(nn.BatchNorm1d(WIDTH, affine=False)), head),
        {},
        {},
        ("share running statistics", "layers 1", "2"),
    ),
    "lazy": (lambda: Made(hidden, lambda: nn.LazyLinear(4), head), {}, {}, ("layer 1 (LazyLinear)", "weight", "sizes")),
    "no module": (lambda: Made(hidden, lambda: 3), {}, {}, ("layers()[1]", "int")),
    "rule without example": (Regression, {"partition": "flops"}, {}, ("partition='flops'", "example_inputs()")),
}


@pytest.mark.parametrize("name", AT_SET_UP)
def test_told_at_set_up(name: str) -> None:
    make, options, arguments, parts = AT_SET_UP[name]
    strategy = GPipeStrategy(num_stages=2, num_micro_batches=2, **options)
    runner = pl.Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=1, **QUIET, **arguments)
    data = Points(8, dtype=torch.float32)
    with pytest.raises(UserError) as caught:
        runner.fit(make(), DataLoader(data, 4))
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert data.read == 0


IN_A_STEP: dict[str, tuple[Callable[[], pl.LightningModule], tuple[str, ...]]] = {
    "log in loss": (LogsInLoss, ("self.log('inner'", "metrics()")),
    "log in metrics": (LogsInMetrics, ("self.log('inner'", "metrics()")),
    "no loss": (lambda: NoLoss(hidden, head), ("must define loss",)),
}


@pytest.mark.parametrize("name", IN_A_STEP)
def test_told_in_the_first_step(name: str) -> None:
    make, parts = IN_A_STEP[name]
    runner = trainer(Pipeline(2, local=True), max_epochs=1, enable_checkpointing=False)
    with pytest.raises(Exception) as caught:
        runner.fit(make(), DataLoader(Points(8, dtype=torch.float32), 4))
    message = f"{caught.value} {caught.value.__cause__}"
    for part in parts:
        assert part in message, message


class Look(pl.Callback):
    """Keeps the weights with which training starts."""

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.seen = copy.deepcopy(module.model.state_dict())


def test_a_module_that_is_cut_otherwise_keeps_its_weights() -> None:
    module, look = Regression(), Look()
    data = DataLoader(Points(8, dtype=torch.float32), 4)
    for stages in (2, 3):
        before = None if module.model is None else copy.deepcopy(module.model.state_dict())
        runner = trainer(Pipeline(stages, local=True), max_epochs=1, enable_checkpointing=False, callbacks=[look])
        runner.fit(module, data)
        if before is not None:
            assert all(torch.equal(value, before[name]) for name, value in look.seen.items())


def fit_unequal(rank: int, world_size: int) -> None:
    data = DataLoader(Unequal(), batch_size=4, collate_fn=drop_a_target)
    trainer(Pipeline(world_size), max_epochs=1, enable_checkpointing=False).fit(Regression(), data)


def fit_logging(rank: int, world_size: int) -> None:
    pipeline = Pipeline(world_size)
    data = loader(Points(8, dtype=torch.float32), 4, pipeline=pipeline)
    trainer(pipeline, max_epochs=1, enable_checkpointing=False).fit(LogsInMetrics(), data)


def fit_iterable(rank: int, world_size: int) -> None:
    data = DataLoader(iter([]), batch_size=None)  # type: ignore[arg-type]
    pipeline = Pipeline(1, data_parallel_size=world_size)
    trainer(pipeline, max_epochs=1, enable_checkpointing=False).fit(Regression(), data)


def fit_overflowing(rank: int, world_size: int) -> None:
    from tests.trainer.running import Run, fit

    run = Run(module={"layers": "frozen_first"}, trainer={"precision": "16-scaled"})
    fit(Pipeline(world_size, partition=(2, 3)), run, "/nonexistent")


class Stumbles(nn.Linear):
    """Fails in its backward."""

    def forward(self, value: Tensor) -> Tensor:
        outputs = super().forward(value)
        if outputs.requires_grad:
            outputs.register_hook(self.stumble)
        return outputs

    def stumble(self, gradient: Tensor) -> None:
        raise KeyError("stumbled")


class Falls(pl.Callback):
    """Fails on rank 1 after a batch."""

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.global_rank == 1:
            raise KeyError("fallen")


def fit_failing(world_size: int, *callbacks: pl.Callback, module: PipelineModule, **arguments: Any) -> None:
    pipeline = Pipeline(world_size)
    data = loader(Points(8, dtype=torch.float32), 4, pipeline=pipeline)
    trainer(pipeline, max_epochs=2, callbacks=list(callbacks), **arguments).fit(module, data)


def fit_clipping(rank: int, world_size: int) -> None:
    """The other rank waits in the norm over all stages."""
    module = Made(lambda: Stumbles(4, 4), hidden, hidden, head)
    fit_failing(world_size, module=module, gradient_clip_val=1.0, enable_checkpointing=False)


def fit_saving(rank: int, world_size: int) -> None:
    """A callback wants to save what the failed rank has a part of."""
    fit_failing(world_size, OnExceptionCheckpoint("/nonexistent"), Falls(), module=Regression())


def fit_saving_a_failed_step(rank: int, world_size: int) -> None:
    module = Made(lambda: Stumbles(4, 4), hidden, hidden, head)
    fit_failing(world_size, OnExceptionCheckpoint("/nonexistent"), module=module)


EVERYWHERE = {
    fit_unequal: ("targets has 3 rows", "inputs has 4"),
    fit_logging: ("self.log('inner'", "metrics()"),
    fit_iterable: ("data_parallel_size=2", "DataLoader"),
    fit_clipping: ("rank 0, stage 0, micro-batch", "stumbled"),
    fit_saving: ("rank 1", "fallen"),
    fit_saving_a_failed_step: ("rank 0, stage 0, micro-batch", "stumbled"),
    fit_overflowing: ("holds no parameter that learns", "bf16-mixed"),
}


@pytest.mark.parametrize("function", EVERYWHERE)
def test_told_on_every_rank_within_seconds(function: Callable[..., None]) -> None:
    for rank, end in enumerate(fresh_ranks(2, function, timeout=40)):
        assert end.exit_code not in (0, None) and not end.timed_out, f"rank {rank}: {end.stderr}"
        for part in EVERYWHERE[function]:
            assert part in end.stderr, f"rank {rank}: {end.stderr}"


def test_the_strategy_by_name() -> None:
    """One stage in one process; ``processes / D`` stages where there are more."""
    module = Regression()
    runner = pl.Trainer(
        accelerator="cpu", devices=1, strategy="gpipe", max_epochs=1, enable_checkpointing=False, **QUIET
    )
    runner.fit(module, DataLoader(Points(8, dtype=torch.float32), 4))
    assert isinstance(runner.strategy, GPipeStrategy)
    assert (runner.strategy.num_stages, runner.strategy.num_micro_batches, runner.global_step) == (1, 4, 2)
