"""Runs steps of the engine on K processes with tracing on, and tells when everything happened."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Engine, Event, Transfer
from repro.gpipe.clocks import clock_offset, gather_trace
from repro.gpipe.gathering import gather_dicts
from repro.gpipe.memory import MemoryRecorder
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.stage import Loss
from repro.planning import partition

from ..costs.layer_costs import counted_flops
from ..costs.scaled_down import SmallTransformer, cross_entropy
from ..costs.workload import Workload
from ..emulation.layers import TimedLayer, boundary_rows, equal_stage, sum_of_outputs
from ..peers import ways as peers
from ..sweeps.ranks import Tell
from ..sweeps.timers import sharpen_timers
from .bubbles import measured_bubble, stage_costs
from .step_plan import EqualWaits, StepCell, StepPlan, WaitsOf

_BOUNDARY_BYTES = 4096
"""Of an emulated boundary, a row."""


@dataclass(frozen=True)
class Part:
    """What a rank has of a model.

    Attributes:
        counts: layers of every stage.
        layers: this rank's, by global index.
        loss: ``(sum, count)``.
        batch: makes inputs and targets of so many rows.
        optimizer: None where nothing is updated.
    """

    counts: list[int]
    layers: dict[int, nn.Module]
    loss: Loss
    batch: Any
    optimizer: torch.optim.Optimizer | None = None


def run_steps(rank: int, tell: Tell, plan: StepPlan) -> list[dict[str, Any]]:
    """Runs all cells of a plan on its K ranks.

    Returns:
        On rank 0 a dict a cell, JSON values: ``cell``, ``partition``, ``spans`` (seconds from the first start to the
        last end of an action, a step), ``bubbles`` and ``costs`` (of every step: medians by stage of F, B, R),
        ``seconds`` (a step from barrier to barrier), ``live_bytes`` (by rank, empty unless asked for), and, where they
        are kept, ``steps``: ``events``, ``transfers``, ``begun``, ``ended`` and ``updates`` (by rank, start and end) of
        each. Elsewhere dicts without these lists.
    """
    sharpen_timers()
    device = torch.device(plan.device.split(",")[rank] if plan.device != "cpu" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    mesh = PipelineMesh(plan.num_stages, device=device)
    part = _part(plan, rank, device)
    results = []
    try:
        for number, cell in enumerate(plan.cells):
            words = f"M = {cell.num_micro_batches}, {cell.rows} rows each, remat {cell.remat}"
            if rank == 0:
                tell(number / len(plan.cells), words)
            results.append(_run_cell(plan, cell, part, mesh, device))
        return results
    finally:
        mesh.close()


def _run_cell(plan: StepPlan, cell: StepCell, part: Part, mesh: PipelineMesh, device: torch.device) -> dict[str, Any]:
    engine = Engine(
        part.layers,
        part.counts,
        num_micro_batches=cell.num_micro_batches,
        loss=part.loss,
        remat=cell.remat,
        mesh=mesh,
        devices=[device],
        trace=True,
    )
    inputs, targets = part.batch(cell.batch_size) if mesh.reads_data else (None, None)
    result: dict[str, Any] = {
        "cell": {"num_micro_batches": cell.num_micro_batches, "rows": cell.rows, "remat": cell.remat},
        "partition": part.counts,
        "spans": [],
        "bubbles": [],
        "costs": [],
        "seconds": [],
        "live_bytes": [],
        "steps": [],
    }
    try:
        gc.collect()
        gc.disable()
        for step in range(-plan.warm_up, plan.steps):
            dist.barrier(group=mesh.control)
            begun = time.perf_counter()
            engine.train_step(inputs, targets, batch_counter=step + plan.warm_up).accumulate()
            updating = time.perf_counter()
            if part.optimizer is not None:
                part.optimizer.step()
                part.optimizer.zero_grad(set_to_none=True)
            _synchronize(device)
            ended = time.perf_counter()
            dist.barrier(group=mesh.control)
            after = time.perf_counter()
            trace = gather_trace(engine.recorder, mesh)
            offset = clock_offset(mesh).seconds
            own = [begun + offset, updating + offset, ended + offset]
            edges: Mapping[int, list[float]] = gather_dicts({mesh.pipeline_rank: own}, mesh)
            if mesh.reads_data and step >= 0:
                result["seconds"].append(after - begun)
                _note(result, plan, list(trace.actions), list(trace.transfers), edges, part.optimizer is not None)
        if plan.memory:
            result["live_bytes"] = _live_bytes(engine, inputs, targets, mesh)
        return result
    finally:
        gc.enable()
        engine.close()


def _note(
    result: dict[str, Any],
    plan: StepPlan,
    actions: list[Event],
    transfers: list[Transfer],
    edges: Mapping[int, list[float]],
    updates: bool,
) -> None:
    result["spans"].append(max(event.end for event in actions) - min(event.start for event in actions))
    result["bubbles"].append(measured_bubble(actions))
    result["costs"].append(stage_costs([actions], plan.num_stages).as_dict())
    if plan.keep:
        result["steps"].append(
            {
                "events": [list(event.as_dict().values()) for event in actions],
                "transfers": [list(transfer.as_dict().values()) for transfer in transfers],
                "begun": min(begun for begun, _, _ in edges.values()),
                "ended": max(ended for _, _, ended in edges.values()),
                "updates": [edges[rank][1:] for rank in sorted(edges)] if updates else [],
            }
        )


def _live_bytes(engine: Engine, inputs: Any, targets: Any, mesh: PipelineMesh) -> list[int]:
    recorder = MemoryRecorder(engine)
    before, engine.recorder = engine.recorder, recorder
    try:
        engine.train_step(inputs, targets, batch_counter=0)
    finally:
        engine.recorder = before
    found = gather_dicts({mesh.pipeline_rank: max(recorder.peaks.values(), default=0)}, mesh)
    return [found[rank] for rank in sorted(found)]


def _part(plan: StepPlan, rank: int, device: torch.device) -> Part:
    model = plan.model
    if isinstance(model, EqualWaits):
        stage = equal_stage(model.forward, model.backward)
        return Part([1] * plan.num_stages, {rank: stage}, sum_of_outputs, _waiting_rows)
    if isinstance(model, WaitsOf):
        return _waits_of(model, plan.num_stages, rank)
    torch.manual_seed(0)
    if isinstance(model, Workload):
        layers = peers.layers_of(model)
        counts = partition([1.0] * len(layers), plan.num_stages)

        def states(batch_size: int) -> tuple[Tensor, Tensor]:
            generator = torch.Generator().manual_seed(model.seed)
            shape = (batch_size, model.length, model.d_model)
            inputs = torch.randn(shape, generator=generator)
            return inputs.to(device), torch.randn(shape[:2], generator=generator).to(device)

        return Part(counts, _own(layers, counts, rank, device), _squares, states)
    factories = model.factories()
    counts = partition(model.costs(), plan.num_stages)
    own = _own([make() for make in factories], counts, rank, device)
    parameters = [parameter for layer in own.values() for parameter in layer.parameters()]
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters)
        if isinstance(model, SmallTransformer)
        else torch.optim.RMSprop(parameters, lr=1e-4, momentum=0.9)
    )

    def examples(batch_size: int) -> tuple[Tensor, Tensor]:
        inputs, targets = model.batch(batch_size)
        return inputs.to(device), targets.to(device)

    return Part(counts, own, cross_entropy, examples, optimizer)


def _waits_of(model: WaitsOf, num_stages: int, rank: int) -> Part:
    flops = counted_flops(model.model)
    costs = flops.at(sum(flops.both) * model.model.batch_size / model.seconds)
    counts = partition(costs.both, num_stages)
    begin = sum(counts[:rank])
    layers: dict[int, nn.Module] = {
        index: TimedLayer(costs.forward[index], costs.backward[index]) for index in range(begin, begin + counts[rank])
    }
    return Part(counts, layers, sum_of_outputs, _waiting_rows)


def _waiting_rows(batch_size: int) -> tuple[Tensor, Tensor]:
    return boundary_rows(batch_size, _BOUNDARY_BYTES), torch.zeros(batch_size, 1)


def _own(layers: list[nn.Module], counts: list[int], rank: int, device: torch.device) -> dict[int, nn.Module]:
    begin = sum(counts[:rank])
    return {index: layers[index].to(device) for index in range(begin, begin + counts[rank])}


def _squares(outputs: Any, targets: Any) -> tuple[Tensor, int]:
    return peers.loss_sum(outputs, targets), len(targets)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
