"""Activations that each rank of the real engine holds during a step, in bytes, beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.planning import partition
from repro.planning.memory import live_sets, peak_bytes
from repro.schedules import make_schedule

from ..costs.scaled_down import SmallModel, build_engine, cross_entropy
from ..sweeps.ranks import Tell


@dataclass(frozen=True)
class MemoryPlan:
    """What is measured in one job.

    Attributes:
        model: what runs.
        num_stages: K.
        num_micro_batches: every M.
        remats: every mode of re-materialization.
        processes: a process for each stage; otherwise all stages run in one.
        device: of all stages.
    """

    model: SmallModel
    num_stages: int
    num_micro_batches: tuple[int, ...]
    remats: tuple[str, ...]
    processes: bool
    device: str


def measure_memory(rank: int, tell: Tell, plan: MemoryPlan) -> list[dict[str, Any]]:
    """One step of each M and remat; for each, predicted and measured bytes of every rank."""
    import torch
    import torch.distributed as dist

    from repro.gpipe.memory import count_memory
    from repro.gpipe.mesh import PipelineMesh

    mesh = None
    if plan.processes:
        dist.init_process_group("gloo")
        mesh = PipelineMesh(plan.num_stages)
    device = torch.device(plan.device)
    counts = partition(plan.model.costs(), plan.num_stages)
    cells = [(micro_batches, remat) for micro_batches in plan.num_micro_batches for remat in plan.remats]
    measured = []
    for number, (micro_batches, remat) in enumerate(cells):
        tell(number / len(cells), f"K={plan.num_stages}, M={micro_batches}, remat {remat}")
        few, aims = plan.model.batch(-(-plan.model.batch_size // micro_batches))
        memory = count_memory(plan.model.factories(), few, loss=cross_entropy, targets=aims)
        schedule = make_schedule("gpipe", num_stages=plan.num_stages, num_micro_batches=micro_batches, remat=remat)
        peaks, allocated = _peaks(plan, counts, micro_batches, remat, mesh, device)
        measured.append(
            {
                "num_micro_batches": micro_batches,
                "remat": remat,
                "partition": counts,
                "predicted": peak_bytes(live_sets(schedule), memory.stages(counts)),
                "measured": [peaks[index] for index in range(plan.num_stages)],
                "allocated": allocated,
            }
        )
    if mesh is not None:
        mesh.close()
    return measured


def _peaks(
    plan: MemoryPlan, counts: list[int], micro_batches: int, remat: str, mesh: Any, device: Any
) -> tuple[Mapping[int, int], int | None]:
    """Bytes by rank; and on CUDA what the allocator gave out at most during the step, all stages of the device."""
    import torch
    import torch.distributed as dist

    from repro.gpipe.memory import MemoryRecorder

    engine = build_engine(
        plan.model, counts, num_micro_batches=micro_batches, remat=remat, mesh=mesh, device=device, trace=True
    )
    recorder = engine.recorder = MemoryRecorder(engine)
    inputs, targets = plan.model.batch(plan.model.batch_size) if mesh is None or mesh.reads_data else (None, None)
    allocated = None
    before = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    result = engine.train_step(inputs, targets, batch_counter=0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        allocated = torch.cuda.max_memory_allocated(device) - before
    del result
    peaks = dict(recorder.peaks)
    engine.close()
    if mesh is not None:
        everywhere: list[Any] = [None] * plan.num_stages
        dist.all_gather_object(everywhere, peaks)
        peaks = {index: size for some in everywhere for index, size in some.items()}
    return peaks, allocated
