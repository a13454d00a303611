"""Times several ways of doing the same thing in turns, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from .ranks import Tell

Step = Callable[[], None]
_T = TypeVar("_T")


def time_in_turns(
    steps: Mapping[str, Step], tell: Tell, *, rounds: int, repeats: int, warm_up: int
) -> dict[str, list[float]]:
    """Seconds of one step of each way in each round; every rank calls with the same ways in the same order.

    Args:
        steps: by way, one step of this rank; a rank that has no part in a way gives a function that does nothing.
        tell: progress, of rank 0.
        rounds: each runs every way once, in ``balanced_orders``.
        repeats: steps of a way in a round, timed together from barrier to barrier.
        warm_up: steps of each way before, not timed.
    """
    # Only now: medians and ratios need no torch.
    import torch.distributed as dist

    alone = not dist.is_initialized()
    barrier = _nothing if alone else dist.barrier
    for step in steps.values():
        barrier()
        for _ in range(warm_up):
            step()
    orders = balanced_orders(list(steps))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if alone or dist.get_rank() == 0:
                tell(number / rounds, f"round {number + 1} of {rounds}")
            for name in orders[number % len(orders)]:
                step = steps[name]
                barrier()
                begun = time.perf_counter()
                for _ in range(repeats):
                    step()
                barrier()
                seconds[name].append((time.perf_counter() - begun) / repeats)
        return seconds
    finally:
        gc.enable()


def balanced_orders(ways: Sequence[_T]) -> list[list[_T]]:
    """Orders in which each way stands in every place, and right after every other way, equally often.

    What ran before a way has a part in its time: it leaves caches behind, and threads that are not done yet. (E. J.
    Williams, 1949: one order for each way, two where their number is odd.)
    """
    count, places = len(ways), [0]
    for step in range(1, count):
        places.append((places[-1] + (step if step % 2 else -step)) % count)
    orders = []
    for shift in range(count):
        order = [ways[(place + shift) % count] for place in places]
        orders += [order, order[::-1]] if count % 2 else [order]
    return orders


def paired_ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios of what was timed in the same round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and half the interquartile range (0 for fewer than two values)."""
    if len(values) < 2:
        return values[0], 0.0
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return middle, (third - first) / 2


def _nothing() -> None:
    return None
