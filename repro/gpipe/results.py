"""What a step gives: totals that are equal on every rank, and gradients set aside."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Totals:
    """Sums and counts over all micro-batches of all replicas; equal on every rank.

    Attributes:
        loss_sum: sum of the losses.
        count: what the loss is averaged over (rows, or tokens that count).
        metrics: by name, (sum, count).
    """

    loss_sum: float = 0.0
    count: float = 0.0
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Mean loss; NaN where nothing counts, as in the unsplit model."""
        return self.loss_sum / self.count if self.count else float("nan")

    def packed(self) -> tuple[tuple[str, ...], bytes]:
        """The names of the metrics and all numbers, for a message."""
        numbers = [self.loss_sum, self.count]
        for pair in self.metrics.values():
            numbers.extend(pair)
        return tuple(self.metrics), struct.pack(f"<{len(numbers)}d", *numbers)

    @classmethod
    def unpacked(cls, names: tuple[str, ...], data: bytes) -> Totals:
        """From what ``packed`` returned."""
        loss_sum, count, *rest = struct.unpack(f"<{2 + 2 * len(names)}d", data)
        return cls(loss_sum, count, dict(zip(names, zip(rest[::2], rest[1::2], strict=True), strict=True)))

    def __add__(self, other: Totals) -> Totals:
        metrics = dict(self.metrics)
        for name, (value, count) in other.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = (before[0] + value, before[1] + count)
        return Totals(self.loss_sum + other.loss_sum, self.count + other.count, metrics)


class StepResult:
    """What a training step gives: the totals, and the gradients of this rank's parameters, set aside.

    Attributes:
        totals: loss and metrics, equal on every rank.
        rows: rows of this replica's mini-batch.
    """

    def __init__(self, totals: Totals, stash: dict[nn.Parameter, Tensor], correction: float, rows: int) -> None:
        self.totals = totals
        self.rows = rows
        self._correction = correction
        self._stash: dict[nn.Parameter, Tensor] | None = stash

    @property
    def loss(self) -> float:
        """Mean loss over the mini-batch."""
        return self.totals.loss

    def as_loss(self, device: torch.device) -> Tensor:
        """The mean loss as Lightning gets it from a training step: its backward adds the gradients.

        What it is divided by (accumulation) is a factor of all gradients, so its dtype is not that of the model.
        """
        dtype = torch.float32 if device.type == "mps" else torch.float64
        loss: Tensor = _AddGradients.apply(torch.zeros((), dtype=dtype, device=device, requires_grad=True), self)
        return loss

    @property
    def is_accumulated(self) -> bool:
        """Whether the gradients have been added to ``.grad``."""
        return self._stash is None

    def drop_gradients(self) -> None:
        """Has ``accumulate`` add nothing."""
        self._stash = {}

    def accumulate(self, factor: float = 1.0) -> None:
        """Adds ``factor`` x the gradients of the mean loss to ``.grad``; with D replicas, this replica's share of them.

        Raises:
            RuntimeError: called twice.
        """
        if self._stash is None:
            raise RuntimeError("the gradients of this step have been added to .grad already (backward called twice?)")
        factor *= self._correction
        for parameter, gradient in self._stash.items():
            if parameter.grad is not None:
                parameter.grad.add_(gradient, alpha=factor)
            else:
                parameter.grad = gradient if factor == 1.0 else gradient.mul_(factor)
        self._stash = None


class _AddGradients(torch.autograd.Function):
    """The loss of a step that has run already; its backward adds the gradients that were set aside.

    Lightning calls ``training_step``, then ``zero_grad``, then ``backward``: what a schedule had added to ``.grad``
    inside ``training_step`` would be lost.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, result: StepResult) -> Tensor:
        ctx.result = result
        return anchor.new_tensor(result.loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.result.accumulate(float(gradients[0]))
        return None, None
