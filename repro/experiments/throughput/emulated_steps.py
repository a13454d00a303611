"""Steps of full-size models on emulated layers: K real processes with the real engine, schedule, remat and messages."""

from __future__ import annotations

import gc
import time
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from repro.gpipe import Engine
from repro.gpipe.mesh import PipelineMesh
from repro.planning import partition

from ..emulation.layers import Pace, boundary_rows, emulated_stage, sum_of_outputs
from ..sweeps.ranks import Tell
from ..sweeps.timers import sharpen_timers, wait_until
from .cells import LARGEST_MESSAGE, Setting, TableCell, message_row_bytes

_WAIT = 0.005
_ROUNDS = 40
_SMALLEST_MESSAGE = 64


@dataclass(frozen=True)
class EmulatedPlan:
    """Cells of the same K, one after the other on the same processes.

    Attributes:
        setting: the model.
        cells: all with the same K.
        remats: every cell is run with each.
        factor: seconds for each second that a layer or a link takes.
        repeats: steps of each.
    """

    setting: Setting
    cells: tuple[TableCell, ...]
    remats: tuple[str, ...]
    factor: float
    repeats: int


def emulate(rank: int, tell: Tell, plan: EmulatedPlan) -> dict[str, Any]:
    """Runs the cells of a plan on K ranks.

    Returns:
        ``latency`` (s), ``bandwidth`` (bytes/s) of messages and ``overshoot`` (s) of waits, measured before and after
        the steps: whatever else the machine does only adds to them, so the smaller one counts;
        ``steps``: for each cell and remat, the seconds of each step, from the first rank's start to the last one's end.
    """
    sharpen_timers()
    dist.init_process_group("gloo")
    num_stages = plan.cells[0].num_stages
    mesh = PipelineMesh(num_stages)
    try:
        before = _HostCosts.measured(rank)
        steps: list[dict[str, Any]] = []
        total = len(plan.cells) * len(plan.remats)
        gc.collect()
        gc.disable()
        for cell in plan.cells:
            for remat in plan.remats:
                tell(len(steps) / total, f"K={num_stages} M={cell.num_micro_batches}, remat {remat}")
                seconds = _run(rank, mesh, plan, cell, remat)
                steps.append({"num_micro_batches": cell.num_micro_batches, "remat": remat, "seconds": seconds})
        host = before.or_less(_HostCosts.measured(rank))
        return {
            "latency": host.small_message,
            "bandwidth": host.bandwidth,
            "overshoot": host.overshoot,
            "steps": steps,
        }
    finally:
        gc.enable()
        mesh.close()


def _run(rank: int, mesh: PipelineMesh, plan: EmulatedPlan, cell: TableCell, remat: str) -> list[float]:
    costs = plan.setting.costs
    counts = partition(costs.both, cell.num_stages)
    pace = Pace(0.0)
    engine = Engine(
        emulated_stage(rank, counts, costs.forward, costs.backward, costs.boundary_bytes, plan.setting.link, pace),
        counts,
        num_micro_batches=cell.num_micro_batches,
        loss=sum_of_outputs,
        remat=remat,
        mesh=mesh,
    )
    inputs = targets = None
    if rank == 0:
        inputs = boundary_rows(cell.batch_size, message_row_bytes(plan.setting, cell.batch_size))
        targets = torch.zeros(cell.batch_size, 1)
    try:
        engine.train_step(inputs, targets, batch_counter=0)
        pace.factor = plan.factor
        seconds = []
        for number in range(plan.repeats):
            dist.barrier()
            begun = time.perf_counter()
            engine.train_step(inputs, targets, batch_counter=number + 1)
            ended = time.perf_counter()
            # All ranks are on one machine, so they read one clock.
            moments: list[Any] = [None] * cell.num_stages
            dist.all_gather_object(moments, (begun, ended))
            seconds.append(max(end for _, end in moments) - min(begin for begin, _ in moments))
        return seconds
    finally:
        engine.close()


@dataclass(frozen=True)
class _HostCosts:
    """What a wait and a message cost on this machine beside what they emulate, in seconds.

    Attributes:
        overshoot: by which a wait is late while every rank waits: the median on this rank.
        small_message: from rank 0 to rank 1; 0 on the others.
        large_message: likewise, of the largest size that is sent.
    """

    overshoot: float
    small_message: float
    large_message: float

    @classmethod
    def measured(cls, rank: int) -> _HostCosts:
        """All ranks must call."""
        dist.barrier()
        overshoot = _overshoot()
        small, large = (_one_way(rank, size) for size in (_SMALLEST_MESSAGE, LARGEST_MESSAGE))
        dist.barrier()
        return cls(overshoot, small, large)

    def or_less(self, other: _HostCosts) -> _HostCosts:
        """The smaller one of each."""
        return _HostCosts(*map(min, astuple(self), astuple(other)))

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        # On a busy machine the large message may happen to be the faster one.
        return LARGEST_MESSAGE / max(self.large_message - self.small_message, 1e-6)


def _overshoot() -> float:
    late = []
    for _ in range(_ROUNDS):
        due = time.perf_counter() + _WAIT
        wait_until(due)
        late.append(time.perf_counter() - due)
    return median(late)


def _one_way(rank: int, size: int) -> float:
    if rank > 1:
        return 0.0
    buffer = torch.zeros(size, dtype=torch.uint8)
    seconds = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        for sender in (0, 1):
            if rank == sender:
                dist.send(buffer, 1 - rank)
            else:
                dist.recv(buffer, 1 - rank)
        seconds.append((time.perf_counter() - begun) / 2)
    return median(seconds)
