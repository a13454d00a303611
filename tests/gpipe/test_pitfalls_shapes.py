"""Batch sizes, shapes and dtypes that change: one named test per way in which pipelines got them wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe.engine import Engine
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.microbatch import BatchError
from tests.helpers import oracle
from tests.helpers.models import MODELS
from tests.helpers.pipelines import Cell, make_engine, own_layers
from tests.helpers.ranks import Pools, fresh_ranks

WAYS = ("local", "processes")


def evaluate_sizes(rank: int, world_size: int, name: str, sizes: tuple[int, ...], local: bool = False) -> list[Any]:
    """Totals and predictions for each size in turn, in evaluation mode; predictions only where data is read."""
    mesh = None if local else PipelineMesh(world_size)
    spec = MODELS[name]
    engine = make_engine(Cell(name, world_size, 3), spec.layers(), mesh)
    own_layers(engine).eval()
    seen = []
    try:
        for number, rows in enumerate(sizes):
            inputs, targets = spec.batch(rows, number) if rank == 0 else (None, None)
            totals = engine.evaluate(inputs, targets)
            outputs = engine.predict(inputs)
            seen.append((totals.loss, totals.count, outputs))
    finally:
        engine.close()
        if mesh is not None:
            mesh.close()
    return seen


@pytest.mark.parametrize("name", ["mlp", "tokens", "translation", "batch_norm_2d", "dropout"])
@pytest.mark.parametrize("way", WAYS)
def test_a_smaller_last_batch_gives_every_row_once_in_order(way: str, name: str, pools: Pools) -> None:
    """The last batch of an epoch is smaller. Fixed buffers handed out rows of the batch before, or hung."""
    sizes = (8, 7, 3, 8, 1, 2)
    by_rank = [evaluate_sizes(0, 3, name, sizes, True)] if way == "local" else pools(3).run(evaluate_sizes, name, sizes)
    spec = MODELS[name]
    for number, rows in enumerate(sizes):
        inputs, targets = spec.batch(rows, number)
        (wanted,) = oracle.evaluate(spec.layers(), inputs)
        loss_sum, count = spec.loss(wanted, targets) if name != "dropout" else (None, rows)
        for rank, seen in enumerate(by_rank):
            loss, seen_count, outputs = seen[number]
            assert seen_count == float(count)
            if loss_sum is not None:
                assert loss == pytest.approx(float(loss_sum / count), abs=1e-10)
            assert (outputs is None) == (rank != 0)
        torch.testing.assert_close(by_rank[0][number][2], wanted, rtol=0, atol=1e-10)


class Labelled(nn.Module):
    """(row number) -> (row number, twice the row number), through a stage that does arithmetic."""

    def forward(self, value: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        first = value[0] if isinstance(value, tuple) else value
        return first, first * 2


def pairs_loss(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, None, Tensor]) -> tuple[Tensor, int]:
    """Zero only if every row meets its own label."""
    wrong = (outputs[0] != targets[0]).sum() + (outputs[1] != targets[2]).sum()
    return wrong.double(), len(targets[0])


def rows_meet_labels(rank: int, world_size: int, local: bool = False) -> list[float]:
    mesh = None if local else PipelineMesh(world_size)
    engine = Engine(
        {index: Labelled() for index in range(world_size)},
        [1] * world_size,
        num_micro_batches=4,
        loss=pairs_loss,
        mesh=mesh,
    )
    losses = []
    try:
        for number, rows in enumerate((8, 7, 3, 8, 1, 5)):
            labels = torch.arange(rows) + 100 * number
            read = rank == 0
            batch = (labels, (labels, None, 2 * labels)) if read else (None, None)
            losses.append(engine.evaluate(*batch).loss)
            losses.append(engine.train_step(*batch, batch_counter=number).loss)
    finally:
        engine.close()
        if mesh is not None:
            mesh.close()
    return losses


@pytest.mark.parametrize("way", WAYS)
def test_labels_of_step_n_meet_outputs_of_step_n(way: str, pools: Pools) -> None:
    """Targets travel another way than inputs; cut elsewhere or a step late, the loss looks plausible."""
    by_rank = [rows_meet_labels(0, 3, True)] if way == "local" else pools(3).run(rows_meet_labels)
    assert by_rank == [[0.0] * 12] * len(by_rank)


def train_with_dtypes(rank: int, world_size: int, local: bool = False) -> list[dict[str, Any]]:
    """Gradients of three steps of one engine in float32: plain, under bfloat16 autocast, plain again."""
    mesh = None if local else PipelineMesh(world_size)
    spec = MODELS["mlp"]
    layers = [layer.float() for layer in spec.layers()]
    engine = make_engine(Cell("mlp", world_size, 3), layers, mesh)
    own = own_layers(engine)
    seen = []
    try:
        for enabled in (False, True, False):
            own.zero_grad(set_to_none=True)
            inputs, targets = spec.batch(7, 0) if rank == 0 else (None, None)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                engine.train_step(None if inputs is None else inputs.float(), targets, batch_counter=0).accumulate()
            seen.append({name: p.grad.clone() for name, p in own.named_parameters()})
    finally:
        engine.close()
        if mesh is not None:
            mesh.close()
    return seen


@pytest.mark.parametrize("way", WAYS)
def test_a_bfloat16_step_then_a_float32_step(way: str, pools: Pools) -> None:
    """The dtype of the boundaries changes between steps; a receiver that remembers the first one reads garbage."""
    by_rank = [train_with_dtypes(0, 3, True)] if way == "local" else pools(3).run(train_with_dtypes)
    spec = MODELS["mlp"]
    layers = [layer.float() for layer in spec.layers()]
    inputs, targets = spec.batch(7, 0)
    for number, enabled in enumerate((False, True, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            reference = oracle.pooled_step(layers, inputs.float(), targets, spec.loss, num_micro_batches=3)
        got = {name: gradient for seen in by_rank for name, gradient in seen[number].items()}
        assert got.keys() == reference.gradients.keys()
        for name, gradient in got.items():
            torch.testing.assert_close(gradient, reference.gradients[name], rtol=0, atol=2e-3 if enabled else 1e-6)
    plain, cast, again = ({n: g for seen in by_rank for n, g in seen[i].items()} for i in range(3))
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert any(not torch.equal(plain[name], cast[name]) for name in plain)


class ShapeOfFirstRow(nn.Module):
    """As wide as the first number of its input says: the shape depends on the data."""

    def forward(self, value: Tensor) -> Tensor:
        return value.new_ones(len(value), int(value[0, 0].item()))


def total(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return outputs.sum(), len(targets)


def changing_shape(rank: int, world_size: int, local: bool = False) -> None:
    mesh = None if local else PipelineMesh(world_size)
    layers = {0: nn.Identity(), 1: ShapeOfFirstRow(), 2: nn.Identity()}
    engine = Engine(layers, [1, 1, 1], num_micro_batches=4, loss=total, mesh=mesh)
    widths = torch.tensor([[3.0], [3.0], [5.0], [3.0]])
    engine.evaluate(*((widths, torch.zeros(4)) if rank == 0 else (None, None)))


def test_an_unexpected_shape_is_an_error_at_the_stage_that_made_it() -> None:
    """A receiver that expects the first micro-batch's shape would hang or read another message's bytes."""
    with pytest.raises(BatchError, match=r"stage 1.*micro-batch 2.*\[1, 5\].*\[1, 3\]"):
        changing_shape(0, 3, True)


def test_an_unexpected_shape_ends_every_rank_with_that_error() -> None:
    ends = fresh_ranks(3, changing_shape, timeout=30)
    for end in ends:
        assert (end.exit_code, end.timed_out) == (1, False), end.stderr
        assert "micro-batch 2" in end.stderr and "stage 1" in end.stderr, end.stderr


def unequal_elements(rank: int, world_size: int) -> None:
    engine = make_engine(Cell("translation", world_size, 2), MODELS["translation"].layers(), PipelineMesh(world_size))
    batch = ((torch.ones(4, 2).long(), torch.ones(3, 2).long()), torch.ones(4, 2).long())
    engine.train_step(*(batch if rank == 0 else (None, None)), batch_counter=0)


def test_elements_of_unequal_length_are_one_clear_error_on_every_rank() -> None:
    """Only one rank reads data: the others waited for a batch that could not be cut."""
    for end in fresh_ranks(2, unequal_elements, timeout=30):
        assert (end.exit_code, end.timed_out) == (1, False), end.stderr
        assert "inputs[1] has 3 rows" in end.stderr


def no_targets(rank: int, world_size: int) -> None:
    engine = make_engine(Cell("mlp", world_size, 2), MODELS["mlp"].layers(), PipelineMesh(world_size))
    engine.train_step(torch.zeros(4, 3).double() if rank == 0 else None, None, batch_counter=0)


def test_missing_targets_are_one_clear_error_on_every_rank() -> None:
    """The rank that reads data sees it before the others know of the batch."""
    for end in fresh_ranks(2, no_targets, timeout=30):
        assert (end.exit_code, end.timed_out) == (1, False), end.stderr
        assert "train needs targets" in end.stderr
