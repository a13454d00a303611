"""Which contiguous run of layers each stage gets."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from repro.errors import UserError


class PartitionError(UserError):
    """Layers that cannot be dealt out to the stages as asked."""


def partition(
    costs: Sequence[float | Fraction],
    num_stages: int,
    *,
    sizes: Sequence[float | Fraction] | None = None,
    caps: Sequence[float | Fraction] | float | Fraction | None = None,
) -> list[int]:
    """Splits a sequence of layers into contiguous, non-empty stages with the smallest possible bottleneck.

    The bottleneck, the cost of the dearest stage, is optimal and exact: sums are taken without rounding. Among the
    partitions that reach it, every stage in turn gets the number of layers that brings it closest to the mean of what
    is left, then closest to the mean number of layers, then the smaller number, so the result is deterministic. (The
    GPipe paper, section 2.2, minimises the variance of the stages' costs; the step time follows the bottleneck.)

    Args:
        costs: one non-negative number per layer, any unit.
        num_stages: K x V, the number of stages.
        sizes: what each layer takes of its stage's cap, for example bytes; needed with ``caps``.
        caps: the most that the sizes of a stage may add up to, one number or one per stage. The bottleneck is the
            smallest of the partitions that keep to them.

    Returns:
        The number of layers of every stage, first stage first.

    Raises:
        PartitionError: fewer layers than stages, ``num_stages`` below 1, a cost that is negative or not finite, or caps
            that no partition keeps to.

    Example:
        >>> partition([4, 1, 1, 1, 1, 4], 3)
        [1, 4, 1]
    """
    num_layers = len(costs)
    _check_sizes(num_layers, num_stages)
    prefix = _prefix_sums(costs)
    if caps is not None:
        return _capped(prefix, num_stages, *_check_caps(num_layers, num_stages, sizes, caps))
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


def _check_caps(
    num_layers: int,
    num_stages: int,
    sizes: Sequence[float | Fraction] | None,
    caps: Sequence[float | Fraction] | float | Fraction,
) -> tuple[list[Fraction], list[Fraction]]:
    """Sums of the first 0, 1, ... sizes, and a cap for every stage."""
    given = list(caps) if isinstance(caps, Sequence) else [caps] * num_stages
    if sizes is None or len(sizes) != num_layers:
        raise PartitionError(
            f"caps={given} need sizes, one for each of the {num_layers} layers; got "
            f"{'none' if sizes is None else len(sizes)}"
        )
    if len(given) != num_stages:
        raise PartitionError(f"caps={given} has {len(given)} entries for {num_stages} stages: give one per stage")
    for name, values in (("size", sizes), ("cap", given)):
        for value in values:
            if not (math.isfinite(value) and value >= 0):
                raise PartitionError(f"{name} {value!r}: give a finite number of at least 0")
    exact = [Fraction(size) for size in sizes]
    return list(accumulate(exact, initial=Fraction(0))), [Fraction(cap) for cap in given]


def _capped(prefix: list[int], num_stages: int, sizes: list[Fraction], caps: list[Fraction]) -> list[int]:
    """The partition with the smallest bottleneck among those that keep to the caps.

    Which prefixes of the layers the first s stages can hold is no interval any more (a cap may leave out single
    layers), so all of them are tracked, for every limit that a binary search tries.
    """
    ends = [_furthest(sizes, cap) for cap in caps]
    if not _holds(prefix, prefix[-1], ends)[-1][-1]:
        tight = max(range(num_stages), key=lambda stage: caps[stage])
        raise PartitionError(
            f"no {num_stages} stages keep to the caps: the layers take {float(sizes[-1]):g} in all, the largest "
            f"{max(float(b - a) for a, b in pairwise(sizes)):g}, and the caps allow "
            f"{float(sum(caps)):g} in all, {float(caps[tight]):g} at most on one; use more stages, or more per stage"
        )
    low, high = _bottleneck(prefix, num_stages), prefix[-1]
    while low < high:
        middle = (low + high) // 2
        if _holds(prefix, middle, ends)[-1][-1]:
            high = middle
        else:
            low = middle + 1
    # From the last stage backwards: of the begins that the stages before can hold, the one closest to the mean.
    held = _holds(prefix, low, ends)
    counts: list[int] = []
    end = len(prefix) - 1
    for stage in range(num_stages - 1, -1, -1):
        target = Fraction(prefix[end] * stage, stage + 1)
        begins = [
            begin
            for begin in range(stage, end)
            if held[stage][begin] and ends[stage][begin] >= end and prefix[end] - prefix[begin] <= low
        ]
        begin = min(begins, key=lambda b: (abs(prefix[b] - target), abs(b - Fraction(end * stage, stage + 1)), b))
        counts.append(end - begin)
        end = begin
    return counts[::-1]


def _furthest(sizes: list[Fraction], cap: Fraction) -> list[int]:
    """For every begin, the largest end of a stage whose sizes keep to ``cap``."""
    return [bisect_right(sizes, size + cap) - 1 for size in sizes]


def _holds(prefix: list[int], limit: int, ends: list[list[int]]) -> list[list[bool]]:
    """For every s, which numbers of layers the first s stages can hold, each at least one, none above ``limit``."""
    num_layers = len(prefix) - 1
    within = [bisect_right(prefix, cost + limit) - 1 for cost in prefix]
    held = [[begin == 0 for begin in range(num_layers + 1)]]
    for furthest in ends:
        reached = [False] * (num_layers + 1)
        done = 0
        for begin, possible in enumerate(held[-1]):
            if possible:
                end = min(within[begin], furthest[begin])
                first = max(done, begin) + 1
                if end >= first:
                    reached[first : end + 1] = [True] * (end + 1 - first)
                    done = end
        held.append(reached)
    return held


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
