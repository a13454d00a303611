"""Headers that are foreseen: the messages arrive whole also where a layer decides otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe.engine import Engine
from repro.gpipe.headers import Expectations, Place
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.wire import BoundarySpec, TensorSpec
from tests.helpers.ranks import Pools

SMALL, LARGE = (BoundarySpec(False, (TensorSpec(torch.float32, (2, width), True),)) for width in (3, 5))
PLACE = Place(0, 2)
NAN = float("nan")


def test_a_step_like_the_one_before_has_the_same_headers() -> None:
    expectations = Expectations()
    expectations.begin("a")
    assert expectations.get(PLACE) is None
    expectations.learn(PLACE, SMALL)
    expectations.begin("a")
    assert expectations.get(PLACE) == SMALL
    expectations.learn(PLACE, SMALL)
    expectations.begin("b")
    assert expectations.get(PLACE) is None


def test_a_stage_that_was_foreseen_wrongly_is_not_foreseen_again() -> None:
    expectations = Expectations()
    expectations.begin("a")
    expectations.learn(PLACE, SMALL)
    expectations.begin("a")
    expectations.learn(PLACE, LARGE)
    for _ in range(2):
        expectations.begin("a")
        assert expectations.get(PLACE) is None
        expectations.learn(PLACE, LARGE)


class Widening(nn.Module):
    """Decides its output by the values of its input, not by their shape: width, dtype of the labels, tuple or None."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

    def forward(self, value: Tensor | tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        states = value if isinstance(value, Tensor) else value[0]
        assert states is not None
        states = states[:, :4]
        width = int(states.detach().abs().max()) % 4
        extra = states[:, :width] if width else None
        kind = torch.int64 if width < 2 else torch.int32
        return states * self.weight, extra, torch.full((len(states), width), width, dtype=kind)


def loss(outputs: tuple[Tensor | None, ...], targets: Tensor) -> tuple[Tensor, int]:
    """Depends on all elements."""
    states, extra, labels = outputs
    assert states is not None and labels is not None
    total = (states.sum(1) - targets).square().sum() + labels.double().sum()
    return total if extra is None else total + extra.square().sum(), len(targets)


# The largest entry of a batch decides the widths of a step; rows of 7 are cut in two sizes.
STEPS = ((8, 1), (8, 1), (8, 2), (8, 2), (7, 2), (7, 3), (7, 1), (8, 1), (8, 4), (8, 4))


def batch(rows: int, largest: int) -> tuple[Tensor, Tensor]:
    """Every micro-batch has the same largest entry, within the first stage's output as well."""
    generator = torch.Generator().manual_seed(rows * 10 + largest)
    inputs = torch.rand(rows, 4, generator=generator, dtype=torch.float64) * 0.1
    inputs[:, 0] = largest * 2.0
    return inputs, torch.rand(rows, generator=generator, dtype=torch.float64)


def losses_and_gradients(rank: int, world_size: int, local: bool = False) -> list[tuple[float, list[Any]]]:
    """Of a training step for each batch, an evaluation after the fourth."""
    mesh = None if local else PipelineMesh(world_size)
    layers = {index: Widening() for index in range(world_size)}
    engine = Engine(layers, [1] * world_size, num_micro_batches=3, loss=loss, mesh=mesh)
    seen = []
    try:
        for number, step in enumerate(STEPS):
            inputs, targets = batch(*step) if rank == 0 else (None, None)
            for layer in layers.values():
                layer.weight.grad = None
            result = engine.train_step(inputs, targets, batch_counter=number)
            result.accumulate()
            gradients = [layers[index].weight.grad for index in range(world_size) if local or index == rank]
            seen.append((result.totals.loss, gradients))
            if number == 3:
                engine.evaluate(inputs, targets)
    finally:
        engine.close()
        if mesh is not None:
            mesh.close()
    return seen


@pytest.mark.parametrize("stages", [2, 3])
def test_shapes_that_depend_on_values_arrive_whole(stages: int, pools: Pools) -> None:
    """Same rows and same input shape, another output: the receives that were posted for the last one must not stay."""
    wanted = losses_and_gradients(0, stages, True)
    by_rank = pools(stages).run(losses_and_gradients)
    for number, (value, gradients) in enumerate(wanted):
        for rank, seen in enumerate(by_rank):
            assert seen[number][0] == pytest.approx(value, rel=1e-12)
            torch.testing.assert_close(seen[number][1][0], gradients[rank], rtol=0, atol=1e-10)


class Half(nn.Module):
    """A layer in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32, bias=False, dtype=torch.bfloat16)
        nn.init.eye_(self.inner.weight)

    def forward(self, value: Tensor) -> Tensor:
        return self.inner(value).tanh()


def total(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return (outputs.float().sum(1) * targets).sum(), len(targets)


def diverging(rank: int, world_size: int, local: bool = False) -> list[tuple[float, list[bool]]]:
    """Steps whose activations, then whose gradients alone, are NaN: the loss, and whether each gradient is."""
    mesh = None if local else PipelineMesh(world_size)
    engine = Engine(
        {i: Half() for i in range(world_size)}, [1] * world_size, num_micro_batches=2, loss=total, mesh=mesh
    )
    seen = []
    try:
        for number, (value, weight) in enumerate(((1.0, 1.0), (NAN, 1.0), (1.0, 1.0), (1.0, NAN))):
            batch = (torch.full((4, 32), value).bfloat16(), torch.full((4,), weight)) if rank == 0 else (None, None)
            parameters = [p for stage in engine.stages.values() for p in stage.parameters()]
            for parameter in parameters:
                parameter.grad = None
            result = engine.train_step(*batch, batch_counter=number)
            result.accumulate()
            seen.append((result.loss, [bool(p.grad.isnan().all()) for p in parameters if p.grad is not None]))
    finally:
        engine.close()
        if mesh is not None:
            mesh.close()
    return seen


def test_a_step_of_nothing_but_nan_in_bfloat16_is_a_step_like_others(pools: Pools) -> None:
    """Its NaNs were taken for a message that says "absent": the next stage waited forever, or had no gradient."""
    for one, wanted in zip(pools(2).run(diverging)[0], diverging(0, 2, True), strict=True):
        assert repr(one[0]) == repr(wanted[0])
        assert one[1] == wanted[1][: len(one[1])] and len(one[1]) == 1
