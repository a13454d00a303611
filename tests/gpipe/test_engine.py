"""What the engine's steps take and give, beyond the numbers of the parity matrix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from repro.errors import UserError
from repro.gpipe import BatchError, Totals
from repro.gpipe.mesh import PipelineMesh
from tests.helpers import oracle
from tests.helpers.models import MODELS, PADDING
from tests.helpers.pipelines import TOLERANCE, Cell, make_engine, own_layers
from tests.helpers.ranks import Pools, fresh_ranks


def test_totals_add_up_and_have_no_mean_where_nothing_counts() -> None:
    first = Totals(2.0, 4.0, {"a": (1.0, 2.0)})
    second = Totals(1.0, 2.0, {"a": (1.0, 1.0), "b": (3.0, 1.0)})
    assert first + second == Totals(3.0, 6.0, {"a": (2.0, 3.0), "b": (3.0, 1.0)})
    assert (first + second).loss == 0.5
    assert math.isnan(Totals().loss)


def test_the_loss_scale_is_taken_out_again() -> None:
    spec = MODELS["mlp"]
    inputs, targets = spec.batch(7, 0)
    gradients = []
    for scale in (1.0, 4096.0):
        engine = make_engine(Cell("mlp", 3, 3), spec.layers())
        result = engine.train_step(inputs, targets, batch_counter=0, loss_scale=scale)
        result.accumulate()
        gradients.append({name: p.grad for name, p in own_layers(engine).named_parameters()})
        assert result.loss == pytest.approx(
            oracle.whole_batch_step(spec.layers(), inputs, targets, spec.loss).loss.item()
        )
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=TOLERANCE)


def test_a_batch_of_padding_only_has_the_loss_that_plain_training_has() -> None:
    """0 / 0: not a number, and not a crash on one rank."""
    spec = MODELS["tokens"]
    engine = make_engine(Cell("tokens", 2, 3), spec.layers())
    inputs = torch.full((4, 3), PADDING)
    assert math.isnan(engine.train_step(inputs, inputs, batch_counter=0).loss)
    assert math.isnan(engine.evaluate(inputs, inputs).loss)


def test_a_micro_batch_of_padding_only_counts_for_nothing() -> None:
    spec = MODELS["tokens"]
    inputs, targets = spec.batch(6, 0)
    targets[2:4] = PADDING
    engine = make_engine(Cell("tokens", 2, 3), spec.layers())
    result = engine.train_step(inputs, targets, batch_counter=0)
    result.accumulate()
    reference = oracle.whole_batch_step(spec.layers(), inputs, targets, spec.loss)
    assert result.loss == pytest.approx(reference.loss.item(), abs=TOLERANCE)
    for name, parameter in own_layers(engine).named_parameters():
        torch.testing.assert_close(parameter.grad, reference.gradients[name], rtol=0, atol=TOLERANCE)


def test_no_rows_is_a_step_without_actions() -> None:
    """A replica without rows still takes part in what the ranks do together."""
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 3), spec.layers(), trace=True)
    result = engine.train_step(None, None, batch_counter=0)
    result.accumulate()
    assert (result.rows, result.totals) == (0, Totals())
    assert engine.events == []
    assert all(parameter.grad is None for parameter in own_layers(engine).parameters())
    assert engine.predict(None) is None


@pytest.mark.parametrize("mode", ["train_step", "evaluate"])
def test_targets_are_needed_to_train_and_to_evaluate(mode: str) -> None:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 3), spec.layers())
    with pytest.raises(BatchError, match=r"needs targets; split_batch"):
        getattr(engine, mode)(spec.batch(4, 0)[0], None, batch_counter=0)


def test_fewer_rows_than_micro_batches_run_with_as_many_as_there_are() -> None:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 8), spec.layers(), trace=True)
    engine.train_step(*spec.batch(3, 0), batch_counter=0)
    assert {event.micro_batch for event in engine.events} == {0, 1, 2}
    assert engine.schedule().num_micro_batches == 8
    assert engine.schedule(3).num_micro_batches == 3


def step_of_two_minds(rank: int, world_size: int) -> None:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, 2), spec.layers(), PipelineMesh(world_size))
    if rank == 0:
        engine.evaluate(*spec.batch(4, 0))
    else:
        engine.train_step(None, None, batch_counter=0)


def test_ranks_that_run_different_steps_say_so() -> None:
    """A callback that validates on one rank only: the messages of two steps met."""
    for end in fresh_ranks(2, step_of_two_minds, timeout=30):
        assert (end.exit_code, end.timed_out) == (1, False), end.stderr
        assert "was about to train but the rank that reads data evaluates" in end.stderr, end.stderr


def metrics_by_rank(rank: int, world_size: int) -> list[Any]:
    spec = MODELS["mlp"]
    mesh = PipelineMesh(world_size)
    engine = make_engine(Cell("mlp", world_size, 3), spec.layers(), mesh)
    batch = spec.batch(7, 0) if rank == 0 else (None, None)
    totals = [engine.train_step(*batch, batch_counter=0).totals, engine.evaluate(*batch)]
    engine.close()
    mesh.close()
    return totals


def test_totals_are_equal_on_every_rank(pools: Pools) -> None:
    spec = MODELS["mlp"]
    reference = oracle.pooled_step(
        spec.layers(), *spec.batch(7, 0), spec.loss, num_micro_batches=3, metrics=spec.metrics
    )
    for trained, evaluated in pools(3).run(metrics_by_rank):
        assert trained == evaluated
        assert dict(trained.metrics) == reference.metrics
        assert trained.loss == pytest.approx(reference.loss.item(), abs=TOLERANCE)


def test_a_partition_that_does_not_add_up_names_both_numbers() -> None:
    layers = MODELS["mlp"].layers()
    cell = Cell("mlp", 2, 2)
    with pytest.raises(UserError, match=r"partition=\[4, 3\] adds up to 7 layers, but the model has 6"):
        make_engine(cell, layers[:6])
