"""What the layers of the paper's full-size models cost, without building the models: counted, or profiled one by one.

Each distinct layer is looked at once, at one row, and what is found holds for all layers like it. The costs of a
micro-batch are those of a row times its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from repro.gpipe.microbatch import Boundary, elements, map_tensors
from repro.models.amoebanet import amoebanet
from repro.models.transformer import transformer_lm

from .full_models import FullModel, LayerCosts

Factory = Callable[[], nn.Module]
Measure = Callable[[Factory, Boundary], tuple[float, float, Boundary]]


def factories_of(model: FullModel, *, split_sublayers: bool = False) -> tuple[list[Factory], torch.Tensor]:
    """The layers of a model of the paper, and one row of its inputs on the meta device.

    Args:
        model: which one.
        split_sublayers: attention and feed-forward of a Transformer as layers of their own.
    """
    if model.family == "amoebanet":
        assert model.num_filters is not None
        layers = amoebanet("D", num_layers=model.num_layers, num_filters=model.num_filters)
        return layers, torch.empty(1, 3, model.side, model.side, device="meta")
    layers = transformer_lm(num_layers=model.num_layers, split_sublayers=split_sublayers)
    return layers, torch.empty(1, model.side, dtype=torch.long, device="meta")


def counted_flops(model: FullModel, *, split_sublayers: bool = False) -> LayerCosts:
    """FLOPs of F and of B of each layer, a row, counted on meta tensors (2 for a multiplication with its addition).

    Matrix products, convolutions and attention count, and nothing else. B of the first layer has no input gradient.
    """
    return count_layers(*factories_of(model, split_sublayers=split_sublayers))


def count_layers(factories: Sequence[Factory], example: Boundary) -> LayerCosts:
    """The same for any layers; ``example`` is one row of inputs on the meta device."""
    return _walk(factories, example, _count)


def profiled_seconds(
    model: FullModel, device: torch.device, *, split_sublayers: bool = False, repeats: int = 3
) -> LayerCosts:
    """Seconds of F and of B of each layer on one row, on ``device``: the median of ``repeats`` after one to warm up.

    One layer exists at a time. A layer of Transformer-48 takes seconds a row on a CPU.
    """
    layers, example = factories_of(model, split_sublayers=split_sublayers)
    inputs = torch.zeros(example.shape, dtype=example.dtype, device=device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return _walk(layers, inputs, partial(_time, device=device, repeats=repeats))


def _walk(factories: Sequence[Factory], example: Boundary, measure: Measure) -> LayerCosts:
    known: dict[str, tuple[float, float, Boundary]] = {}
    value = example
    forward: list[float] = []
    backward: list[float] = []
    boundary_bytes: list[float] = []
    for factory in factories:
        # A layer is what makes it, from which inputs, and whether those want a gradient.
        key = f"{_described(factory)} {[None if e is None else (e.shape, e.dtype) for e in elements(value)]}"
        key += f" {value is not example}"
        if key not in known:
            inputs = map_tensors(
                lambda e: e.detach().requires_grad_(e.is_floating_point() and value is not example),  # noqa: B023
                value,
            )
            known[key] = measure(factory, inputs)
        forward_cost, backward_cost, value = known[key]
        forward.append(forward_cost)
        backward.append(backward_cost)
        boundary_bytes.append(float(sum(e.nbytes for e in elements(value) if e is not None)))
    return LayerCosts(tuple(forward), tuple(backward), tuple(boundary_bytes), distinct=len(known))


def _described(factory: Factory) -> str:
    assert isinstance(factory, partial)
    return f"{factory.func.__qualname__} {factory.args} {sorted(factory.keywords.items())}"


def _count(factory: Factory, inputs: Boundary) -> tuple[float, float, Boundary]:
    with torch.device("meta"):
        layer = factory()
    with FlopCounterMode(display=False) as forward:
        outputs = layer(inputs)
    with FlopCounterMode(display=False) as backward:
        _backward(outputs)
    detached = map_tensors(lambda e: e.detach(), outputs)
    return float(forward.get_total_flops()), float(backward.get_total_flops()), detached


def _time(factory: Factory, inputs: Boundary, *, device: torch.device, repeats: int) -> tuple[float, float, Boundary]:
    layer = factory().to(device)
    seconds: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        begun = _now(device)
        outputs = layer(map_tensors(lambda e: e.detach().clone().requires_grad_(e.requires_grad), inputs))
        between = _now(device)
        _backward(outputs)
        seconds.append((between - begun, _now(device) - between))
    forward, backward = (median(values) for values in zip(*seconds[1:], strict=True))
    return forward, backward, map_tensors(lambda e: e.detach(), outputs)


def _backward(outputs: Boundary) -> None:
    roots = [e for e in elements(outputs) if e is not None and e.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
