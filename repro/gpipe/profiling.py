"""What each layer costs, for the partition: by FLOPs, by parameters, or by time on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .microbatch import Boundary, elements, map_tensors
from .rng import preserved

Factory = Callable[[], nn.Module]


def parameter_costs(layers: Sequence[nn.Module]) -> list[float]:
    """Parameters of each layer."""
    return [float(sum(p.numel() for p in layer.parameters())) for layer in layers]


def flop_costs(layers: Sequence[nn.Module], example: Boundary) -> list[float]:
    """Floating-point operations of each layer's forward on the example, counted on meta tensors: nothing is computed.

    The backward of a layer takes about twice its forward, so the forward's share is the layer's share. Only matrix
    products, convolutions and attention count (``torch.utils.flop_counter``).

    Args:
        layers: on the meta device.
        example: what ``example_inputs()`` gives.
    """
    costs: list[float] = []
    value = map_tensors(lambda e: e.detach().to("meta"), example)
    with torch.no_grad():
        for layer in layers:
            counter = FlopCounterMode(display=False)
            with counter:
                value = layer(value)
            costs.append(float(counter.get_total_flops()))
    return costs


def time_costs(factories: Sequence[Factory], example: Boundary, device: torch.device, repeats: int = 3) -> list[float]:
    """Seconds of each layer's forward and backward on the example, on ``device``, the median of ``repeats``.

    One layer exists at a time. The model's own layers, gradients and random state are not touched.
    """
    costs: list[float] = []
    value = map_tensors(lambda e: e.detach().to(device), example)
    with preserved(torch.device("cpu")), preserved(device):
        for factory in factories:
            layer = factory().to(device)
            seconds: list[float] = []
            for repeat in range(repeats + 1):
                inputs = map_tensors(lambda e: e.detach().clone().requires_grad_(e.is_floating_point()), value)
                _synchronize(device)
                begun = time.perf_counter()
                outputs = layer(inputs)
                roots = [e for e in elements(outputs) if e is not None and e.requires_grad]
                if roots:
                    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
                _synchronize(device)
                if repeat:  # the first one warms up
                    seconds.append(time.perf_counter() - begun)
            costs.append(median(seconds))
            value = map_tensors(lambda e: e.detach(), outputs)
    return costs


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
