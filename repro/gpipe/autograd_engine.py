"""Running autograd's engine where the next stage waits for what it makes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Variable


def run_backward(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], *, inputs: Sequence[Tensor] = (), retain_graph: bool = False
) -> None:
    """``torch.autograd.backward`` with a gradient for each output that has its shape and dtype.

    On a CPU the engine is called itself, as Megatron-LM does. What ``torch.autograd.backward`` does before that is not
    needed there: it checks shapes and dtypes, and hands the context variables to the threads of other devices. Where
    processes share cores that takes as long as a message.

    Args:
        outputs: tensors with a graph.
        gradients: one each.
        inputs: the leaf tensors that collect a gradient; none stands for all.
        retain_graph: whether the graph is kept.
    """
    if all(type(output) is Tensor and output.is_cpu for output in outputs):
        Variable._execution_engine.run_backward(
            tuple(outputs),
            tuple(gradients),
            retain_graph,
            False,
            tuple(inputs),
            allow_unreachable=True,
            accumulate_grad=True,
        )
    else:
        torch.autograd.backward(outputs, gradients, retain_graph=retain_graph, inputs=inputs or None)
