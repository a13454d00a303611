"""What each layer costs, for the partition: by FLOPs, by parameters, or by time on this machine."""

from __future__ import annotations

import inspect
import platform
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from lightning.pytorch.plugins.precision import Precision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .microbatch import Boundary, elements, map_tensors
from .profile_cache import ProfileCache, digest, processor_name
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


def time_costs(
    factories: Sequence[Factory],
    example: Boundary,
    device: torch.device,
    *,
    precision: Precision | None = None,
    rows: int | None = None,
    repeats: int = 5,
) -> list[float]:
    """Seconds of each layer's forward and backward of one micro-batch on ``device``, the median of ``repeats`` runs.

    One layer exists at a time, made for the purpose: no running statistic, gradient or random state of the model's own
    layers is touched.

    Args:
        factories: of the layers.
        example: what ``example_inputs()`` gives.
        device: where they run.
        precision: of the training run; None is float32.
        rows: of a micro-batch; the rows of the example are repeated or cut to as many. None: as many as it has.
        repeats: runs of every layer, after one that warms up.
    """
    precision = precision or Precision()
    value = map_tensors(lambda e: e.detach().to(device), _micro_batch(example, precision, rows))
    costs: list[float] = []
    with preserved(torch.device("cpu")), preserved(device), torch.inference_mode(False), torch.enable_grad():
        value = map_tensors(torch.clone, value)  # one that inference mode has not marked
        for factory in factories:
            with precision.module_init_context():
                layer = precision.convert_module(factory()).to(device)
            seconds: list[float] = []
            for repeat in range(repeats + 1):
                inputs = map_tensors(lambda e: e.detach().clone().requires_grad_(e.is_floating_point()), value)
                _synchronize(device)
                begun = time.perf_counter()
                with precision.forward_context():
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


def cached_time_costs(
    cache: ProfileCache,
    skeletons: Sequence[nn.Module],
    factories: Sequence[Factory],
    example: Boundary,
    device: torch.device,
    *,
    precision: Precision | None = None,
    rows: int | None = None,
    repeats: int = 5,
) -> list[float]:
    """``time_costs``, once for the same layers, inputs, precision and device.

    Args:
        cache: where the costs are looked up before, and kept after.
        skeletons: the layers on the meta device, by which they are known again.
    """
    key = _key(skeletons, _micro_batch(example, precision or Precision(), rows), device, precision, repeats)
    costs = cache.load(key, len(factories))
    if costs is None:
        costs = time_costs(factories, example, device, precision=precision, rows=rows, repeats=repeats)
        cache.save(key, costs)
    return costs


def with_rows(example: Boundary, rows: int) -> Boundary:
    """The example with as many rows: its own again and again, or the first of them."""
    return map_tensors(lambda e: e[torch.arange(rows, device=e.device) % e.shape[0]], example)


def micro_batch_rows_of(data: object, num_micro_batches: int) -> int | None:
    """Rows of the largest micro-batch, where a loader or data module tells its ``batch_size``; else None."""
    size = getattr(data, "batch_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        return None
    return -(-size // num_micro_batches)


def _micro_batch(example: Boundary, precision: Precision, rows: int | None) -> Boundary:
    return map_tensors(precision.convert_input, example if rows is None else with_rows(example, rows))


def _key(
    skeletons: Sequence[nn.Module],
    example: Boundary,
    device: torch.device,
    precision: Precision | None,
    repeats: int,
) -> str:
    """All that the seconds depend on: code, layers and parameters, inputs, precision, device, version of torch."""
    layers = [
        [repr(layer), [(name, tuple(p.shape), str(p.dtype)) for name, p in layer.named_parameters()]]
        for layer in skeletons
    ]
    classes = {type(module) for layer in skeletons for module in layer.modules()}
    code = sorted(_source(kind) for kind in classes if not kind.__module__.startswith("torch."))
    inputs = [None if e is None else (tuple(e.shape), str(e.dtype)) for e in elements(example)]
    name = "32-true" if precision is None else str(precision.precision)
    machine = [_device_name(device), torch.get_num_threads(), torch.__version__]
    return digest([layers, code, inputs, name, repeats, machine])


def _source(kind: type) -> str:
    """The code of a class, since what it prints of itself seldom says all."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {processor_name()}"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
