"""Runs the same model laid out in many ways, in turns, and asks the planner how long each should take."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from repro.gpipe import Engine
from repro.gpipe.memory import count_memory
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.profiling import time_costs
from repro.planning.planner import TooLarge, plan_choice
from repro.planning.problem import LayerCost, Problem, Wire

from ..costs.layer_costs import count_layers
from ..costs.scaled_down import SmallTransformer, cross_entropy
from ..sweeps.ranks import Tell
from ..sweeps.turns import time_in_turns
from .choice_plan import PlannedSteps

_ROWS = 8  # of the larger micro-batch that is profiled
_SIZES = (4 * 2**10, 2**20)
_PINGS = 20


def run_planned(rank: int, tell: Tell, plan: PlannedSteps) -> dict[str, Any]:
    """Profiles the layers and the link, predicts every choice, then runs them all.

    Returns:
        By choice, in order: ``predicted`` seconds, ``measured`` seconds of every round, and the ``partition``.
    """
    devices = [torch.device(name) for name in plan.device.split(",")]
    device = devices[rank] if len(devices) > 1 else devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    mesh = PipelineMesh(plan.num_stages, device=device)
    tell(0.0, "profiling")
    # Every rank profiles, so that none has the machine to itself; the first one's numbers count.
    problem = _problem(plan, _layer_costs(plan.model, device), _wire(device))
    shared = [problem]
    dist.broadcast_object_list(shared)
    made = [plan_choice(shared[0], choice) for choice in plan.choices]
    engines: list[Engine] = []
    steps: dict[str, Callable[[], None]] = {}
    layers = {index: factory().to(device) for index, factory in enumerate(plan.model.factories())}
    batch = tuple(part.to(device) for part in plan.model.batch(plan.model.batch_size)) if rank == 0 else (None, None)
    try:
        for choice, found in zip(plan.choices, made, strict=True):
            assert not isinstance(found, TooLarge)
            engine = Engine(
                layers,
                found.partition,
                num_micro_batches=choice.num_micro_batches,
                schedule=choice.schedule,
                num_virtual_stages=choice.num_virtual_stages,
                remat=choice.remat,
                loss=cross_entropy,
                mesh=mesh,
                devices=[device],
            )
            engines.append(engine)
            steps[str(choice)] = _stepping(engine, batch, device)
        seconds = time_in_turns(steps, tell, rounds=plan.rounds, repeats=1, warm_up=1)
    finally:
        for engine in engines:
            engine.close()
        mesh.close()
    return {
        "predicted": [found.step_seconds for found in made if not isinstance(found, TooLarge)],
        "measured": [seconds[str(choice)] for choice in plan.choices],
        "partition": [list(found.partition) for found in made if not isinstance(found, TooLarge)],
    }


def _problem(plan: PlannedSteps, costs: tuple[LayerCost, ...], wire: Wire) -> Problem:
    model = plan.model
    one, two = (
        count_memory(model.factories(), inputs, loss=cross_entropy, targets=targets)
        for inputs, targets in (model.batch(1), model.batch(2))
    )
    return Problem(
        costs=costs,
        least_rows=1,
        least=one,
        one_more=two,
        returned=tuple(sum(one.boundary(index)) for index in range(1, len(costs))),
        batch_size=model.batch_size,
        devices=plan.num_stages,
        per_node=plan.num_stages,
        memory=2**50,  # nothing falls out: it is about time
        bytes_per_parameter=4,
        gradient_bytes=4,
        wire=wire,
        node_wire=wire,
    )


def _layer_costs(model: SmallTransformer, device: torch.device) -> tuple[LayerCost, ...]:
    """From two sizes of micro-batch what grows with the rows; F and B are told apart by their FLOPs."""
    factories = model.factories()
    flops = count_layers(factories, model.batch(1)[0].to("meta"))
    one, many = (time_costs(factories, model.batch(1)[0], device, rows=rows, repeats=7) for rows in (1, _ROWS))
    made = []
    for f, b, first, last in zip(flops.forward, flops.backward, one, many, strict=True):
        share = f / (f + b) if f + b else 1 / 3
        per_row = max(0.0, min(first, (last - first) / (_ROWS - 1)))
        fixed = first - per_row
        made.append(LayerCost(share * per_row, (1 - share) * per_row, share * fixed, (1 - share) * fixed))
    return tuple(made)


def _wire(device: torch.device) -> Wire:
    """Latency and bandwidth between the first two ranks, from the times of a small and a large message."""
    taken = []
    for size in _SIZES:
        message = torch.zeros(size // 4, device=device)
        seconds = []
        for _ in range(_PINGS):
            begun = time.perf_counter()
            for sender, receiver in ((0, 1), (1, 0)):
                if dist.get_rank() == sender:
                    dist.send(message, receiver)
                elif dist.get_rank() == receiver:
                    dist.recv(message, sender)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append((time.perf_counter() - begun) / 2)
        taken.append(median(seconds))
    small, large = taken
    bandwidth = (_SIZES[1] - _SIZES[0]) / max(large - small, 1e-9)
    return Wire("measured", max(0.0, small - _SIZES[0] / bandwidth), bandwidth)


def _stepping(engine: Engine, batch: tuple[Any, ...], device: torch.device) -> Callable[[], None]:
    def step() -> None:
        engine.train_step(*batch, batch_counter=0).accumulate()
        for stage in engine.stages.values():
            for parameter in stage.parameters():
                parameter.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step
