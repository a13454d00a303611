"""Frozen layers, stages without parameters, unused parameters, groups, optimizers, and an own training_step."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from repro.errors import UserError
from repro.gpipe import is_recomputing
from tests.helpers.ranks import Pools
from tests.trainer.modules import Points, Regression
from tests.trainer.running import (
    ONE,
    PLAIN,
    Outcome,
    Pipeline,
    Run,
    assert_same,
    fit_all,
    load,
    loader,
    trainer,
    untouched,
)

MIDDLE = Pipeline(3, partition=(2, 2, 1))
"""Stage 1 is layers 2 and 3: frozen, or without parameters; stage 0 is layers 0 and 1."""
LOCAL = Pipeline(2, local=True)
PIPELINES = (
    ONE,
    Pipeline(2, partition=(2, 3)),
    MIDDLE,
    Pipeline(3, partition=(2, 2, 1), local=True),
    Pipeline(2, partition=(2, 1, 1, 1), num_virtual_stages=2, remat="never"),
    Pipeline(2, partition=(2, 3), data_parallel_size=2),
)
CLIPPED = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_epochs": 2}
BY_VALUE = {**CLIPPED, "gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}


class Scaled(Regression):
    """Wraps the training step and gives the loss in a dict."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # type: ignore[override]
        loss: Tensor = super().training_step(batch, batch_idx)
        return {"loss": 2.5 * loss + loss.detach()}


class Whole(Regression):
    """All parameters in one group, frozen ones included."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05, weight_decay=0.1)


class Unfreezing(Regression):
    """A frozen layer learns from the second epoch on."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.requires_grad_(True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05, weight_decay=0.1)


class Growing(Regression):
    """Gives the optimizer the first layers in the second epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            assert self.model is not None
            thawed = [p for layer in self.model[:2] for p in layer.requires_grad_(True).parameters()]
            self.trainer.optimizers[0].add_param_group({"params": thawed, "lr": 0.01})


class Centred(Regression):
    """Keeps a mean of its own over what the last stage makes."""

    def __init__(self, layers: str = "plain") -> None:
        super().__init__(layers)
        self.register_buffer("center", torch.zeros(1))

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        if self.training and not is_recomputing():
            self.center += outputs.detach().sum(0)
        return super().loss(outputs, targets)


class OneCycle(Regression):
    """A schedule that must know beforehand how many steps there will be."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


RUNS = {
    "frozen first stage": Run(module={"layers": "frozen_first"}, trainer=CLIPPED),
    "frozen first stage, by value": Run(module={"layers": "frozen_first"}, trainer=BY_VALUE),
    "frozen middle": Run(module={"layers": "frozen_middle", "optimizer": "momentum"}, trainer=CLIPPED),
    "frozen in the optimizer": Run(kind=Whole, module={"layers": "frozen_middle"}, trainer=CLIPPED),
    "unfreezing": Run(kind=Unfreezing, module={"layers": "frozen_first"}, trainer=CLIPPED),
    "empty stage": Run(module={"layers": "empty_stage"}, trainer=CLIPPED),
    "empty stage, by value": Run(module={"layers": "empty_stage", "optimizer": "momentum"}, trainer=BY_VALUE),
    "unused": Run(kind=Whole, module={"layers": "unused"}, trainer=CLIPPED),
    "momentum": Run(module={"optimizer": "momentum", "scheduler": "step"}, trainer={"max_epochs": 2}),
    "plain gradient descent": Run(module={"optimizer": "sgd"}, trainer={"max_epochs": 2}),
    "growing": Run(kind=Growing, module={"layers": "frozen_first"}, trainer=CLIPPED),
    "state from the start": Run(module={"optimizer": "adagrad"}, trainer={"max_epochs": 2}),
    "one cycle": Run(kind=OneCycle, trainer={"accumulate_grad_batches": 2, "max_epochs": 2}),
    "own training step": Run(kind=Scaled, trainer={"accumulate_grad_batches": 2, "max_epochs": 2}),
}


@pytest.fixture(scope="module")
def plain(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """Each run in plain Lightning."""
    return fit_all(pools, [(PLAIN, run) for run in RUNS.values()], tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_parameters_end_where_plain_lightning_ends(
    pipeline: Pipeline, plain: list[Outcome], pools: Pools, tmp_path: Path
) -> None:
    outcomes = fit_all(pools, [(pipeline, run) for run in RUNS.values()], tmp_path)
    for name, wanted, got in zip(RUNS, plain, outcomes, strict=True):
        for rank, said in enumerate(got.ranks):
            assert_same(said["steps"], wanted.ranks[0]["steps"], f"{name}, rank {rank}")
        for key in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert_same(got.final[key], wanted.final[key], f"{name}, {key}")


def test_what_is_frozen_or_unused_stays(pools: Pools, tmp_path: Path) -> None:
    """Weight decay would move a parameter that has a gradient of zeros in place of none."""
    frozen, unused = fit_all(pools, [(MIDDLE, RUNS["frozen in the optimizer"]), (MIDDLE, RUNS["unused"])], tmp_path)
    assert unused.final["state_dict"]["model.0.idle"].tolist() == [1.0] * 3
    torch.manual_seed(5)
    fresh = Regression("frozen_middle").double()
    torch.set_default_dtype(torch.float64)
    try:
        fresh.configure_model()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, value in fresh.state_dict().items():
        moved = not torch.equal(value, frozen.final["state_dict"][name])
        assert moved == (name.split(".")[1] not in ("2", "3")), name


@pytest.mark.parametrize(
    "pipeline", [Pipeline(2), Pipeline(2, num_virtual_stages=2, schedule="zb-v", partition=(2, 1, 1, 1))], ids=str
)
def test_what_the_module_itself_holds_is_saved_from_the_last_stage(
    pipeline: Pipeline, pools: Pools, tmp_path: Path
) -> None:
    """With zb-v that is on the first rank; it used to be taken from the last rank."""
    run = Run(kind=Centred, trainer={"max_epochs": 1})
    plain, got = fit_all(pools, [(PLAIN, run), (pipeline, run)], tmp_path)
    assert plain.final["state_dict"]["center"].item() != 0
    assert_same(got.final["state_dict"], plain.final["state_dict"])


class Stranger(Regression):
    """Makes a parameter in the second epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            assert self.model is not None
            self.model[0].extra = torch.nn.Parameter(torch.ones(1))
            optimizer = self.optimizers()
            assert not isinstance(optimizer, list)
            optimizer.optimizer.add_param_group({"params": [self.model[0].extra]})


def test_a_parameter_that_is_made_during_the_fit_is_refused() -> None:
    """It was never trained."""
    runner = trainer(LOCAL, max_epochs=2, enable_checkpointing=False)
    with pytest.raises(UserError, match="add_param_group was given a parameter that no layer had when the fit began"):
        runner.fit(Stranger(), loader(Points(8, dtype=torch.float32), 4, pipeline=LOCAL))


class Counting(torch.optim.SGD):
    """Keeps something that belongs to no parameter."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.state["calls"] = self.state.get("calls", 0) + 1
        return super().step(closure)


class Counted(Regression):
    def configure_optimizers(self) -> Any:
        return Counting(self.parameters(), lr=0.05, momentum=0.9)


def steps_counted(rank: int, world_size: int, folder: str, resume: str | None) -> int:
    with untouched():
        pipeline = Pipeline(world_size) if world_size > 1 else Pipeline(2, local=True)
        runner = trainer(pipeline, max_epochs=2 if resume is None else 3, enable_checkpointing=False)
        runner.fit(
            Counted(),
            loader(Points(8, dtype=torch.float32), 4, pipeline=pipeline),
            ckpt_path=resume,
            weights_only=False,
        )
        runner.save_checkpoint(Path(folder) / f"{world_size}.ckpt")
        calls: int = runner.optimizers[0].state["calls"]
        return calls


def test_what_an_optimizer_keeps_beside_its_parameters_is_saved(pools: Pools, tmp_path: Path) -> None:
    """The checkpoint was refused with a TypeError."""
    assert steps_counted(0, 1, str(tmp_path), None) == 4
    assert pools(2).run(steps_counted, str(tmp_path), str(tmp_path / "1.ckpt")) == [6, 6]
    assert load(tmp_path / "2.ckpt")["optimizer_states"][0]["state"]["calls"] == 6


@pytest.mark.parametrize("windows", [1, 3])
def test_the_share_of_a_window_has_the_precision_of_the_model(windows: int) -> None:
    """A third was one of float32, in a model of double precision and in one of bfloat16."""
    module = Regression()
    runner = trainer(
        LOCAL,
        precision="32-true",
        max_epochs=1,
        accumulate_grad_batches=windows,
        enable_checkpointing=False,
        callbacks=[(first := FirstGradient())],
    )
    module.configure_model()
    runner.fit(module.double(), loader(Points(12), 4, pipeline=LOCAL))
    reference = copy.deepcopy(module)
    reference.load_state_dict(first.weights)
    assert reference.model is not None
    inputs, targets = next(iter(loader(Points(12), 4 * windows, pipeline=LOCAL)))
    loss_sum, count = reference.loss(reference.model(inputs), targets)
    torch.autograd.backward(loss_sum / count)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(first.gradients[name], parameter.grad, rtol=1e-13, atol=1e-13)


class FirstGradient(pl.Callback):
    """Keeps weights and gradients of the first step."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, *others: Any) -> None:
        if not self.weights:
            self.weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            self.gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
