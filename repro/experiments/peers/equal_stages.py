"""One training step of K equal stages whose arithmetic is a timed wait: this engine, PyTorch's pipeline, a bare loop.

What differs between them is what an engine adds to the waits and to the messages. Nothing re-computes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from repro.gpipe import Engine
from repro.gpipe.mesh import PipelineMesh

from ..costs.workload import BARE_LOOP, ENGINE, ENGINE_1F1B, TORCH, TORCH_1F1B, EqualStages
from ..emulation.layers import boundary_rows, equal_stage
from ..sweeps.ranks import Tell
from ..sweeps.timers import sharpen_timers
from ..sweeps.turns import Step, time_in_turns


def time_equal_stages(rank: int, tell: Tell, plan: EqualStages) -> dict[str, list[float]]:
    """Seconds a step of each way in each round; runs on K ranks."""
    sharpen_timers()
    dist.init_process_group("gloo")
    mesh = PipelineMesh(plan.num_stages)
    with ExitStack() as stack:
        stack.callback(mesh.close)
        steps = {
            ENGINE: _engine(plan, rank, mesh, "gpipe", stack),
            BARE_LOOP: _bare_loop(plan, rank),
            TORCH: _torch_pipelining(plan, rank, ScheduleGPipe),
        }
        if plan.allows_1f1b:
            steps[ENGINE_1F1B] = _engine(plan, rank, mesh, "1f1b", stack)
            steps[TORCH_1F1B] = _torch_pipelining(plan, rank, Schedule1F1B)
        return time_in_turns(steps, tell, rounds=plan.rounds, repeats=plan.steps, warm_up=plan.warm_up)


def _batch(plan: EqualStages) -> tuple[Tensor, Tensor]:
    return boundary_rows(plan.num_micro_batches, plan.boundary_bytes), torch.zeros(plan.num_micro_batches, 1)


def _engine(plan: EqualStages, rank: int, mesh: PipelineMesh, schedule: str, stack: ExitStack) -> Step:
    def loss(outputs: Any, targets: Any) -> tuple[Tensor, int]:
        return _loss(outputs), len(targets)

    runner = Engine(
        {rank: equal_stage(plan.forward, plan.backward)},
        [1] * plan.num_stages,
        num_micro_batches=plan.num_micro_batches,
        loss=loss,
        schedule=schedule,
        remat="never",
        mesh=mesh,
    )
    stack.callback(runner.close)
    inputs, targets = _batch(plan) if rank == 0 else (None, None)

    def step() -> None:
        runner.train_step(inputs, targets, batch_counter=0).accumulate()

    return step


def _torch_pipelining(plan: EqualStages, rank: int, kind: type[PipelineScheduleSingle]) -> Step:
    stage = PipelineStage(equal_stage(plan.forward, plan.backward), rank, plan.num_stages, torch.device("cpu"))
    schedule = kind(stage, plan.num_micro_batches, loss_fn=lambda outputs, targets: _loss(outputs))
    inputs, targets = _batch(plan)

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        elif rank == plan.num_stages - 1:
            schedule.step(target=targets)
        else:
            schedule.step()

    return step


def _bare_loop(plan: EqualStages, rank: int) -> Step:
    """The GPipe order by hand: sends without waiting, all receives posted at the start of the step, nothing else."""
    layer = equal_stage(plan.forward, plan.backward)
    first, last = rank == 0, rank == plan.num_stages - 1
    inputs = torch.split(_batch(plan)[0], 1)
    shape = inputs[0].shape
    order = range(plan.num_micro_batches)

    def step() -> None:
        values = list(inputs) if first else [torch.empty(shape) for _ in order]
        gradients = [torch.empty(shape) for _ in order]
        coming = [] if first else [dist.irecv(value, rank - 1) for value in values]
        returning = [] if last else [dist.irecv(gradients[index], rank + 1) for index in reversed(order)]
        outputs, sends = [], []
        for index in order:
            if not first:
                _wait(coming[index])
                values[index].requires_grad_()
            output = layer(values[index])
            outputs.append(_loss(output) if last else output)
            if not last:
                sends.append(dist.isend(output.detach(), rank + 1))
        for place, index in enumerate(reversed(order)):
            if last:
                torch.autograd.backward(outputs[index])
            else:
                _wait(returning[place])
                torch.autograd.backward(outputs[index], gradients[index])
            if not first:
                gradient = values[index].grad
                assert gradient is not None
                sends.append(dist.isend(gradient, rank - 1))
        for send in sends:
            _wait(send)

    return step


def _loss(outputs: Tensor) -> Tensor:
    """Next to nothing to compute, and a gradient that is contiguous, as PyTorch's pipeline and gloo demand."""
    return outputs.square().sum()


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()
