"""Step time of K = 2 beside a bare loop, PyTorch's own pipeline and others, all in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B

from repro.schedules import bubble

from ..costs.workload import (
    BARE_LOOP,
    ENGINE,
    ENGINE_1F1B,
    NUM_STAGES,
    ONE_PROCESS,
    TORCH,
    TORCH_1F1B,
    TORCHGPIPE,
    SpeedPlan,
    Workload,
)
from ..sweeps.ranks import Tell
from ..sweeps.rows import Provenance, Row
from ..sweeps.turns import median_and_spread, paired_ratios, time_in_turns
from . import ways as peers

EXPERIMENT = "step_time"
# Of float32 gradients, largest difference relative to the largest entry: sums in another order.
GRADIENT_TOLERANCE = 1e-4
WAYS = (ENGINE, BARE_LOOP, TORCH, ONE_PROCESS)

# Those of two processes, and those that rank 0 runs while rank 1 waits.
_IN_TWO: Mapping[str, Callable[[Workload, int], peers.Way]] = MappingProxyType(
    {
        ENGINE: peers.engine,
        ENGINE_1F1B: partial(peers.engine, schedule="1f1b"),
        BARE_LOOP: peers.bare_loop,
        TORCH: peers.torch_pipelining,
        TORCH_1F1B: partial(peers.torch_pipelining, kind=Schedule1F1B),
    }
)
_IN_ONE: Mapping[str, Callable[[Workload], peers.Way]] = MappingProxyType(
    {ONE_PROCESS: peers.one_process, TORCHGPIPE: peers.torchgpipe}
)


def time_ways(
    rank: int, tell: Tell, workload: Workload, plan: SpeedPlan, names: Sequence[str] = WAYS
) -> dict[str, list[float]]:
    """Seconds a step of each way in each round; runs on both of two ranks with a gloo group between them.

    Every way is first shown to give the gradients of one process.

    Raises:
        RuntimeError: one does not.
    """
    dist.init_process_group("gloo")
    alone = peers.one_process(workload)
    alone.step()
    ways: dict[str, peers.Way] = {}
    try:
        for name in names:
            if name in _IN_TWO:
                ways[name] = _IN_TWO[name](workload, rank)
            elif rank == 0:
                ways[name] = _IN_ONE[name](workload)
            else:
                continue
            ways[name].step()
            _check_gradients(name, ways[name], alone)
        steps = {name: ways[name].step if name in ways else _wait_idle for name in names}
        return time_in_turns(steps, tell, rounds=plan.rounds, repeats=plan.steps, warm_up=plan.warm_up)
    finally:
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
        value, spread = median_and_spread(paired_ratios(seconds[ENGINE], seconds[name]))
        rows.append(_row(workload, plan, "step_time_ratio", value, "1", spread, ENGINE, reference=name))
    for name in (ENGINE, BARE_LOOP, TORCH):
        value, spread = median_and_spread(paired_ratios(seconds[ONE_PROCESS], seconds[name]))
        rows.append(_row(workload, plan, "speed_up", value, "1", spread, name, reference=ONE_PROCESS))
    ideal = ideal_ratio(NUM_STAGES, workload.num_micro_batches)
    rows.append(
        _row(workload, plan, "step_time_ratio", ideal, "1", None, "ideal", Provenance.SIMULATED, reference=ONE_PROCESS)
    )
    return rows


def ideal_ratio(num_stages: int, num_micro_batches: int) -> float:
    """(M + K - 1) / (M K): step time of equal stages relative to one process, messages free."""
    return 1 / num_stages / (1 - bubble(num_stages, num_micro_batches))


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
