"""An emulated layer whose backward comes apart: one timed wait for the gradient of its input, one for its parameter's.

    value -- wait t_F / wait t_I --+-- output
                                   |
    parameter -- wait t_W ---------+

The sum is an operation that the engine can differentiate by operand. So a schedule that splits the backward waits t_I
in I and t_W in W, and all others wait both in B. A stage whose input needs no gradient waits both in W, as with real
layers there: nobody waits for an I of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .layers import Pace


class SplitLayer(nn.Module):
    """A layer that hands its input on, and takes as long over each micro-batch as it is told.

    Args:
        forward: seconds of F, and of R.
        input_gradient: seconds of I.
        weight_gradient: seconds of W; B takes both.
        pace: shared by the layers of a process.
    """

    def __init__(self, forward: float, input_gradient: float, weight_gradient: float, pace: Pace) -> None:
        super().__init__()
        self.forward_seconds = forward
        self.input_seconds = input_gradient
        self.weight_seconds = weight_gradient
        self.pace = pace
        # Without elements and without a gradient: it puts the wait into the graph where the input needs no gradient.
        self.anchor = nn.Parameter(torch.empty(0))
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        """Any tensor to the same tensor."""
        passed: Tensor = _InputPath.apply(value, self.anchor, self)
        weight: Tensor = _WeightPath.apply(self.weight, self)
        return passed + weight

    def wait(self, seconds: float) -> None:
        """Takes ``seconds`` of the emulated device."""
        self.pace.launch(seconds)
        self.pace.join()


class _InputPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, layer: SplitLayer) -> Tensor:
        ctx.layer = layer
        layer.wait(layer.forward_seconds)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        ctx.layer.wait(ctx.layer.input_seconds)
        return gradient, None, None


class _WeightPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, layer: SplitLayer) -> Tensor:
        ctx.layer = layer
        return weight.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        ctx.layer.wait(ctx.layer.weight_seconds)
        return gradient, None
