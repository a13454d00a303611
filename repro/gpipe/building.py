"""From the user's layer factories to the layers of this rank: skeletons, partition, keyed initialisation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from repro.errors import UserError
from repro.planning import check_partition, partition

from .gathering import mark_elsewhere
from .microbatch import Boundary
from .profile_cache import ProfileCache
from .profiling import Factory, cached_time_costs, flop_costs, parameter_costs
from .rng import initialisation_seed, preserved
from .stage_memory import StageLimit

Measure = Callable[[torch.device, Precision, int | None], list[float]]
"""Seconds of every layer on a device, in a precision, for micro-batches of so many rows."""

PARTITION_RULES = ("flops", "parameters", "time", "uniform")
GIVEN = "given"
"""The name of the rule where layer counts are given."""


def make_layer(factory: Factory, seed: int, index: int) -> nn.Module:
    """A layer whose initial weights depend on (seed, global index) alone, on the CPU."""
    with torch.device("cpu"), preserved(torch.device("cpu")) as generator:
        generator.manual_seed(initialisation_seed(seed, index))
        layer = factory()
    if not isinstance(layer, nn.Module):
        raise UserError(f"layers()[{index}] made a {type(layer).__name__}; each factory must return an nn.Module")
    return layer


def make_skeletons(factories: Sequence[Factory]) -> list[nn.Module]:
    """All layers on the meta device: names, shapes and dtypes of every parameter, no memory.

    Raises:
        UserError: layers share a parameter (tied weights) or the statistics of a BatchNorm, which would drift apart on
            different ranks, or a layer learns its shapes from the first batch.
    """
    skeletons: list[nn.Module] = []
    owners: dict[int, tuple[int, str]] = {}
    made = []  # their tensors stand for themselves only while they live
    for index, factory in enumerate(factories):
        layer = _made_for_its_shapes(factory)
        if not isinstance(layer, nn.Module):
            raise UserError(f"layers()[{index}] made a {type(layer).__name__}; each factory must return an nn.Module")
        made.append(layer)
        for name, tensor in (*layer.named_parameters(), *_running_statistics(layer)):
            if is_lazy(tensor):
                raise UserError(
                    f"layer {index} ({type(layer).__name__}) learns the shape of {name} from the first batch, but the "
                    "layers are cut before; give the layer its sizes"
                )
            first = owners.setdefault(id(tensor), (index, name))
            if first[0] != index:
                kind = "a parameter" if isinstance(tensor, nn.Parameter) else "running statistics"
                raise UserError(
                    f"layers {first[0]} ({first[1]}) and {index} ({name}) share {kind}; weights tied across layers are "
                    "not supported: give each layer its own, or put both uses into one layer"
                )
        # A factory that hands out an existing layer is not copied to the meta device by the context.
        skeletons.append(layer if _is_meta(layer) else copy.deepcopy(layer).to("meta"))
    return skeletons


def _made_for_its_shapes(factory: Factory) -> nn.Module:
    try:
        with torch.device("meta"):
            return factory()
    except (NotImplementedError, RuntimeError):
        # It looks at a value, which a meta tensor does not have; what else may be wrong shows again.
        with torch.device("cpu"), preserved(torch.device("cpu")):
            return factory()


def _running_statistics(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in layer.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            yield f"{name}.running_mean".lstrip("."), module.running_mean


def choose_partition(
    rule: str | Sequence[int] | None,
    skeletons: Sequence[nn.Module],
    total_stages: int,
    *,
    example: Callable[[], Boundary | None],
    timed: Callable[[Boundary], list[float]],
) -> tuple[list[int], list[float], str]:
    """Layers of each stage.

    Args:
        rule: layer counts, or one of ``PARTITION_RULES``; None is ``"flops"`` where there are example inputs, else
            ``"parameters"``.
        total_stages: K x V.
        example: gives the example inputs, or None.
        timed: gives the layers' seconds, the same on every rank.

    Returns:
        The layer counts, the cost of each layer, and the name of the rule.

    Raises:
        UserError: more stages than layers, counts that do not add up, an unknown rule, no example inputs for a rule
            that needs them.
    """
    if total_stages > len(skeletons):
        raise UserError(
            f"num_stages asks for {total_stages} stages but the model has {len(skeletons)} layers; use at most "
            f"{len(skeletons)} stages, or split the layers more finely"
        )
    if rule is not None and not isinstance(rule, str):
        counts = list(rule)
        check_partition(counts, len(skeletons), total_stages)
        return counts, parameter_costs(skeletons), GIVEN
    inputs = example() if rule in (None, "flops", "time") else None
    if rule is None:
        rule = "parameters" if inputs is None else "flops"
    if rule in ("flops", "time") and inputs is None:
        raise UserError(
            f"partition={rule!r} needs example_inputs(); define it on the module, or use partition='parameters'"
        )
    if rule == "flops":
        assert inputs is not None
        costs = flop_costs(skeletons, inputs)
    elif rule == "time":
        assert inputs is not None
        costs = timed(inputs)
    elif rule == "parameters":
        costs = parameter_costs(skeletons)
    elif rule == "uniform":
        costs = [1.0] * len(skeletons)
    else:
        raise UserError(f"unknown partition={rule!r}; give layer counts or one of {', '.join(PARTITION_RULES)}")
    return partition(costs, total_stages), costs, rule


@dataclass(frozen=True)
class BuiltLayers:
    """What this rank holds of the model.

    Attributes:
        model: all layers, those of other ranks on the meta device.
        partition: layers of each stage.
        own: global indices of the layers that are here.
        costs: of each layer, by which they were dealt out.
        rule: the name of the rule.
        stage_bytes: of each stage, where they are limited.
    """

    model: nn.Sequential
    partition: tuple[int, ...]
    own: tuple[int, ...]
    costs: list[float]
    rule: str
    stage_bytes: list[int] | None = None


def build_layers(
    factories: Sequence[Factory],
    model: nn.Sequential | None,
    *,
    rule: str | Sequence[int] | None,
    here: Sequence[bool],
    seed: int,
    example: Callable[[], Boundary | None],
    timed: Callable[[Measure], list[float]],
    limit: StageLimit | None = None,
) -> BuiltLayers:
    """Makes this rank's layers; those of other ranks stay on the meta device.

    Args:
        factories: one a layer.
        model: the layers where they exist already; they are kept.
        rule: see ``choose_partition``.
        here: for each stage, whether it is on this rank.
        seed: of initial weights.
        example: gives the example inputs, or None.
        timed: calls the function that it is given on one rank, with that rank's device, the precision and the rows of
            a micro-batch, and gives all ranks the seconds.
        limit: what a stage may take.

    Raises:
        UserError: the layers cannot be cut as asked, or the model was built for other stages.
    """
    skeletons = make_skeletons(factories)

    def times(inputs: Boundary) -> list[float]:
        made = [_maker(factory, seed, index) for index, factory in enumerate(factories)]
        return timed(
            lambda device, precision, rows: cached_time_costs(
                ProfileCache(), skeletons, made, inputs, device, precision=precision, rows=rows
            )
        )

    counts, costs, name = choose_partition(rule, skeletons, len(here), example=example, timed=times)
    sizes = None
    if limit is not None:
        counts, sizes = limit.partition(skeletons, costs, counts, given=name == "given")
    is_here = [held for held, count in zip(here, counts, strict=True) for _ in range(count)]
    layers = list(skeletons) if model is None else list(model)
    for index, skeleton in enumerate(skeletons):
        if not is_here[index]:
            layers[index] = skeleton
        elif model is None:
            layers[index] = make_layer(factories[index], seed, index)
        elif any(parameter.is_meta for parameter in layers[index].parameters()):
            raise UserError(
                f"the module was built for other stages: this rank does not hold layer {index}; make a new module and "
                "load the checkpoint into it"
            )
        mark_elsewhere(layers[index], not is_here[index])
    own = tuple(index for index, held in enumerate(is_here) if held)
    return BuiltLayers(nn.Sequential(*layers), tuple(counts), own, costs, name, sizes)


def _maker(factory: Factory, seed: int, index: int) -> Factory:
    return lambda: copy.deepcopy(make_layer(factory, seed, index))


def _is_meta(layer: nn.Module) -> bool:
    tensors: list[Any] = [*layer.parameters(), *layer.buffers()]
    return all(tensor.is_meta for tensor in tensors)
