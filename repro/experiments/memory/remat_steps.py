"""Times the three modes of re-materialization in turns, on real layers, with what the trace and the memory say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.planning import partition
from repro.schedules import Remat

from ..costs.scaled_down import SmallModel, build_engine, cross_entropy
from ..sweeps.ranks import Tell
from ..sweeps.turns import time_in_turns

WHOLE = "whole"
"""The unsplit model on one device: the whole mini-batch at once, everything kept."""


@dataclass(frozen=True)
class RematPlan:
    """What is timed in one job.

    Attributes:
        model: what runs, dropout 0.
        num_stages: K.
        num_micro_batches: M.
        processes: a process for each stage; otherwise all stages share one process and device.
        device: of all stages.
        rounds: each runs every way once.
        warm_up: steps of each way before.
    """

    model: SmallModel
    num_stages: int
    num_micro_batches: int
    processes: bool
    device: str
    rounds: int
    warm_up: int


def time_remat(rank: int, tell: Tell, plan: RematPlan) -> dict[str, Any]:
    """Runs all ways in turns.

    Returns:
        ``seconds`` by way (a mode of remat, or ``WHOLE``), one a round; ``costs`` by mode: of F, B and R, medians by
        stage; ``early``: of the traced steps with ``always``, on how many rank boundaries R could and did begin before
        the gradient was there; ``peaks``: by mode, activation bytes of each rank.
    """
    import torch
    import torch.distributed as dist

    from repro.gpipe.mesh import PipelineMesh

    mesh = None
    if plan.processes:
        dist.init_process_group("gloo")
        mesh = PipelineMesh(plan.num_stages)
    device = torch.device(plan.device)
    counts = partition(plan.model.costs(), plan.num_stages)
    reads = mesh is None or mesh.reads_data
    whole = plan.model.batch(plan.model.batch_size)
    batch = tuple(part.to(device) for part in whole) if reads else (None, None)
    engines = {
        remat.value: build_engine(
            plan.model,
            counts,
            num_micro_batches=plan.num_micro_batches,
            remat=remat.value,
            mesh=mesh,
            device=device,
        )
        for remat in Remat
    }
    traces: dict[str, list[Any]] = {name: [] for name in engines}

    def stepping(name: str) -> Any:
        engine = engines[name]

        def step() -> None:
            engine.train_step(*batch, batch_counter=0).accumulate()
            _finish(engine, device)
            traces[name].append(engine.events)

        return step

    steps = {name: stepping(name) for name in engines}
    steps[WHOLE] = _whole_step(plan.model, device) if reads else _nothing
    seconds = time_in_turns(steps, tell, rounds=plan.rounds, repeats=1, warm_up=plan.warm_up)
    gathered = {name: _together(traces[name][-plan.rounds :], mesh) for name in engines}
    result = {
        "partition": counts,
        "seconds": seconds,
        "costs": {name: costs_of(events, plan.num_stages) for name, events in gathered.items()},
        "early": early_recomputes(gathered[Remat.ALWAYS.value], plan.num_stages, plan.num_micro_batches),
        "peaks": {name: _peaks(engine, batch, mesh) for name, engine in engines.items()},
    }
    for engine in engines.values():
        engine.close()
    if mesh is not None:
        mesh.close()
    return result


def costs_of(steps: Sequence[Sequence[Any]], num_stages: int) -> dict[str, list[float]]:
    """Medians over steps and micro-batches, by stage, of F, B and R (0 where nothing is recomputed)."""
    from ..traces.bubbles import stage_costs

    costs = stage_costs(steps, num_stages)
    return {"forward": list(costs.forward), "backward": list(costs.backward), "recompute": list(costs.recompute)}


def early_recomputes(steps: Sequence[Sequence[Any]], num_stages: int, num_micro_batches: int) -> dict[str, Any]:
    """Whether R ran before the gradient was there, where GPipe's schedule has room for it.

    There is room on every stage but the last for the R of the last micro-batch, which comes first: its gradient needs
    the F, R and B of the stages behind. It is early when it began before the B that makes its gradient had ended.

    Returns:
        ``room`` and ``early``, numbers of cases over all steps, and ``hidden``: the share of R's time that was over
        when the gradient was made.
    """
    room = early = 0
    hidden = total = 0.0
    last = num_micro_batches - 1
    for events in steps:
        found = {(event.kind, event.stage): event for event in events if event.micro_batch == last}
        for stage in range(num_stages - 1):
            recompute, backward = found["R", stage], found["B", stage + 1]
            room += 1
            early += recompute.start < backward.end
            total += recompute.end - recompute.start
            hidden += max(0.0, min(recompute.end, backward.end) - recompute.start)
    return {"room": room, "early": early, "hidden": hidden / total if total else 0.0}


def _together(steps: Sequence[Sequence[Any]], mesh: Any) -> list[list[Any]]:
    """Each step's events of all ranks."""
    if mesh is None:
        return [list(events) for events in steps]
    import torch.distributed as dist

    everywhere: list[Any] = [None] * mesh.num_stages
    dist.all_gather_object(everywhere, [list(events) for events in steps])
    return [[event for part in parts for event in part] for parts in zip(*everywhere, strict=True)]


def _whole_step(model: SmallModel, device: Any) -> Any:
    import torch
    from torch import nn

    layers = nn.Sequential(*(make() for make in model.factories())).to(device)
    inputs, targets = (part.to(device) for part in model.batch(model.batch_size))

    def step() -> None:
        layers.zero_grad(set_to_none=True)
        total, count = cross_entropy(layers(inputs), targets)
        torch.autograd.backward(total / count)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def _peaks(engine: Any, batch: Sequence[Any], mesh: Any) -> list[int]:
    """Activation bytes of each rank, in a step of its own: hooks take time."""
    import torch.distributed as dist

    from repro.gpipe.memory import MemoryRecorder

    recorder = engine.recorder = MemoryRecorder(engine)
    engine.train_step(*batch, batch_counter=0)
    peaks: Mapping[int, int] = recorder.peaks
    if mesh is not None:
        everywhere: list[Any] = [None] * mesh.num_stages
        dist.all_gather_object(everywhere, dict(peaks))
        peaks = {rank: size for part in everywhere for rank, size in part.items()}
    return [peaks[rank] for rank in sorted(peaks)]


def _finish(engine: Any, device: Any) -> None:
    """Gradients go away as an optimizer's ``zero_grad`` would have it; a GPU is waited for."""
    for stage in engine.stages.values():
        for parameter in stage.parameters():
            parameter.grad = None
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _nothing() -> None:
    return None
