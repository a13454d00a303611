"""Partitions under a memory limit: what fits, and the best partition among those that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .memory import LiveSet, ModelMemory, StageMemory, StageRun, peak_bytes
from .partition import PartitionError, partition


@dataclass(frozen=True)
class Budget:
    """What a stage's memory is made of, for a schedule whose ranks hold one stage each.

    Attributes:
        live: by rank, from ``live_sets``.
        bytes_per_parameter: with the optimizer's states.
    """

    live: tuple[LiveSet, ...]
    bytes_per_parameter: int

    def stage_bytes(self, index: int, stage: StageMemory) -> int:
        """Parameters and peak activations of a stage."""
        return stage.parameters * self.bytes_per_parameter + self.activation_bytes(index, stage)

    def activation_bytes(self, index: int, stage: StageMemory) -> int:
        """Peak activations of a stage."""
        return peak_bytes(self.live[index : index + 1], {index: stage})[0]

    def largest_stage(self, model: ModelMemory, counts: Sequence[int]) -> int:
        """Bytes of the stage that needs most."""
        return max(self.stage_bytes(index, stage) for index, stage in enumerate(model.stages(counts)))


def partition_by_memory(model: ModelMemory, num_stages: int, budget: Budget) -> list[int]:
    """Layers of each stage such that the stage that needs most memory needs as little as possible.

    Stages are filled one after the other as far as the limit allows, so the last ones may need less.

    Raises:
        PartitionError: fewer layers than stages.
    """
    first = partition([1] * len(model.layers), num_stages)
    high = budget.largest_stage(model, first)
    low, best = -1, first
    while high - low > high >> 20:  # a millionth: no layer is that small
        middle = (low + high) // 2
        found = _fill(model, num_stages, budget, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return best


def fits(model: ModelMemory, num_stages: int, budget: Budget, cap: int) -> bool:
    """Whether some partition keeps every stage within ``cap`` bytes."""
    return len(model.layers) >= num_stages and _fill(model, num_stages, budget, cap) is not None


def partition_within(
    costs: Sequence[float], num_stages: int, *, model: ModelMemory, budget: Budget, cap: int
) -> list[int]:
    """The partition with the smallest bottleneck among those that keep every stage within ``cap`` bytes.

    Args:
        costs: one non-negative number per layer, as for ``partition``.
        num_stages: K.
        model: memory of the same layers.
        budget: of a stage.
        cap: bytes that a rank has.

    Returns:
        That of ``partition`` where it fits.

    Raises:
        PartitionError: nothing fits; the message says how much the best partition needs.
    """
    free = partition(costs, num_stages)
    if len(costs) != len(model.layers):
        raise PartitionError(f"{len(costs)} costs for {len(model.layers)} layers: give one for each")
    if budget.largest_stage(model, free) <= cap:
        return free
    least = partition_by_memory(model, num_stages, budget)
    if (needed := budget.largest_stage(model, least)) > cap:
        raise PartitionError(
            f"num_stages={num_stages}: no partition fits into {cap / 2**30:.2f} GiB a stage; the best one, {least}, "
            f"needs {needed / 2**30:.2f} GiB on its largest stage. Use more stages, more micro-batches or remat=always"
        )
    best, high = least, _bottleneck(costs, least)
    low = _bottleneck(costs, free)
    for _ in range(60):
        middle = (low + high) / 2
        found = _fill(model, num_stages, budget, cap, _cheaper_than(costs, middle))
        if found is None:
            low = middle
        else:
            best, high = found, _bottleneck(costs, found)
        if high - low <= 1e-12 * high:
            break
    return best


def _cheaper_than(costs: Sequence[float], most: float) -> Callable[[int, int], bool]:
    return lambda begin, end: math.fsum(costs[begin:end]) <= most


def _bottleneck(costs: Sequence[float], counts: Sequence[int]) -> float:
    begin, most = 0, 0.0
    for count in counts:
        most = max(most, math.fsum(costs[begin : begin + count]))
        begin += count
    return most


def _fill(
    model: ModelMemory,
    num_stages: int,
    budget: Budget,
    cap: int,
    allowed: Callable[[int, int], bool] = lambda begin, end: True,
) -> list[int] | None:
    """Fills stage after stage as far as it goes; None where the last one cannot take what is left."""
    num_layers = len(model.layers)
    counts: list[int] = []
    begin = 0
    for index in range(num_stages):
        final = num_layers - (num_stages - 1 - index)
        run = StageRun(model, begin)
        end = begin
        while run.end < final:
            run.grow()
            at_least = budget.stage_bytes(index, StageMemory(run.parameters, run.inputs, run.kept))
            if at_least > cap or not allowed(begin, run.end):
                break
            # Outputs that nobody saves come on top, and may be smaller behind the next layer: look on.
            if budget.stage_bytes(index, run.stage()) <= cap:
                end = run.end
        if end == begin or (index == num_stages - 1 and end < num_layers):
            return None
        counts.append(end - begin)
        begin = end
    return counts
