"""Which contiguous run of layers each stage gets."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from repro.errors import UserError


class PartitionError(UserError):
    """Layers that cannot be dealt out to the stages as asked."""


def partition(costs: Sequence[float | Fraction], num_stages: int) -> list[int]:
    """Splits a sequence of layers into contiguous, non-empty stages with the smallest possible bottleneck.

    The bottleneck, the cost of the dearest stage, is optimal and exact: sums are taken without rounding. Among the
    partitions that reach it, every stage in turn gets the number of layers that brings it closest to the mean of what
    is left, then closest to the mean number of layers, then the smaller number, so the result is deterministic. (The
    GPipe paper, section 2.2, minimises the variance of the stages' costs; the step time follows the bottleneck.)

    Args:
        costs: one non-negative number per layer, any unit.
        num_stages: K x V, the number of stages.

    Returns:
        The number of layers of every stage, first stage first.

    Raises:
        PartitionError: fewer layers than stages, ``num_stages`` below 1, or a cost that is negative or not finite.

    Example:
        >>> partition([4, 1, 1, 1, 1, 4], 3)
        [1, 4, 1]
    """
    num_layers = len(costs)
    _check_sizes(num_layers, num_stages)
    prefix = _prefix_sums(costs)
    bottleneck = _bottleneck(prefix, num_stages)

    # earliest[i]: the smallest end of stage i from which the stages after it can still hold the rest.
    earliest = [num_layers] * num_stages
    for stage in range(num_stages - 1, 0, -1):
        earliest[stage - 1] = bisect_left(prefix, prefix[earliest[stage]] - bottleneck)

    counts: list[int] = []
    begin = 0
    for stage in range(num_stages):
        stages_left = num_stages - stage
        low = max(earliest[stage], begin + 1)
        high = min(bisect_right(prefix, prefix[begin] + bottleneck) - 1, num_layers - stages_left + 1)
        end = _closest_end(prefix, begin, low, high, stages_left)
        counts.append(end - begin)
        begin = end
    return counts


def check_partition(counts: Sequence[int], num_layers: int, num_stages: int) -> list[int]:
    """Returns layer counts that a user gave, as a list, after checking that they deal out every layer.

    Raises:
        PartitionError: not one count per stage, a count that is not a whole number of at least 1, or a wrong sum; the
            message repeats the list and its sum.
    """
    _check_sizes(num_layers, num_stages)
    given = list(counts)
    for count in given:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise PartitionError(f"partition={given}: {count!r} is no number of layers; each stage needs at least 1")
    if len(given) != num_stages:
        raise PartitionError(
            f"partition={given} has {len(given)} entries for {num_stages} stages: give one number of layers per stage"
        )
    if sum(given) != num_layers:
        raise PartitionError(
            f"partition={given} adds up to {sum(given)} layers, but the model has {num_layers}: "
            "the numbers must add up to all of them"
        )
    return given


def stage_costs(costs: Sequence[float | Fraction], counts: Sequence[int]) -> list[float | Fraction]:
    """The cost of every stage; the largest one is the bottleneck."""
    ends = list(accumulate(counts))
    return [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _check_sizes(num_layers: int, num_stages: int) -> None:
    if not isinstance(num_stages, int) or isinstance(num_stages, bool) or num_stages < 1:
        raise PartitionError(f"num_stages={num_stages!r}: give a whole number of at least 1")
    if num_layers < num_stages:
        raise PartitionError(
            f"num_stages={num_stages} stages for {num_layers} layers: every stage (num_stages x num_virtual_stages of "
            f"them) needs at least one layer, so at most {num_layers} stages, or a model with more layers"
        )


def _prefix_sums(costs: Sequence[float | Fraction]) -> list[int]:
    """Sums of the first 0, 1, ... costs as whole numbers of a common unit, so that nothing is rounded."""
    for layer, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise PartitionError(f"cost {cost!r} of layer {layer}: give a finite number of at least 0")
    exact = [Fraction(cost) for cost in costs]
    unit = math.lcm(*(cost.denominator for cost in exact))
    return list(accumulate((cost.numerator * (unit // cost.denominator) for cost in exact), initial=0))


def _bottleneck(prefix: list[int], num_stages: int) -> int:
    """The smallest limit under which filling stage after stage needs at most ``num_stages`` of them.

    Stages left over cost nothing: any longer stage can be cut for them.
    """

    def fits(limit: int) -> bool:
        end = 0
        for _ in range(num_stages):
            end = bisect_right(prefix, prefix[end] + limit) - 1
            if end == len(prefix) - 1:
                return True
        return False

    total = prefix[-1]
    low, high = -(-total // num_stages), total
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _closest_end(prefix: list[int], begin: int, low: int, high: int, stages_left: int) -> int:
    """The end in ``low..high`` whose stage is closest to the mean cost, then the mean size, of what is left."""
    target = Fraction(prefix[-1] - prefix[begin], stages_left) + prefix[begin]
    middle = begin + Fraction(len(prefix) - 1 - begin, stages_left)
    above = min(max(bisect_left(prefix, target), low), high)
    candidates = []
    for value in {prefix[above], prefix[max(above - 1, low)]}:
        # Layers that cost nothing make a plateau of equal sums: take the end on it that is closest to the mean size.
        first = max(bisect_left(prefix, value), low)
        final = min(bisect_right(prefix, value) - 1, high)
        candidates += [min(max(end, first), final) for end in (math.floor(middle), math.ceil(middle))]
    return min(candidates, key=lambda end: (abs(prefix[end] - target), abs(end - middle), end))
