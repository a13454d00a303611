"""For each heading of docs/restrictions.md what shows that it is true."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.trainer.connectors import accelerator_connector
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from repro.gpipe import ExponentialMovingAverage, GPipeStrategy, PipelineModule, is_recomputing
from tests.helpers.ranks import Pools

_STRATEGY = ("remat", "schedule", "data_parallel_size", "partition", "trace", "stage_memory", "num_virtual_stages")
_QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
    "accelerator": "cpu",
}


class Regression(PipelineModule):
    """Layers that exist, and a squared error."""

    def __init__(self, *layers: nn.Module, optimizer: Callable[..., Any] = torch.optim.Adam) -> None:
        super().__init__()
        self._given = layers or (nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
        self._optimizer = optimizer

    def layers(self) -> list[Callable[[], nn.Module]]:
        return [lambda layer=layer: layer for layer in self._given]

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        return (outputs - targets).square().sum(), len(targets)

    def configure_optimizers(self) -> Any:
        return self._optimizer(self.parameters())


class Forces(nn.Linear):
    """Differentiates within its forward."""

    def forward(self, value: Tensor) -> Tensor:
        made = super().forward(value)
        (force,) = torch.autograd.grad(made.square().sum(), self.weight, create_graph=True)
        return made + force.sum()


class Static(nn.Linear):
    """Fills the same memory for each micro-batch."""

    out: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        made = super().forward(value).detach()
        if self.out is None:
            self.out = made
        return self.out.copy_(made)


class WithConstant(nn.Linear):
    """Hands on a value that wants no gradient."""

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(value), value[:, :1].detach().abs()


class UsesConstant(nn.Linear):
    """Has no derivative by its second input."""

    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        states, order = value
        return super().forward(states) * torch.special.gammainc(order + 1, torch.ones_like(order))


class ToDict(nn.Module):
    def forward(self, value: Tensor) -> dict[str, Tensor]:
        return {"value": value}


class TwoArguments(nn.Module):
    def forward(self, value: Tensor, skip: Tensor) -> Tensor:
        return value + skip


class Widening(nn.Module):
    """Makes the second micro-batch wider than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        return value if self.calls == 1 else torch.cat([value, value], dim=1)


class Doubling(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.mul_(2)


class Drawing(nn.Module):
    """Draws with Python's ``random``, counts its calls, and those that say that they are recomputations."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []
        self.again = 0

    def forward(self, value: Tensor) -> Tensor:
        self.drawn.append(random.random())
        self.again += is_recomputing()
        return value * self.drawn[-1]


class Choosing(nn.Linear):
    """Does what depends on a value."""

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) if bool((value > 0).any()) else value


class WithExample(Regression):
    """Shows what a batch looks like."""

    def example_inputs(self) -> Tensor:
        return torch.zeros(2, 4)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.ones(4), torch.ones(1))] * 8)


def loader(rows: int = 16, batch_size: int = 8) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 4, generator=draw)
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=batch_size)


def batches(*given: Any) -> DataLoader[Any]:
    return DataLoader(list(given), batch_size=None)


def trainer(num_stages: int = 2, devices: int = 1, num_micro_batches: int = 4, **options: Any) -> pl.Trainer:
    chosen = {name: options.pop(name) for name in _STRATEGY if name in options}
    strategy = GPipeStrategy(num_stages=num_stages, num_micro_batches=num_micro_batches, **chosen)
    return pl.Trainer(strategy=strategy, devices=devices, **{"max_steps": 2, **_QUIET, **options})


def fit(module: pl.LightningModule, data: Any = None, **options: Any) -> pl.Trainer:
    runner = trainer(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner.fit(module, loader() if data is None else data)
    return runner


def outside() -> None:
    module = Regression()
    module.scale = nn.Parameter(torch.ones(1))
    fit(module)


def tied() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    fit(Regression(first, second, nn.Linear(4, 1)))


def compiled() -> None:
    states = []
    for wrap in (lambda layer: layer, lambda layer: torch.compile(layer, backend="aot_eager")):
        torch.manual_seed(1)
        layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1)
        module = Regression(*map(wrap, layers))
        torch.manual_seed(2)
        fit(module)
        states.append({name.replace("_orig_mod.", ""): value for name, value in module.state_dict().items()})
    torch.testing.assert_close(*states, rtol=0, atol=1e-6)


class Checkpointed(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return checkpoint(super().forward, value, use_reentrant=True)


def unsplit() -> None:
    states = []
    for layer in (nn.Linear, Checkpointed):
        torch.manual_seed(1)
        module = Regression(nn.Linear(4, 4), nn.Tanh(), layer(4, 4), nn.Linear(4, 1))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer(schedule="zb-h1", remat="never").fit(module, loader())
        assert any("allows no split of the backward" in str(one.message) for one in told) == (layer is Checkpointed)
        states.append(module.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=1e-6)


def notebook() -> None:
    with mock.patch.object(accelerator_connector, "_IS_INTERACTIVE", True):
        trainer(devices=1)
        trainer(devices=2)


def manual() -> None:
    module = Regression()
    module.automatic_optimization = False
    fit(module)


class LoggingFromLoss(Regression):
    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        self.log("x", 1.0)
        return super().loss(outputs, targets)


def draws_again() -> None:
    for remat, draws in (("always", 2), ("never", 1)):
        layer = Drawing()
        fit(Regression(nn.Linear(4, 4), layer, nn.Linear(4, 1)), num_micro_batches=1, max_steps=1, remat=remat)
        assert len(set(layer.drawn)) == draws


def counts_twice() -> None:
    layer = Drawing()
    fit(Regression(nn.Linear(4, 4), layer, nn.Linear(4, 1)), max_steps=1)
    assert (len(layer.drawn), layer.again) == (8, 4)


def _after_a_step(remat: str, make: Callable[[], nn.Module]) -> dict[str, Any]:
    torch.manual_seed(1)
    module = Regression(make(), nn.Tanh(), nn.Linear(64, 1), optimizer=partial(torch.optim.SGD, lr=0.1))
    fit(module, max_steps=1, remat=remat)
    return {name: value for name, value in module.named_parameters() if "weight" in name}


def moves_on() -> None:
    for make, same in ((partial(nn.Linear, 4, 64), True), (lambda: spectral_norm(nn.Linear(4, 64)), False)):
        always, never = (_after_a_step(remat, make) for remat in ("always", "never"))
        assert all(torch.equal(always[name], never[name]) for name in always) == same


class Listening(nn.Linear):
    """Keeps the gradients that pass by."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.heard: list[Tensor] = []

    def forward(self, value: Tensor) -> Tensor:
        outputs = super().forward(value)
        if outputs.requires_grad:
            outputs.register_hook(self.heard.append)
        return outputs


class Halved(Regression):
    """A loss whose count is not that of the rows."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        total, rows = super().loss(outputs, targets)
        return total, 2 * rows


def on_the_way() -> None:
    for kind, times in ((Regression, 1.0), (Halved, 2.0)):
        torch.manual_seed(1)
        layer = Listening()
        module = kind(layer, nn.Linear(4, 1))
        inputs, targets = next(iter(loader()))
        total, count = module.loss(nn.Sequential(*module._given)(inputs), targets)
        (total / count).backward()
        data = DataLoader(TensorDataset(inputs, targets), len(inputs))
        fit(module, data, max_steps=1, num_micro_batches=1)
        torch.testing.assert_close(layer.heard[1], times * layer.heard[0])


class Looking(pl.Callback):
    """Compares the norm that a rank sees with the one over all stages."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int) -> None:
        self.seen["placeholder"] = trainer.strategy.is_placeholder(batch)

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Any) -> None:
        own = [parameter for parameter in module.parameters() if parameter.grad is not None]
        self.seen["named"] = len(list(module.parameters()))
        self.seen["own"] = len(own)
        self.seen["own norm"] = float(torch.nn.utils.get_total_norm([p.grad for p in own]))
        self.seen["norm"] = float(trainer.strategy.clip_grad_norm(own, 1e9))


def _look(rank: int, world_size: int) -> dict[str, Any]:
    looking = Looking()
    fit(Regression(), devices=2, max_steps=1, callbacks=[looking])
    return looking.seen


def hooks(pools: Pools) -> None:
    first, second = pools(2).run(_look)
    assert (first["placeholder"], second["placeholder"]) == (False, True)
    assert first["named"] == second["named"] == first["own"] + second["own"]
    assert first["norm"] == second["norm"]
    combined = (first["own norm"] ** 2 + second["own norm"] ** 2) ** 0.5
    assert min(first["own norm"], second["own norm"]) < combined
    assert abs(first["norm"] - combined) < 1e-5 * combined


def _shapes(rank: int, world_size: int) -> None:
    layers = nn.Linear(4, 4), Widening(), nn.Identity(), nn.Linear(4, 1)
    fit(Regression(*layers), devices=2, partition=[2, 2])


def _lbfgs(rank: int, world_size: int) -> None:
    fit(Regression(optimizer=torch.optim.LBFGS), devices=2)


def _ema(rank: int, world_size: int) -> None:
    fit(Regression(), devices=2, callbacks=[ExponentialMovingAverage()])
    fit(Regression(), devices=2, callbacks=[EMAWeightAveraging()])


def ema(pools: Pools) -> None:
    fit(Regression(), callbacks=[EMAWeightAveraging()])
    pools(2).run(_ema)


def _without_parameters(rank: int, world_size: int) -> None:
    layers = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1), nn.Tanh()
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    fit(Regression(*layers), devices=2, partition=[3, 1], plugins=[precision])


def _call_afterwards(rank: int, world_size: int) -> None:
    module = Regression()
    fit(module, devices=2)
    module(torch.zeros(2, 4))


def _predict(rank: int, world_size: int) -> list[Any]:
    return [outputs is None for outputs in trainer(devices=2).predict(Regression(), loader())]


def predict(pools: Pools) -> None:
    assert pools(2).run(_predict) == [[False, False], [True, True]]


def _stream(rank: int, world_size: int) -> None:
    fit(Regression(), DataLoader(Stream(), batch_size=4), num_stages=1, devices=2, data_parallel_size=2)


def _sparse(rank: int, world_size: int) -> None:
    layers = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1)
    data = DataLoader(TensorDataset(torch.arange(8), torch.ones(8, 1)), batch_size=2)
    fit(Regression(*layers, optimizer=torch.optim.SparseAdam), data, num_stages=1, devices=2, data_parallel_size=2)


def few_rows() -> None:
    module, counted = Regression(), []
    module.on_train_batch_end = lambda *_: counted.append(  # type: ignore[method-assign]
        sum(event.kind == "F" and event.stage == 0 for event in module.trainer.strategy.gather_trace())
    )
    fit(module, loader(rows=3), num_micro_batches=8, max_steps=1, trace=True)
    assert counted == [3]


def shared_memory() -> None:
    losses = set()
    for remat in ("always", "never"):
        torch.manual_seed(1)
        inputs = torch.ones(8, 4)
        module = Regression(Doubling(), nn.Linear(4, 4))
        runner = fit(module, batches((inputs, inputs)), num_stages=1, max_steps=1, remat=remat)
        losses.add(round(float(runner.callback_metrics["train_loss"]), 4))
    assert len(losses) == 2


def in_place() -> None:
    for runner in (trainer(), pl.Trainer(**_QUIET)):
        inputs = torch.ones(8, 4)
        layers = Doubling(), nn.Linear(4, 4), nn.Linear(4, 1)
        runner.validate(Regression(*layers), batches((inputs, torch.ones(8, 1))), verbose=False)
        assert inputs.eq(2).all()


@dataclass(frozen=True)
class Case:
    """How a restriction shows.

    Attributes:
        here: runs in this process.
        with_pools: gets the pools.
        on_two: runs on two ranks.
    """

    here: Callable[[], Any] | None = None
    with_pools: Callable[[Pools], Any] | None = None
    on_two: Callable[[int, int], Any] | None = None

    def run(self, pools: Pools) -> None:
        """Shows it: raises the error of the page, or asserts what the page says."""
        if self.here is not None:
            self.here()
        if self.with_pools is not None:
            self.with_pools(pools)
        if self.on_two is not None:
            pools(2).run(self.on_two)


_LINEARS = nn.Linear(4, 4), nn.Linear(4, 1)

CASES: Mapping[str, tuple[Case, ...]] = {
    "A model that is not a sequence": (Case(lambda: fit(BoringModel())),),
    "Skips over stages": (Case(lambda: fit(Regression(nn.Linear(4, 4), TwoArguments(), nn.Linear(4, 1)))),),
    "Tied weights": (Case(tied),),
    "Parameters outside the layers": (Case(outside),),
    "Dictionaries and nested tuples between layers": (
        Case(lambda: fit(Regression(nn.Linear(4, 4), ToDict(), nn.Linear(4, 1)))),
    ),
    "Values that want no gradient": (Case(lambda: fit(Regression(WithConstant(4, 4), UsesConstant(4, 1)))),),
    "Layers whose sizes come from the data": (
        Case(lambda: fit(Regression(nn.Linear(4, 4), nn.LazyLinear(4), nn.Linear(4, 1)))),
    ),
    "Shapes that differ within a step": (Case(on_two=_shapes),),
    "SyncBatchNorm, and InstanceNorm with running statistics": (
        Case(lambda: fit(Regression(nn.Linear(4, 4), nn.SyncBatchNorm(4), nn.Linear(4, 1)))),
        Case(lambda: fit(Regression(nn.InstanceNorm1d(4, track_running_stats=True), *_LINEARS))),
    ),
    "BatchNorm over micro-batches of one row": (
        Case(lambda: fit(Regression(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), num_micro_batches=8)),
    ),
    "Random numbers from elsewhere": (Case(draws_again),),
    "Gradients that are changed on the way": (Case(on_the_way),),
    "Gradients inside a layer": (Case(lambda: fit(Regression(Forces(4, 4), nn.Linear(4, 1)))),),
    "Layers that fill their memory again": (Case(lambda: fit(Regression(Static(4, 4), nn.Linear(4, 1)))),),
    "Layers that count or change themselves": (Case(counts_twice), Case(moves_on)),
    "Compiled layers": (Case(compiled),),
    "Manual optimization": (Case(manual),),
    "Logging from the loss": (Case(lambda: fit(LoggingFromLoss())),),
    "What a rank sees in hooks and callbacks": (Case(with_pools=hooks),),
    "Optimizers that combine all parameters": (Case(on_two=_lbfgs),),
    "Callbacks that copy the whole model": (Case(with_pools=ema),),
    "16-mixed where a process has no parameters that learn": (Case(on_two=_without_parameters),),
    "The module after a run in processes": (Case(on_two=_call_afterwards),),
    "Predictions": (Case(with_pools=predict),),
    "Replicas and iterable data sets": (Case(on_two=_stream),),
    "Replicas and sparse gradients": (Case(on_two=_sparse),),
    "Elements without rows, or with different rows": (
        Case(lambda: fit(Regression(), batches((torch.ones(4, 4), torch.tensor(1.0))))),
        Case(lambda: fit(Regression(), batches((torch.ones(4, 4), torch.ones(3, 1))))),
    ),
    "A batch with fewer rows than M": (Case(few_rows),),
    "In-place layers and your batch": (Case(in_place), Case(shared_memory)),
    "Processes, stages, layers": (
        Case(lambda: fit(Regression(), num_stages=4, devices=2)),
        Case(lambda: fit(Regression(), num_stages=5)),
    ),
    "A limit on the memory of stages": (
        Case(lambda: fit(WithExample(), stage_memory=8, num_virtual_stages=2)),
        Case(lambda: fit(WithExample(Choosing(4, 4), nn.Linear(4, 1)), stage_memory=1, partition="uniform")),
        Case(lambda: fit(WithExample(), stage_memory=1e-7)),
    ),
    "Notebooks": (Case(notebook),),
    "Schedules that are only simulated": (
        Case(lambda: fit(Regression(), schedule="chimera")),
        Case(lambda: fit(Regression(), schedule="pipedream")),
    ),
    "Layers whose backward cannot be split": (Case(unsplit),),
}
