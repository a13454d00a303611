"""Times several ways of doing the same thing in turns, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from .ranks import Tell

Step = Callable[[], None]


def time_in_turns(
    steps: Mapping[str, Step], tell: Tell, *, rounds: int, repeats: int, warm_up: int
) -> dict[str, list[float]]:
    """Seconds of one step of each way in each round; every rank calls with the same ways in the same order.

    Args:
        steps: by way, one step of this rank; a rank that has no part in a way gives a function that does nothing.
        tell: progress, of rank 0.
        rounds: each runs every way once, in an order that rotates.
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
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if alone or dist.get_rank() == 0:
                tell(number / rounds, f"round {number + 1} of {rounds}")
            first = number % len(names)
            for name in names[first:] + names[:first]:
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
