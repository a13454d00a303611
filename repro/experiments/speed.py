"""Step time of K = 2 beside a bare loop, PyTorch's own pipeline and one process, all in one interleaved run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from repro.schedules import bubble

from . import peers
from .ranks import Tell
from .rows import Provenance, Row
from .workload import BARE_LOOP, ENGINE, NUM_STAGES, ONE_PROCESS, TORCH, SpeedPlan, Workload

EXPERIMENT = "step_time"
# Of float32 gradients, largest difference relative to the largest entry: sums in another order.
GRADIENT_TOLERANCE = 1e-4


def time_ways(rank: int, tell: Tell, workload: Workload, plan: SpeedPlan) -> dict[str, list[float]]:
    """Seconds a step of each way in each round; runs on both of two ranks with a gloo group between them.

    Every way is first shown to give the gradients of one process.

    Raises:
        RuntimeError: one does not.
    """
    dist.init_process_group("gloo")
    ways = {
        ENGINE: peers.engine(workload, rank),
        BARE_LOOP: peers.bare_loop(workload, rank),
        TORCH: peers.torch_pipelining(workload, rank),
    }
    alone = peers.one_process(workload)
    steps = {name: way.step for name, way in ways.items()} | {ONE_PROCESS: alone.step if rank == 0 else _wait_idle}
    try:
        alone.step()
        for name, way in ways.items():
            way.step()
            _check_gradients(name, way, alone)
        for step in steps.values():
            dist.barrier()
            for _ in range(plan.warm_up):
                step()
        names = list(steps)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        gc.collect()
        gc.disable()
        for number in range(plan.rounds):
            if rank == 0:
                tell(number / plan.rounds, f"round {number + 1} of {plan.rounds}")
            for name in names[number % len(names) :] + names[: number % len(names)]:
                step = steps[name]
                dist.barrier()
                begun = time.perf_counter()
                for _ in range(plan.steps):
                    step()
                dist.barrier()
                seconds[name].append((time.perf_counter() - begun) / plan.steps)
        return seconds
    finally:
        gc.enable()
        for way in ways.values():
            way.close()


def speed_rows(workload: Workload, plan: SpeedPlan, seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    """Step times, and paired ratios of the engine to each other way (``step_time_ratio``).

    Args:
        seconds: by way, one value a round; values of the same round were taken one right after the other.
    """
    rows = []
    for name, values in seconds.items():
        value, spread = median_and_spread(values)
        rows.append(_row(workload, plan, "step_time", value, "s", spread, name))
    for name in (ONE_PROCESS, BARE_LOOP, TORCH):
        paired = [ours / other for ours, other in zip(seconds[ENGINE], seconds[name], strict=True)]
        value, spread = median_and_spread(paired)
        rows.append(_row(workload, plan, "step_time_ratio", value, "1", spread, ENGINE, reference=name))
    for name in (ENGINE, BARE_LOOP, TORCH):
        paired = [alone / other for alone, other in zip(seconds[ONE_PROCESS], seconds[name], strict=True)]
        value, spread = median_and_spread(paired)
        rows.append(_row(workload, plan, "speed_up", value, "1", spread, name, reference=ONE_PROCESS))
    ideal = ideal_ratio(NUM_STAGES, workload.num_micro_batches)
    rows.append(
        _row(workload, plan, "step_time_ratio", ideal, "1", None, "ideal", Provenance.SIMULATED, reference=ONE_PROCESS)
    )
    return rows


def ideal_ratio(num_stages: int, num_micro_batches: int) -> float:
    """(M + K - 1) / (M K): step time of equal stages relative to one process, messages free."""
    return 1 / num_stages / (1 - bubble(num_stages, num_micro_batches))


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and half the interquartile range (0 for fewer than two values)."""
    if len(values) < 2:
        return values[0], 0.0
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return middle, (third - first) / 2


def _row(
    workload: Workload,
    plan: SpeedPlan,
    metric: str,
    value: float,
    unit: str,
    spread: float | None,
    way: str,
    provenance: Provenance = Provenance.MEASURED,
    **params: Any,
) -> Row:
    alone = way == ONE_PROCESS
    return Row(
        experiment=EXPERIMENT,
        model=f"{workload.num_layers} Transformer layers ({workload.d_model}, {workload.d_ff}, {workload.num_heads})",
        batch_size=workload.batch_size,
        num_stages=1 if alone else NUM_STAGES,
        num_micro_batches=workload.num_micro_batches,
        schedule=None if alone else "gpipe",
        remat="never",
        provenance=provenance,
        metric=metric,
        value=value,
        unit=unit,
        spread=spread,
        params={"way": way, "threads_per_process": 1, **asdict(plan), **asdict(workload), **params},
    )


def _check_gradients(name: str, way: peers.Way, alone: peers.Way) -> None:
    for parameter, ours in way.parameters.items():
        gradient, wanted = ours.grad, alone.parameters[parameter].grad
        assert wanted is not None
        error = float("inf") if gradient is None else float((gradient - wanted).abs().max() / wanted.abs().max())
        if not error <= GRADIENT_TOLERANCE:
            raise RuntimeError(
                f"{name} gives another gradient of {parameter} than one process (largest difference {error:.1e} of the "
                "largest entry): the comparison of times would be of different work"
            )


def _wait_idle() -> None:
    """What rank 1 does while rank 0 runs alone: nothing, the barrier after it waits without using the core."""
