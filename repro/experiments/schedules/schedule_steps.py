"""Steps of the engine under each schedule on emulated equal stages: how long they take and what they keep alive."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from repro.gpipe import Engine
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.tracing import Recorder
from repro.schedules import Action

from ..emulation.layers import Pace, boundary_rows, sum_of_outputs
from ..emulation.split import SplitLayer
from ..sweeps.ranks import Tell
from ..sweeps.timers import sharpen_timers
from ..sweeps.turns import balanced_orders
from ..traces.bubbles import measured_bubble
from ..traces.schedule_costs import traced_costs
from .schedule_plan import Order, SchedulePlan

_BOUNDARY_BYTES = 4096


class LiveRecorder(Recorder):
    """In place of an engine's recorder: how many micro-batches of one stage have activations on this rank, at most.

    Args:
        engine: with a mesh, so that all its stages are on this rank.

    Attributes:
        peak: since the last ``clear``, with which every step begins.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._stages = tuple(engine.stages.values())
        self.peak = 0

    @override
    def clear(self) -> None:
        super().clear()
        self.peak = 0

    @contextmanager
    @override
    def running(self, rank: int, action: Action) -> Iterator[None]:
        with super().running(rank, action):
            yield
        self.peak = max(self.peak, sum(stage.live_activations for stage in self._stages))


def run_schedules(rank: int, tell: Tell, plan: SchedulePlan) -> list[dict[str, Any]]:
    """Runs a plan on its K ranks: for each M, rounds with one step of every schedule, in an order that changes.

    Returns:
        A dict for each M and order: ``num_micro_batches``, ``schedule``, ``num_virtual_stages``; ``seconds`` of each
        step, from the first rank's start to the last one's end; ``bubbles`` and ``costs`` of each step, from its trace;
        ``peak_live`` by rank, from a step before them that waits for nothing.
    """
    sharpen_timers()
    dist.init_process_group("gloo")
    mesh = PipelineMesh(plan.num_stages)
    results: list[dict[str, Any]] = []
    try:
        for number, num_micro_batches in enumerate(plan.micro_batches):
            if rank == 0:
                tell(number / len(plan.micro_batches), f"M = {num_micro_batches}, remat {plan.remat}")
            results += _run(plan, num_micro_batches, mesh)
        return results
    finally:
        mesh.close()


def _run(plan: SchedulePlan, num_micro_batches: int, mesh: PipelineMesh) -> list[dict[str, Any]]:
    pace = Pace(0.0)
    engines = [_engine(plan, order, num_micro_batches, mesh, pace) for order in plan.orders]
    inputs = targets = None
    if mesh.reads_data:
        inputs, targets = boundary_rows(num_micro_batches, _BOUNDARY_BYTES), torch.zeros(num_micro_batches, 1)
    results: list[dict[str, Any]] = []
    for order, engine in zip(plan.orders, engines, strict=True):
        before, engine.recorder = engine.recorder, LiveRecorder(engine)
        engine.train_step(inputs, targets, batch_counter=0)
        peaks: list[Any] = [None] * plan.num_stages
        dist.all_gather_object(peaks, engine.recorder.peak)
        engine.recorder = before
        results.append(
            {
                "num_micro_batches": num_micro_batches,
                "schedule": order.schedule,
                "num_virtual_stages": order.num_virtual_stages,
                "seconds": [],
                "bubbles": [],
                "costs": [],
                "peak_live": peaks,
            }
        )
    orders = balanced_orders(range(len(engines)))
    pace.factor = 1.0
    gc.collect()
    gc.disable()
    try:
        for number in range(plan.rounds):
            for which in orders[number % len(orders)]:
                dist.barrier()
                begun = time.perf_counter()
                engines[which].train_step(inputs, targets, batch_counter=number + 1)
                ended = time.perf_counter()
                # All ranks are on one machine, so they read one clock.
                told: list[Any] = [None] * plan.num_stages
                dist.all_gather_object(told, (begun, ended, engines[which].events))
                results[which]["seconds"].append(max(end for _, end, _ in told) - min(begin for begin, _, _ in told))
                events = [event for *_, own in told for event in own]
                total_stages = plan.num_stages * plan.orders[which].num_virtual_stages
                results[which]["bubbles"].append(measured_bubble(events))
                results[which]["costs"].append(traced_costs(events, total_stages).as_dict())
        return results
    finally:
        gc.enable()
        for engine in engines:
            engine.close()


def _engine(plan: SchedulePlan, order: Order, num_micro_batches: int, mesh: PipelineMesh, pace: Pace) -> Engine:
    virtual = order.num_virtual_stages
    forward, part = plan.forward / virtual, plan.backward / virtual / 2
    placement = plan.schedule(order, num_micro_batches).placement
    return Engine(
        {
            stage: SplitLayer(forward, part, part, pace)
            for stage, ranks in enumerate(placement)
            if mesh.pipeline_rank in ranks
        },
        [1] * (plan.num_stages * virtual),
        num_micro_batches=num_micro_batches,
        loss=sum_of_outputs,
        schedule=order.schedule,
        num_virtual_stages=virtual,
        remat=plan.remat,
        mesh=mesh,
        trace=True,
    )
