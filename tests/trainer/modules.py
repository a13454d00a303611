"""Small PipelineModules and data for tests of the Trainer, made by name so that every rank can make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from repro.gpipe import PipelineModule, is_recomputing

WIDTH = 4
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "adafactor": partial(torch.optim.Adafactor, lr=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}


class Shift(nn.Module):
    """A layer without parameters."""

    def forward(self, value: Tensor) -> Tensor:
        return value + 0.1


def hidden() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def drop() -> nn.Module:
    return nn.Dropout(0.3)


def norm() -> nn.Module:
    return nn.BatchNorm1d(WIDTH)


def frozen() -> nn.Module:
    return hidden().requires_grad_(False)


def head() -> nn.Module:
    return nn.Linear(WIDTH, 1)


class WithUnused(nn.Linear):
    """A layer with a parameter that takes no part."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.idle = nn.Parameter(torch.ones(3))


class Spike(nn.Linear):
    """A layer whose own gradients overflow on inputs above 50, and nobody else's."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        outputs = super().forward(value)
        if outputs.requires_grad and bool(value.abs().max() > 50):
            outputs.register_hook(lambda gradient: gradient * float("inf"))
        return outputs.tanh()


class Counting(nn.Linear):
    """Keeps, beside its parameters, how many rows it has learnt from."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.rows = 0

    def forward(self, value: Tensor) -> Tensor:
        if self.training and not is_recomputing():
            self.rows += len(value)
        return super().forward(value)

    def get_extra_state(self) -> dict[str, int]:
        return {"rows": self.rows}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.rows = state["rows"]


LAYERS: Mapping[str, Sequence[Callable[[], nn.Module]]] = {
    "plain": (hidden, hidden, hidden, Shift, head),
    "drawing": (hidden, drop, norm, hidden, drop, head),
    "dropout": (hidden, drop, hidden, drop, head),
    "empty_stage": (hidden, hidden, Shift, Shift, head),
    "frozen_first": (frozen, frozen, hidden, hidden, head),
    "spike": (Spike, hidden, hidden, head),
    "unused": (WithUnused, hidden, WithUnused, hidden, head),
    "extra_state": (Counting, hidden, Counting, hidden, head),
    "frozen_middle": (hidden, hidden, frozen, frozen, head),
}


class Regression(PipelineModule):
    """Least squares, with a mean absolute error as metric and weights and biases in two parameter groups."""

    def __init__(
        self,
        layers: str = "plain",
        optimizer: str = "adamw",
        *,
        scheduler: str | None = None,
        monitor: str = "val_loss",
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self._layers = LAYERS[layers]
        self._optimizer = OPTIMIZERS[optimizer]
        self._scheduler = scheduler
        self._monitor = monitor

    def layers(self) -> Sequence[Callable[[], nn.Module]]:
        return self._layers

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        return functional.mse_loss(outputs, targets.to(outputs.dtype), reduction="sum"), len(targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, int]]:
        return {"error": ((outputs - targets).abs().sum(), len(targets))}

    def configure_optimizers(self) -> Any:
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for name, p in named if not name.endswith("bias")], "weight_decay": 0.1},
            {"params": [p for name, p in named if name.endswith("bias")], "lr": 0.02},
        ]
        optimizer = self._optimizer(groups)
        if self._scheduler is None:
            return optimizer
        if self._scheduler == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.2)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": self._monitor}}
        steps = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": self._scheduler}}


class Points(Dataset[Any]):
    """y = f(x) exactly, so that a row whose input and target do not belong together shows."""

    def __init__(self, rows: int, seed: int = 7, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        self.read = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        return self.inputs[row], target_of(self.inputs[row])


def target_of(inputs: Tensor) -> Tensor:
    """The f of y = f(x)."""
    return inputs.sin().sum(-1, keepdim=True)
