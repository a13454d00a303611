"""One training step of the same layers in several ways: this engine, PyTorch's own pipeline, torchgpipe, a bare loop,
one process.

Each is a callable on every rank of two: it runs forward and backward of one mini-batch of M micro-batches, leaves the
gradients of the mean loss in ``.grad`` and returns nothing. None re-computes: PyTorch's pipeline cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from repro.gpipe import Engine
from repro.gpipe.mesh import PipelineMesh
from repro.models.transformer import transformer_lm

from ..costs.workload import NUM_STAGES, Workload


@dataclass(frozen=True)
class Way:
    """One way of running the step on this rank.

    Attributes:
        step: runs it; every rank of the way must call.
        parameters: of this rank by name (numbered over all layers), for the comparison of gradients.
        close: ends what it started.
    """

    step: Callable[[], None]
    parameters: Mapping[str, nn.Parameter]
    close: Callable[[], None]


def layers_of(workload: Workload) -> list[nn.Module]:
    """All layers, the same on every rank and in every way; no dropout, so that all ways draw alike."""
    torch.manual_seed(workload.seed)
    made = transformer_lm(
        num_layers=workload.num_layers,
        d_model=workload.d_model,
        d_ff=workload.d_ff,
        num_heads=workload.num_heads,
        vocab_size=2,
        dropout=0.0,
    )
    # Embedding and softmax are left out: the stages shall be equal.
    return [make() for make in made[1:-1]]


def stage_of(workload: Workload, rank: int) -> nn.Sequential:
    """The layers of one of the two stages."""
    half = workload.num_layers // NUM_STAGES
    return nn.Sequential(*layers_of(workload)[rank * half : (rank + 1) * half])


def batch_of(workload: Workload) -> tuple[Tensor, Tensor]:
    """Inputs (batch size, length, d_model), and targets (batch size, length): as small as the labels of a real task."""
    generator = torch.Generator().manual_seed(workload.seed)
    inputs = torch.randn((workload.batch_size, workload.length, workload.d_model), generator=generator)
    return inputs, torch.randn(inputs.shape[:2], generator=generator)


def loss_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sum over rows of a row's mean square error: of the mean of each token's states from its target."""
    return (outputs.mean(dim=2) - targets).square().mean(dim=1).sum()


def one_process(workload: Workload) -> Way:
    """The unsplit model over the same micro-batches, one after the other: forward and backward of each."""
    model = nn.Sequential(*layers_of(workload))
    inputs, targets = batch_of(workload)
    parts = list(zip(torch.split(inputs, workload.rows), torch.split(targets, workload.rows), strict=True))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        for part, target in parts:
            torch.autograd.backward(loss_sum(model(part), target) / workload.batch_size)

    return Way(step, dict(model.named_parameters()), _nothing)


def engine(workload: Workload, rank: int, schedule: str = "gpipe") -> Way:
    """This project's engine with a process per stage."""
    mesh = PipelineMesh(NUM_STAGES)
    half = workload.num_layers // NUM_STAGES
    layers = stage_of(workload, rank)

    def loss(outputs: Any, targets: Any) -> tuple[Tensor, int]:
        return loss_sum(outputs, targets), len(targets)

    runner = Engine(
        {rank * half + index: layer for index, layer in enumerate(layers)},
        [half, half],
        num_micro_batches=workload.num_micro_batches,
        loss=loss,
        schedule=schedule,
        remat="never",
        mesh=mesh,
    )
    inputs, targets = batch_of(workload) if rank == 0 else (None, None)

    def step() -> None:
        layers.zero_grad(set_to_none=True)
        runner.train_step(inputs, targets, batch_counter=0).accumulate()

    def close() -> None:
        runner.close()
        mesh.close()

    return Way(step, _numbered(layers, rank, half), close)


def torch_pipelining(workload: Workload, rank: int, kind: type[PipelineScheduleSingle] = ScheduleGPipe) -> Way:
    """``torch.distributed.pipelining`` with ``ScheduleGPipe`` or ``Schedule1F1B``."""
    layers = stage_of(workload, rank)
    stage = PipelineStage(layers, rank, NUM_STAGES, torch.device("cpu"))
    schedule = kind(
        stage,
        workload.num_micro_batches,
        loss_fn=lambda outputs, targets: loss_sum(outputs, targets) / len(targets),
    )
    inputs, targets = batch_of(workload)

    def step() -> None:
        layers.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)

    return Way(step, _numbered(layers, rank, workload.num_layers // NUM_STAGES), _nothing)


def torchgpipe(workload: Workload) -> Way:
    """All stages of torchgpipe in this process, which is all that it can; on a CPU its stages share one thread."""
    from torchgpipe import GPipe

    half = workload.num_layers // NUM_STAGES
    model = GPipe(
        nn.Sequential(*layers_of(workload)),
        balance=[half] * NUM_STAGES,
        devices=["cpu"] * NUM_STAGES,
        chunks=workload.num_micro_batches,
        checkpoint="never",
    )
    model.train()
    inputs, targets = batch_of(workload)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss_sum(model(inputs), targets) / workload.batch_size)

    named = {name.partition(".")[2].partition(".")[2]: value for name, value in model.named_parameters()}
    return Way(step, named, _nothing)


def bare_loop(workload: Workload, rank: int) -> Way:
    """The GPipe order by hand: sends without waiting, all receives posted at the start of the step, nothing else."""
    layers = stage_of(workload, rank)
    shape = (workload.rows, workload.length, workload.d_model)
    batch = torch.split(batch_of(workload)[rank], workload.rows)
    order = range(workload.num_micro_batches)
    peer = 1 - rank

    def first() -> None:
        layers.zero_grad(set_to_none=True)
        arriving = [(torch.empty(shape), index) for index in reversed(order)]
        receives = [dist.irecv(buffer, peer) for buffer, _ in arriving]
        outputs, sends = [], []
        for index in order:
            outputs.append(layers(batch[index]))
            sends.append(dist.isend(outputs[-1].detach(), peer))
        for (buffer, index), receive in zip(arriving, receives, strict=True):
            _wait(receive)
            torch.autograd.backward(outputs[index], buffer)
        for send in sends:
            _wait(send)

    def last() -> None:
        layers.zero_grad(set_to_none=True)
        arriving = [torch.empty(shape) for _ in order]
        receives = [dist.irecv(buffer, peer) for buffer in arriving]
        losses, sends = [], []
        for index in order:
            _wait(receives[index])
            losses.append(loss_sum(layers(arriving[index].requires_grad_()), batch[index]) / workload.batch_size)
        for index in reversed(order):
            torch.autograd.backward(losses[index])
            gradient = arriving[index].grad
            assert gradient is not None
            sends.append(dist.isend(gradient, peer))
        for send in sends:
            _wait(send)

    return Way(first if rank == 0 else last, _numbered(layers, rank, workload.num_layers // NUM_STAGES), _nothing)


def _numbered(layers: nn.Sequential, rank: int, half: int) -> dict[str, nn.Parameter]:
    return {
        f"{rank * half + index}.{name}": parameter
        for index, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
    }


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def _nothing() -> None:
    return None
