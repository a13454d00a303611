from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import UserError
from repro.planning import PartitionError, check_partition, partition, stage_costs


def all_partitions(num_layers: int, num_stages: int) -> list[list[int]]:
    """Every way to cut ``num_layers`` into ``num_stages`` non-empty runs."""
    cuts = combinations(range(1, num_layers), num_stages - 1)
    return [[end - begin for begin, end in zip((0, *inner), (*inner, num_layers), strict=True)] for inner in cuts]


exact_costs = st.one_of(
    st.integers(0, 20),
    st.floats(0, 1e6, allow_nan=False, allow_subnormal=True),
    st.fractions(0, 10, max_denominator=7),
)


@given(costs=st.lists(exact_costs, min_size=1, max_size=10), data=st.data())
def test_bottleneck_equals_brute_force(costs: list[Fraction | float], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    exact = [Fraction(cost) for cost in costs]
    counts = partition(costs, num_stages)
    assert len(counts) == num_stages
    assert sum(counts) == len(costs)
    assert min(counts) >= 1
    best = min(max(stage_costs(exact, candidate)) for candidate in all_partitions(len(costs), num_stages))
    assert max(stage_costs(exact, counts)) == best
    assert partition(costs, num_stages) == counts


@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=12), data=st.data())
def test_the_unit_of_the_costs_does_not_matter(costs: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    assert partition([cost * 0.125 for cost in costs], num_stages) == partition(costs, num_stages)


@pytest.mark.parametrize(
    ("costs", "num_stages", "expected"),
    [
        ([1], 1, [1]),
        ([1, 1, 1, 1], 2, [2, 2]),
        ([1, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([4, 1, 1, 1, 1, 4], 3, [1, 4, 1]),
        ([9, 1, 1, 1], 2, [1, 3]),
        ([1, 1, 1, 9], 2, [3, 1]),
        # No stage is left with a short rest where an even split has the same bottleneck.
        ([1] * 10, 4, [2, 3, 2, 3]),
        # A costless head or tail, and layers of which none has a cost, still fill every stage.
        ([0, 0, 0, 5, 5], 2, [4, 1]),
        ([0, 0, 0, 0, 0, 0], 3, [2, 2, 2]),
        # 2**53 + 1 is no float: with rounded sums both cuts of these two would look equal.
        ([2.0**53, 1.0, 2.0**53 - 1], 2, [1, 2]),
        ([2.0**53 - 1, 1.0, 2.0**53], 2, [2, 1]),
    ],
)
def test_known_partitions(costs: list[float], num_stages: int, expected: list[int]) -> None:
    assert partition(costs, num_stages) == expected


def test_large_model() -> None:
    costs = [(7 * layer * layer + 3) % 101 + 0.1 for layer in range(2000)]
    counts = partition(costs, 128)
    assert sum(counts) == 2000
    exact = [Fraction(cost) for cost in costs]
    # No stage can be lighter than the mean, and one layer more than the mean always suffices.
    assert sum(exact) / 128 <= max(stage_costs(exact, counts)) <= sum(exact) / 128 + max(exact)


@pytest.mark.parametrize(
    ("costs", "num_stages", "parts"),
    [
        ([1, 2, 3], 4, ["num_stages=4", "3 layers", "at most 3"]),
        ([], 1, ["num_stages=1", "0 layers"]),
        ([1, 2], 0, ["num_stages=0", "at least 1"]),
        ([1, 2], 1.5, ["num_stages=1.5"]),
        ([1, 2], True, ["num_stages=True"]),
        ([1, -2], 1, ["-2", "layer 1"]),
        ([math.nan, 2], 1, ["nan", "layer 0"]),
        ([1, math.inf], 2, ["inf", "layer 1"]),
    ],
)
def test_partition_errors_repeat_the_input(costs: list[float], num_stages: int, parts: list[str]) -> None:
    with pytest.raises(PartitionError) as caught:
        partition(costs, num_stages)
    assert isinstance(caught.value, UserError)
    for part in parts:
        assert part in str(caught.value)


def test_check_partition_returns_the_counts_as_a_list() -> None:
    assert check_partition((2, 1, 3), num_layers=6, num_stages=3) == [2, 1, 3]


@pytest.mark.parametrize(
    ("counts", "num_layers", "num_stages", "parts"),
    [
        ([2, 2], 5, 2, ["[2, 2]", "adds up to 4", "5"]),
        ([2, 2, 1], 5, 2, ["[2, 2, 1]", "3 entries", "2 stages"]),
        ([5, 0], 5, 2, ["[5, 0]", "0", "at least 1"]),
        ([2.0, 3], 5, 2, ["[2.0, 3]", "2.0"]),
        ([1, 1, 1], 2, 3, ["num_stages=3", "2 layers"]),
    ],
)
def test_check_partition_errors(counts: list[int], num_layers: int, num_stages: int, parts: list[str]) -> None:
    with pytest.raises(PartitionError) as caught:
        check_partition(counts, num_layers, num_stages)
    for part in parts:
        assert part in str(caught.value)
