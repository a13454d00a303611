"""Partitions under a memory limit against trying all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.planning import PartitionError, partition
from repro.planning.capacity import Budget, fits, partition_by_memory, partition_within
from repro.planning.memory import LayerMemory, ModelMemory, OutputMemory, live_sets
from repro.schedules import make_schedule


def layer(parameters: int, internal: int, output: int, *, saves: bool = True) -> LayerMemory:
    return LayerMemory(parameters, internal, (saves,), (OutputMemory(output),))


def budget(num_stages: int, num_micro_batches: int, remat: str = "always", schedule: str = "gpipe") -> Budget:
    made = make_schedule(schedule, num_stages=num_stages, num_micro_batches=num_micro_batches, remat=remat)
    return Budget(live_sets(made), bytes_per_parameter=12)


def compositions(num_layers: int, num_stages: int) -> Iterator[list[int]]:
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        ends = (0, *cuts, num_layers)
        yield [after - before for before, after in pairwise(ends)]


LAYERS = st.lists(
    st.builds(
        layer,
        st.integers(0, 40),
        st.integers(0, 300),
        st.integers(1, 60),
        saves=st.booleans(),
    ),
    min_size=3,
    max_size=8,
)


@settings(max_examples=80)
@given(
    LAYERS, st.integers(1, 3), st.integers(1, 6), st.sampled_from(["always", "never"]),
    st.sampled_from(["gpipe", "1f1b"]),
)  # fmt: skip
def test_no_partition_needs_less(
    layers: list[LayerMemory], num_stages: int, num_micro_batches: int, remat: str, schedule: str
) -> None:
    model = ModelMemory(tuple(layers), (8,), targets=4)
    limit = budget(num_stages, num_micro_batches, remat, schedule)
    needed = [limit.largest_stage(model, counts) for counts in compositions(len(layers), num_stages)]
    counts = partition_by_memory(model, num_stages, limit)
    assert sum(counts) == len(layers) and len(counts) == num_stages and min(counts) > 0
    assert limit.largest_stage(model, counts) == min(needed)
    assert fits(model, num_stages, limit, min(needed))
    assert not fits(model, num_stages, limit, min(needed) - 1)


@settings(max_examples=80)
@given(st.data(), LAYERS, st.integers(1, 3), st.integers(1, 6))
def test_the_cheapest_of_those_that_fit(
    data: st.DataObject, layers: list[LayerMemory], num_stages: int, num_micro_batches: int
) -> None:
    costs = data.draw(st.lists(st.integers(0, 9), min_size=len(layers), max_size=len(layers)))
    model = ModelMemory(tuple(layers), (8,))
    limit = budget(num_stages, num_micro_batches)
    every = list(compositions(len(layers), num_stages))
    sizes = [limit.largest_stage(model, counts) for counts in every]
    cap = data.draw(st.sampled_from(sizes))

    def bottleneck(counts: list[int]) -> int:
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        return max(sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True))

    found = partition_within(costs, num_stages, model=model, budget=limit, cap=cap)
    assert limit.largest_stage(model, found) <= cap
    assert bottleneck(found) == min(bottleneck(c) for c, size in zip(every, sizes, strict=True) if size <= cap)


def test_a_wide_cut_is_not_filled_up_to() -> None:
    # Stage 0 would fit layers 0 and 1, but the boundary behind layer 1 is too wide for stage 1 to keep 4 of.
    model = ModelMemory((layer(0, 10, 1), layer(0, 10, 100), layer(0, 10, 1)), (1,))
    limit = budget(2, 4)
    assert partition_by_memory(model, 2, limit) == [1, 2]


def test_without_need_the_partition_is_that_of_the_costs() -> None:
    model = ModelMemory(tuple(layer(1, 10, 1) for _ in range(6)), (1,))
    costs = [4, 1, 1, 1, 1, 4]
    found = partition_within(costs, 3, model=model, budget=budget(3, 2), cap=10**9)
    assert found == partition(costs, 3) == [1, 4, 1]
    # One layer takes 12 + 10 + 1 and a waiting input of 1: four of them no longer fit, three do.
    tighter = budget(3, 2).largest_stage(model, [1, 4, 1]) - 1
    assert partition_within(costs, 3, model=model, budget=budget(3, 2), cap=tighter) in ([1, 3, 2], [2, 3, 1])


def test_nothing_fits() -> None:
    model = ModelMemory((layer(2**30, 10, 1), layer(1, 10, 1)), (1,))
    with pytest.raises(PartitionError, match=r"no partition fits into 1\.00 GiB .* needs 12\.00 GiB"):
        partition_within([1, 1], 2, model=model, budget=budget(2, 1), cap=2**30)
    with pytest.raises(PartitionError, match="3 costs for 2 layers"):
        partition_within([1, 1, 1], 2, model=model, budget=budget(2, 1), cap=2**30)
    assert not fits(model, 3, budget(3, 1), 2**60)
