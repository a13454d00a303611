"""Headers that are foreseen: the messages arrive whole also where a layer decides otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe.engine import Engine
from repro.gpipe.headers import Expectations, Place
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.stage import Loss
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


def losses_and_gradients(
    rank: int,
    layers: list[nn.Module],
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss,
    *,
    num_micro_batches: int,
    local: bool,
    evaluate_after: int | None = None,
) -> list[tuple[float, list[Any]]]:
    """Of a training step for each batch, one layer a stage: the loss, and the gradients of the stages that are here."""
    mesh = None if local else PipelineMesh(len(layers))
    engine = Engine(
        dict(enumerate(layers)), [1] * len(layers), num_micro_batches=num_micro_batches, loss=loss, mesh=mesh
    )
    parameters = [p for stage in engine.stages.values() for p in stage.parameters()]
    seen = []
    try:
        for number, batch in enumerate(batches):
            inputs, targets = batch if rank == 0 else (None, None)
            for parameter in parameters:
                parameter.grad = None
            result = engine.train_step(inputs, targets, batch_counter=number)
            result.accumulate()
            seen.append((result.loss, [parameter.grad for parameter in parameters]))
            if number == evaluate_after:
                engine.evaluate(inputs, targets)
    finally:
        engine.close()
        if mesh is not None:
            mesh.close()
    return seen


def widening(rank: int, world_size: int, local: bool = False) -> list[tuple[float, list[Any]]]:
    layers: list[nn.Module] = [Widening() for _ in range(world_size)]
    batches = (batch(*step) for step in STEPS)
    return losses_and_gradients(rank, layers, batches, loss, num_micro_batches=3, local=local, evaluate_after=3)


@pytest.mark.parametrize("stages", [2, 3])
def test_shapes_that_depend_on_values_arrive_whole(stages: int, pools: Pools) -> None:
    """Same rows and same input shape, another output: the receives that were posted for the last one must not stay."""
    wanted = widening(0, stages, True)
    by_rank = pools(stages).run(widening)
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


def diverging(rank: int, world_size: int, local: bool = False) -> list[tuple[float, list[Any]]]:
    """Steps whose activations, then whose gradients alone, are NaN."""
    layers: list[nn.Module] = [Half() for _ in range(world_size)]
    values = ((1.0, 1.0), (NAN, 1.0), (1.0, 1.0), (1.0, NAN))
    batches = ((torch.full((4, 32), value).bfloat16(), torch.full((4,), weight)) for value, weight in values)
    return losses_and_gradients(rank, layers, batches, total, num_micro_batches=2, local=local)


def test_a_step_of_nothing_but_nan_in_bfloat16_is_a_step_like_others(pools: Pools) -> None:
    """Its NaNs were taken for a message that says "absent": the next stage waited forever, or had no gradient."""
    wanted = diverging(0, 2, True)
    assert [(math.isnan(value), [bool(g.isnan().all()) for g in gradients]) for value, gradients in wanted] == [
        (False, [False, False]),
        (True, [True, True]),
        (False, [False, False]),
        (True, [True, True]),
    ]
    for rank, seen in enumerate(pools(2).run(diverging)):
        for (value, gradients), (right, all_gradients) in zip(seen, wanted, strict=True):
            assert repr(value) == repr(right)
            torch.testing.assert_close(gradients, [all_gradients[rank]], rtol=0, atol=0, equal_nan=True)
