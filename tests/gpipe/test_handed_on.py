"""What a stage has handed on stays as it was: a layer that fills its own memory again is told, and not trained on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.gpipe import Engine, PipelineError
from repro.gpipe.mesh import PipelineMesh
from tests.helpers.ranks import fresh_ranks


class Static(nn.Module):
    """A frozen layer that writes into memory of its own, as recorded CUDA graphs do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("out", torch.zeros(2, 6), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.mul(value, 2, out=self.out)


def loss_of(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return (outputs - targets).square().sum(), len(targets)


@pytest.mark.parametrize("remat", ["always", "except_last", "never"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_in_one_process_it_is_refused(schedule: str, remat: str) -> None:
    """All micro-batches were trained on the last one's activations."""
    layers: dict[int, nn.Module] = {0: Static(), 1: nn.Linear(6, 6)}
    engine = Engine(layers, [1, 1], num_micro_batches=4, loss=loss_of, schedule=schedule, remat=remat)
    with pytest.raises(UserError, match="stage 1, micro-batch 0, forward: what a layer returned has been changed"):
        engine.train_step(torch.randn(8, 6), torch.randn(8, 6), batch_counter=0)


def steps_of_two_ranks(rank: int, world_size: int) -> str:
    mesh = PipelineMesh(world_size)
    layers: dict[int, nn.Module] = {0: Static(), 1: nn.Linear(6, 6)}
    engine = Engine(layers, [1, 1], num_micro_batches=4, loss=loss_of, mesh=mesh)
    batch = (torch.randn(8, 6), torch.randn(8, 6)) if rank == 0 else (None, None)
    try:
        for number in range(2):
            engine.train_step(*batch, batch_counter=number)
    except (UserError, PipelineError) as error:
        return str(error)
    finally:
        mesh.close()
    return ""


def test_between_processes_it_is_refused_on_every_rank() -> None:
    """What had not left yet left as the next micro-batch's. The other ranks hear of it in the step that follows."""
    ends = fresh_ranks(2, steps_of_two_ranks, timeout=60)
    assert all("what a layer returned has been changed in place" in end.result for end in ends)


@pytest.mark.parametrize("count", [lambda outputs: outputs[1].sum(), lambda outputs: outputs[1].detach().sum()])
def test_a_count_that_learns_is_refused(count: Callable[[tuple[Tensor, Tensor]], Tensor]) -> None:
    """No gradient went through it, in silence."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.weight = nn.Linear(6, 6), nn.Linear(6, 1)

        def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
            return self.value(value), self.weight(value).sigmoid()

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        return (outputs[1] * (outputs[0] - targets).square()).sum(), count(outputs)

    engine = Engine({0: Weighted()}, [1], num_micro_batches=1, loss=loss, remat="never")
    batch = torch.randn(4, 6), torch.randn(4, 6)
    learns = count((torch.zeros(1), torch.zeros(1, requires_grad=True))).requires_grad
    if learns:
        with pytest.raises(UserError, match="count that the loss returns depends on parameters"):
            engine.train_step(*batch, batch_counter=0)
    else:
        engine.train_step(*batch, batch_counter=0).accumulate()
