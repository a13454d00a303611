"""Partitions under a memory limit: what fits, and the best partition among those that do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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

    Raises:
        PartitionError: fewer layers than stages.
    """
    best = partition([1] * len(model.layers), num_stages)
    low, high = -1, budget.largest_stage(model, best)
    while high - low > max(1, high >> 20):  # a millionth: no layer is that small
        middle = (low + high) // 2
        found = _fill(model, num_stages, budget, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    if _even(model):
        return best
    return _optimum(model, num_stages, budget, budget.largest_stage(model, best)) or best


def fits(model: ModelMemory, num_stages: int, budget: Budget, cap: int) -> bool:
    """Whether some partition keeps every stage within ``cap`` bytes."""
    if len(model.layers) < num_stages:
        return False
    if _fill(model, num_stages, budget, cap) is not None:
        return True
    return not _even(model) and _optimum(model, num_stages, budget, cap) is not None


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
    found = _optimum(model, num_stages, budget, cap, costs)
    if found is None:
        least = partition_by_memory(model, num_stages, budget)
        needed = budget.largest_stage(model, least) / 2**30
        raise PartitionError(
            f"num_stages={num_stages}: no partition fits into {cap / 2**30:.2f} GiB a stage; the best one, {least}, "
            f"needs {needed:.2f} GiB on its largest stage. Use more stages, more micro-batches or remat=always"
        )
    return found


def _even(model: ModelMemory) -> bool:
    """Whether every cut is as wide: then a shorter stage never needs more, and filling stages up is optimal."""
    return len({sum(model.boundary(index)) for index in range(1, len(model.layers))}) <= 1


def _fill(model: ModelMemory, num_stages: int, budget: Budget, cap: int) -> list[int] | None:
    """Fills stage after stage as far as it goes; None where the last one cannot take what is left."""
    num_layers = len(model.layers)
    counts: list[int] = []
    begin = 0
    for index in range(num_stages):
        final = num_layers - (num_stages - 1 - index)
        end = max((end for end, _ in _ends(model, budget, index, begin, cap, final)), default=begin)
        if end == begin or (index == num_stages - 1 and end < num_layers):
            return None
        counts.append(end - begin)
        begin = end
    return counts


def _ends(
    model: ModelMemory, budget: Budget, index: int, begin: int, cap: int, final: int
) -> Iterator[tuple[int, int]]:
    """Where stage ``index`` can end if it begins at ``begin``, ``final`` at most, and the bytes that it needs then."""
    run = StageRun(model, begin)
    while run.end < final:
        run.grow()
        if budget.stage_bytes(index, StageMemory(run.parameters, run.inputs, run.kept)) > cap:
            return
        # Outputs that nobody saves come on top, and may be smaller behind the next layer: look on.
        size = budget.stage_bytes(index, run.stage())
        if size <= cap:
            yield run.end, size


def _optimum(
    model: ModelMemory, num_stages: int, budget: Budget, cap: int, costs: Sequence[float] | None = None
) -> list[int] | None:
    """Among the partitions within ``cap``, one whose dearest stage is cheapest: by ``costs``, or by bytes without.

    Tries every cut: stages times the squared length of a stage that fits.
    """
    num_layers = len(model.layers)
    tables: dict[object, list[list[tuple[int, int]]]] = {}
    reached: dict[int, float] = {0: 0.0}
    origins: list[dict[int, int]] = []
    for index in range(num_stages):
        # Ranks that hold alike share a table.
        kind = tuple(tuple(counts[1:] for counts in state) for state in budget.live[index])
        if kind not in tables:
            tables[kind] = [list(_ends(model, budget, index, begin, cap, num_layers)) for begin in range(num_layers)]
        after: dict[int, float] = {}
        origin: dict[int, int] = {}
        final = num_layers - (num_stages - 1 - index)
        for begin, dearest in reached.items():
            for end, size in tables[kind][begin]:
                if end > final or (index == num_stages - 1 and end < num_layers):
                    continue
                value = max(dearest, size if costs is None else math.fsum(costs[begin:end]))
                if value < after.get(end, math.inf):
                    after[end], origin[end] = value, begin
        reached = {end: value for end, value in after.items() if end < num_layers or index == num_stages - 1}
        origins.append(origin)
    if num_layers not in reached:
        return None
    counts, end = [], num_layers
    for origin in reversed(origins):
        counts.append(end - origin[end])
        end = origin[end]
    return counts[::-1]
