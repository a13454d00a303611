"""Steps of scaled-down models that the hardware really computes: one process a stage, one core or GPU each."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from repro.gpipe import Engine
from repro.gpipe.mesh import PipelineMesh
from repro.models.amoebanet import amoebanet
from repro.models.transformer import transformer_lm
from repro.planning import partition

from ..costs.layer_costs import count_layers
from ..costs.scaled_models import ScaledModel
from ..sweeps.ranks import Tell


@dataclass(frozen=True)
class MeasuredPlan:
    """Steps with the same K, on the same processes.

    Attributes:
        model: what is computed.
        num_stages: K.
        cells: of each M, with the rows of its mini-batch.
        remats: every M is run with each.
        devices: of the ranks: ``cpu`` or one GPU each.
        rounds: each runs a step of everything once; one more before warms up.
    """

    model: ScaledModel
    num_stages: int
    cells: tuple[tuple[int, int], ...]
    remats: tuple[str, ...]
    devices: tuple[str, ...]
    rounds: int


def factories_of(model: ScaledModel) -> list[Callable[[], nn.Module]]:
    """The layers of a scaled-down model; no dropout, which would cost F and R more than B."""
    if model.family == "amoebanet":
        return amoebanet("D", num_layers=model.num_layers, num_filters=model.width, num_classes=model.num_classes)
    return transformer_lm(
        num_layers=model.num_layers,
        d_model=model.width,
        d_ff=4 * model.width,
        num_heads=model.num_heads,
        vocab_size=model.num_classes,
        dropout=0.0,
    )


def batch_of(model: ScaledModel, rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Random inputs and targets: images and classes, or tokens and tokens."""
    generator = torch.Generator().manual_seed(0)
    if model.family == "amoebanet":
        inputs = torch.randn(rows, 3, model.side, model.side, generator=generator)
        targets = torch.randint(model.num_classes, (rows,), generator=generator)
    else:
        inputs, targets = torch.randint(model.num_classes, (2, rows, model.side), generator=generator)
    return inputs.to(device), targets.to(device)


def cross_entropy(outputs: Any, targets: Any) -> tuple[Tensor, int]:
    """Sum over all classifications, and how many there are."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum"), targets.numel()


def measure(rank: int, tell: Tell, plan: MeasuredPlan) -> list[dict[str, Any]]:
    """Runs a plan on K ranks: F, R and B of whole mini-batches, without an optimizer.

    Returns:
        For each M and remat the seconds of a step in each round; and the partition.
    """
    device = torch.device(plan.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    mesh = PipelineMesh(plan.num_stages, device=device)
    engines: list[Engine] = []
    try:
        layers = factories_of(plan.model)
        example = batch_of(plan.model, 1, "meta")[0]
        counts = partition(count_layers(layers, example).both, plan.num_stages)
        begin = sum(counts[:rank])
        torch.manual_seed(rank)
        own = {index: layers[index]().to(device) for index in range(begin, begin + counts[rank])}
        steps = []
        for number, rows in plan.cells:
            for remat in plan.remats:
                engine = Engine(
                    own,
                    counts,
                    num_micro_batches=number,
                    loss=cross_entropy,
                    remat=remat,
                    mesh=mesh,
                    devices=[device],
                )
                engines.append(engine)
                batch = batch_of(plan.model, rows, str(device)) if rank == 0 else (None, None)
                steps.append((number, remat, engine, batch))
        seconds: list[list[float]] = [[] for _ in steps]
        gc.collect()
        gc.disable()
        for turn in range(plan.rounds + 1):
            tell(turn / (plan.rounds + 1), f"round {turn} of {plan.rounds}" if turn else "warming up")
            for place, (_, _, engine, (inputs, targets)) in enumerate(steps):
                for layer in own.values():
                    layer.zero_grad(set_to_none=True)
                dist.barrier()
                begun = _now(device)
                engine.train_step(inputs, targets, batch_counter=turn).accumulate()
                dist.barrier()
                if turn:
                    seconds[place].append(_now(device) - begun)
        return [
            {"num_micro_batches": number, "remat": remat, "seconds": taken, "partition": counts}
            for (number, remat, _, _), taken in zip(steps, seconds, strict=True)
        ]
    finally:
        gc.enable()
        for engine in engines:
            engine.close()
        mesh.close()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
