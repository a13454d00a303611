"""The LightningModule of a model that is a sequence of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from repro.errors import UserError

from .building import make_layer
from .microbatch import Boundary, check_boundary
from .profiling import Factory
from .results import StepResult, Totals

DOCS = "docs/adding_a_model.md"


class PipelineRunner(ABC):
    """What a ``PipelineModule`` asks of the strategy that runs its steps as a pipeline."""

    @abstractmethod
    def build(self, module: PipelineModule) -> None:
        """Makes the layers of ``module`` that this process holds."""

    @abstractmethod
    def is_placeholder(self, batch: object) -> bool:
        """Whether ``batch`` stands for one that another rank reads, or for none."""

    @abstractmethod
    def run_training_step(self, batch: Any) -> StepResult:
        """Runs the schedule on a batch; the gradients are set aside in the result."""

    @abstractmethod
    def run_evaluation_step(self, batch: Any, batch_idx: int) -> Totals:
        """Loss and metrics of a batch, equal on every rank."""

    @abstractmethod
    def run_prediction_step(self, batch: Any, batch_idx: int) -> Any:
        """Outputs of a batch on rank 0, those of all replicas in order; None elsewhere."""


class PipelineModule(pl.LightningModule):
    """A model as a sequence of layers, with a loss that is a sum and a count.

    A subclass gives ``layers``, ``loss`` and ``configure_optimizers``, and where it needs to ``split_batch``,
    ``metrics`` and ``example_inputs``. Under ``GPipeStrategy`` the steps run through the pipeline; under any other
    Lightning strategy the same module runs unsplit.

    The layers live in ``self.model``, an ``nn.Sequential``: parameter names are ``model.<layer>.<name>``. Under a
    pipeline of processes each rank holds its own layers, and the others as meta tensors.

    Loss and metrics are logged as ``train_loss``, ``val_loss``, ``test_loss``, ``train_<metric>`` and so on, equal on
    every rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model: nn.Sequential | None = None
        self._in_pipeline = False

    def layers(self) -> Sequence[Factory]:
        """Zero-argument factories of the layers, in order.

        Each layer takes and returns one argument: a tensor or a flat tuple of tensors and None, with the rows of the
        batch in dimension 0.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define layers(): a list of functions that make one layer each"
        )

    def loss(self, outputs: Any, targets: Any) -> tuple[Any, Any]:
        """Sum of the loss over a micro-batch, and what to divide by: (0-dimensional tensor, number or tensor).

        The loss of the mini-batch is (sum of sums) / (sum of counts), so ragged micro-batches and padding weigh right.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(outputs, targets) -> (sum, count)")

    def metrics(self, outputs: Any, targets: Any) -> Mapping[str, tuple[Any, Any]]:
        """By name, (sum, count) over a micro-batch; runs without gradient, on the last stage."""
        return {}

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        """(inputs, targets) of a batch: each a tensor or a flat tuple of tensors and None.

        By default a batch of two elements is (inputs, targets), anything else inputs without targets.
        """
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return batch[0], batch[1]
        return batch, None

    def example_inputs(self) -> Any:
        """Inputs of one row or a few, for the costs of the layers; None where there are none."""
        return None

    def example_batch(self) -> tuple[Any, Any]:
        """(inputs, targets) of one row or a few, as large as training has them, for the limit ``stage_memory``.

        By default ``example_inputs()`` without targets, which leaves out what the loss keeps.
        """
        return self.example_inputs(), None

    @classmethod
    def from_sequential(
        cls,
        model: nn.Sequential,
        loss: Callable[[Any, Any], Tensor],
        *,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam,
        metrics: Callable[[Any, Any], Mapping[str, tuple[Any, Any]]] | None = None,
        example_inputs: Any = None,
    ) -> PipelineModule:
        """A module for an existing ``nn.Sequential``.

        Args:
            model: its children are the layers, with the weights they have.
            loss: ``loss(outputs, targets)``: the mean over the rows of a batch, as most losses of PyTorch are, or a
                pair (sum, count).
            optimizer: makes the optimizer from the parameters.
            metrics: see ``PipelineModule.metrics``.
            example_inputs: see ``PipelineModule.example_inputs``.
        """
        return _SequentialModule(model, loss, optimizer, metrics, example_inputs)

    @override
    def forward(self, inputs: Any) -> Any:
        """The unsplit model, where all its layers are here."""
        if self.model is None:
            self.configure_model()
        assert self.model is not None
        if any(p.is_meta for p in self.model.parameters()):
            raise UserError(
                "forward() needs all layers, but this process holds only those of its own stages; load the "
                "checkpoint with "
                f"{type(self).__name__}.load_from_checkpoint in one process"
            )
        return self.model(inputs)

    @override
    def configure_model(self) -> None:
        """Makes the layers: all of them, or under ``GPipeStrategy`` those of this rank."""
        strategy = self._gpipe()
        if strategy is not None:
            strategy.build(self)
        elif self.model is None:
            seed = torch.initial_seed()
            self.model = nn.Sequential(
                *(make_layer(factory, seed, index) for index, factory in enumerate(self.layers()))
            )

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in PyTorch; the layers are made first where they have not been."""
        if self.model is None:
            self.configure_model()
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """One mini-batch: its mean loss, whose backward adds the gradients."""
        strategy = self._gpipe()
        if strategy is None:
            totals, loss = self._unsplit(batch)
        else:
            result = strategy.run_training_step(batch)
            totals, loss = result.totals, result.as_loss(self.device)
        self._log_totals("train", totals, on_step=True)
        return loss

    @override
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Loss and metrics of a validation batch, logged."""
        self._log_totals("val", self._evaluate(batch, batch_idx), on_step=False)

    @override
    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Loss and metrics of a test batch, logged."""
        self._log_totals("test", self._evaluate(batch, batch_idx), on_step=False)

    @override
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Outputs of a batch, in order, on rank 0 (None elsewhere)."""
        strategy = self._gpipe()
        if strategy is not None:
            return strategy.run_prediction_step(batch, batch_idx)
        return self(_boundary(self.split_batch(batch)[0]))

    @override
    def log(self, name: str, *args: Any, **kwargs: Any) -> None:
        """As in Lightning; not from within ``loss`` or ``metrics``, which run on the last stage alone."""
        if self._in_pipeline:
            raise UserError(
                f"self.log({name!r}, ...) was called inside loss() or metrics() or a layer, which run on one stage "
                "only; return "
                f"the value from metrics() as (sum, count), it is logged on every rank (see {DOCS})"
            )
        super().log(name, *args, **kwargs)

    @override
    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        strategy = self._gpipe()
        if strategy is not None and strategy.is_placeholder(batch):
            return batch
        return super()._on_before_batch_transfer(batch, dataloader_idx)

    def _evaluate(self, batch: Any, batch_idx: int) -> Totals:
        strategy = self._gpipe()
        return self._unsplit(batch)[0] if strategy is None else strategy.run_evaluation_step(batch, batch_idx)

    def _unsplit(self, batch: Any) -> tuple[Totals, Tensor]:
        inputs, targets = self.split_batch(batch)
        outputs = self(_boundary(inputs))
        targets = _boundary(targets)
        loss_sum, count = self.loss(outputs, targets)
        with torch.no_grad():
            metrics = {
                name: (float(value), float(number)) for name, (value, number) in self.metrics(outputs, targets).items()
            }
        return Totals(float(loss_sum.detach()), float(count), metrics), loss_sum / count

    def _log_totals(self, stage: str, totals: Totals, *, on_step: bool) -> None:
        values = {"loss": (totals.loss_sum, totals.count), **totals.metrics}
        for name, (value, count) in values.items():
            # What nothing counts for has no part in the mean of the epoch, to which NaN x 0 would add NaN.
            nothing = 0.0 if name != "loss" else float("nan")
            mean = torch.tensor(value / count if count else nothing, dtype=torch.float64, device=self.device)
            super().log(
                f"{stage}_{name}",
                mean.float() if self.device.type == "mps" else mean,
                on_step=on_step,
                on_epoch=True,
                prog_bar=name == "loss" or not on_step,
                batch_size=count,  # type: ignore[arg-type]
            )

    def _gpipe(self) -> PipelineRunner | None:
        if self._trainer is None:
            return None
        strategy = self.trainer.strategy
        return strategy if isinstance(strategy, PipelineRunner) else None


class _SequentialModule(PipelineModule):
    """See ``PipelineModule.from_sequential``."""

    def __init__(
        self,
        model: nn.Sequential,
        loss: Callable[[Any, Any], Any],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        metrics: Callable[[Any, Any], Mapping[str, tuple[Any, Any]]] | None,
        example: Any,
    ) -> None:
        if not isinstance(model, nn.Sequential):
            raise UserError(f"from_sequential needs an nn.Sequential, got {type(model).__name__}; see {DOCS}")
        super().__init__()
        self._given = [_Given(layer) for layer in model]
        self._loss = loss
        self._optimizer = optimizer
        self._metrics = metrics
        self._example = example

    @override
    def layers(self) -> Sequence[Factory]:
        return self._given

    @override
    def loss(self, outputs: Any, targets: Any) -> tuple[Any, Any]:
        value = self._loss(outputs, targets)
        if isinstance(value, tuple):
            return value
        rows = next(e for e in (targets if isinstance(targets, tuple) else (targets,)) if e is not None).shape[0]
        return value * rows, rows

    @override
    def metrics(self, outputs: Any, targets: Any) -> Mapping[str, tuple[Any, Any]]:
        return self._metrics(outputs, targets) if self._metrics else {}

    @override
    def example_inputs(self) -> Any:
        return self._example

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer(self.parameters())


class _Given:
    """The factory of a layer that exists."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __call__(self) -> nn.Module:
        return self._layer


def _boundary(value: Any) -> Boundary | None:
    return None if value is None else check_boundary(value, "split_batch(batch)")
