"""Gradients that share memory: autograd gives a leaf a view of what also goes elsewhere where that saves a copy."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def separate_gradients(leaves: Iterable[Tensor], others: Iterable[Tensor | None]) -> None:
    """Gives leaves a gradient of their own where theirs shares memory with one of ``others``, or of another leaf.

    The next backward adds to it in place, while the others may still be read, or on their way to another rank.
    """
    taken = {_memory(tensor) for tensor in others}
    for leaf in leaves:
        memory = _memory(leaf.grad)
        if memory is None:
            continue
        if memory in taken:
            assert leaf.grad is not None
            leaf.grad = leaf.grad.clone()
        else:
            taken.add(memory)


def _memory(tensor: Tensor | None) -> int | None:
    if tensor is None or tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()
