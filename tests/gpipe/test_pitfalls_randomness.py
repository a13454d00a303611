"""Recomputation, random numbers, BatchNorm, in-place layers, autocast: one named test per pitfall."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe import Engine, StageError, is_recomputing
from repro.gpipe.building import make_layer
from repro.gpipe.mesh import PipelineMesh
from tests.helpers import oracle
from tests.helpers.models import MODELS
from tests.helpers.pipelines import TOLERANCE, Cell, make_engine, own_layers
from tests.helpers.ranks import Pools

WAYS = ("local", "processes")
REMATS = ("always", "except_last", "never")


def gradients_of(rank: int, world_size: int, cells: list[Cell], local: bool = False, seed: int = 0) -> list[Any]:
    """Per cell: the loss and this rank's gradients after one step."""
    mesh = None if local else PipelineMesh(world_size)
    seen = []
    try:
        for cell in cells:
            spec = MODELS[cell.model]
            engine = make_engine(cell, spec.layers(), mesh, seed=seed)
            batch = spec.batch(cell.rows, 0) if rank == 0 else (None, None)
            result = engine.train_step(*batch, batch_counter=0)
            result.accumulate()
            own = own_layers(engine)
            seen.append((result.loss, {name: p.grad.numpy().copy() for name, p in own.named_parameters()}))
            engine.close()
    finally:
        if mesh is not None:
            mesh.close()
    return seen


def same_bits(first: Any, second: Any) -> bool:
    return first[0] == second[0] and all((first[1][name] == second[1][name]).all() for name in second[1])


def test_dropout_is_bit_for_bit_the_same_for_any_k_remat_and_way(pools: Pools) -> None:
    """A recomputation that draws a new mask gives gradients of another function, and nothing else tells."""
    cells = {k: [Cell("dropout", k, 4, remat, 7) for remat in REMATS] for k in (1, 2, 4)}
    (first, *others) = gradients_of(0, 1, cells[1], True)
    assert all(same_bits(first, other) for other in others)
    for num_stages in (2, 4):
        assert all(same_bits(first, other) for other in gradients_of(0, num_stages, cells[num_stages], True))
        by_rank = pools(num_stages).run(gradients_of, cells[num_stages])
        for seen in by_rank:
            assert all(same_bits(first, other) for other in seen)
    assert not same_bits(first, gradients_of(0, 1, cells[1][:1], True, seed=1)[0])


@pytest.mark.parametrize("remat", REMATS)
def test_dropout_is_the_same_a_hundred_times(remat: str) -> None:
    """Whatever the process has drawn in between."""
    cell = Cell("dropout", 2, 4, remat, 7)
    spec = MODELS["dropout"]
    engine = make_engine(cell, spec.layers())
    own = own_layers(engine)
    first: dict[str, Tensor] = {}
    for _ in range(100):
        torch.rand(7)
        own.zero_grad()
        engine.train_step(*spec.batch(7, 0), batch_counter=3).accumulate()
        gradients = {name: parameter.grad.clone() for name, parameter in own.named_parameters()}
        first = first or gradients
        assert all(torch.equal(gradients[name], first[name]) for name in first)


def summed(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return outputs.sum(), len(targets)


def test_masks_differ_between_micro_batches_layers_and_batches() -> None:
    """Keyed randomness that forgets a part of its key repeats one mask everywhere; training still seems to work."""
    layers = [nn.Dropout(), nn.Dropout(), nn.Identity()]
    masks: list[tuple[float, ...]] = []
    for layer in layers[:2]:
        layer.register_forward_hook(lambda module, args, output: masks.append(tuple((output != 0).flatten().tolist())))
    engine = Engine(dict(enumerate(layers)), [2, 1], num_micro_batches=4, loss=summed, remat="never")
    inputs = torch.ones(4, 64)
    for counter in range(2):
        engine.train_step(inputs, torch.zeros(4), batch_counter=counter)
    first_layer = masks[0::2]
    assert len(set(first_layer)) == len(first_layer) == 8
    assert len(set(masks)) == len(masks)


def test_the_generator_of_the_process_is_left_alone() -> None:
    """A shuffling sampler shares the generator with dropout: the order of the data depended on the model."""
    spec = MODELS["dropout"]
    engine = make_engine(Cell("dropout", 2, 4), spec.layers())
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    engine.train_step(*spec.batch(7, 0), batch_counter=0)
    engine.evaluate(*spec.batch(7, 0))
    assert torch.equal(torch.rand(3), wanted)


def test_initial_weights_depend_on_the_layer_and_not_on_what_was_made_before() -> None:
    """Ranks that each seed themselves give their first layers the same weights."""
    factories = [lambda: nn.Linear(4, 4)] * 3
    together = [make_layer(factory, 7, index) for index, factory in enumerate(factories)]
    torch.rand(5)
    alone = make_layer(factories[2], 7, 2)
    assert torch.equal(alone.weight, together[2].weight)
    assert not torch.equal(together[0].weight, together[2].weight)
    assert not torch.equal(make_layer(factories[2], 8, 2).weight, alone.weight)


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("name", ["batch_norm_1d", "batch_norm_2d", "batch_norm_cumulative"])
def test_running_statistics_count_each_mini_batch_once(name: str, remat: str) -> None:
    """Recomputation updated them twice, micro-batches M times, and ragged ones with equal weight."""
    spec = MODELS[name]
    engine = make_engine(Cell(name, 2, 3, remat, 7), spec.layers())
    own = own_layers(engine)
    layers = spec.layers()
    for counter in range(3):
        inputs, targets = spec.batch(7, counter)
        engine.train_step(inputs, targets, batch_counter=counter)
        reference = oracle.pooled_step(layers, inputs, targets, spec.loss, num_micro_batches=3, batch_counter=counter)
        nn.Sequential(*layers).load_state_dict(reference.buffers, strict=False)
        assert own["1"].num_batches_tracked == counter + 1
        for key, buffer in own.named_buffers():
            torch.testing.assert_close(buffer, reference.buffers[key], rtol=0, atol=TOLERANCE)


def test_evaluation_leaves_running_statistics_alone() -> None:
    spec = MODELS["batch_norm_2d"]
    engine = make_engine(Cell("batch_norm_2d", 2, 3), spec.layers())
    own = own_layers(engine)
    before = {name: buffer.clone() for name, buffer in own.named_buffers()}
    own.eval()
    engine.evaluate(*spec.batch(7, 0))
    engine.predict(spec.batch(7, 0)[0])
    assert all(torch.equal(buffer, before[name]) for name, buffer in own.named_buffers())


@pytest.mark.parametrize("remat", REMATS)
def test_an_in_place_layer_at_the_start_of_a_stage(remat: str) -> None:
    """It overwrote the input that recomputation starts from; without remat, micro-batches that are views of one batch
    share a version counter, and autograd took one's in-place change for the other's."""
    spec = MODELS["in_place"]
    for num_stages in (1, 2, 3, 4):
        engine = make_engine(Cell("in_place", num_stages, 3, remat, 7), spec.layers())
        inputs, targets = spec.batch(7, 0)
        engine.train_step(inputs, targets, batch_counter=0).accumulate()
        reference = oracle.pooled_step(spec.layers(), *spec.batch(7, 0), spec.loss, num_micro_batches=3)
        for name, parameter in own_layers(engine).named_parameters():
            torch.testing.assert_close(parameter.grad, reference.gradients[name], rtol=0, atol=TOLERANCE)


def _difference(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return (outputs - targets).sum(), len(targets)


@pytest.mark.parametrize("remat", ["never", "except_last"])
def test_an_in_place_layer_after_one_that_needs_its_output(remat: str) -> None:
    """In one process it overwrote what the stage before had saved, unseen: as without stages autograd refuses that."""
    layers = [nn.Linear(6, 6), nn.Sigmoid(), nn.Dropout(inplace=True), nn.Linear(6, 6)]
    engine = Engine(dict(enumerate(layers)), [2, 2], num_micro_batches=2, loss=_difference, remat=remat)
    with pytest.raises(StageError, match=r"stage 0, micro-batch 1, backward: .*modified by an inplace operation"):
        engine.train_step(torch.randn(4, 6), torch.randn(4, 6), batch_counter=0)


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(6))

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.table[None], value


class _Doubling(nn.Module):
    def forward(self, boundary: tuple[Tensor, Tensor]) -> Tensor:
        return boundary[1] + boundary[0].mul_(2)


@pytest.mark.parametrize("remat", REMATS)
def test_an_in_place_layer_after_one_that_hands_a_parameter_on(remat: str) -> None:
    """In one process it changed the parameter."""
    first = _Table()
    engine = Engine({0: first, 1: _Doubling()}, [1, 1], num_micro_batches=2, loss=_difference, remat=remat)
    engine.train_step(torch.randn(4, 6), torch.randn(4, 6), batch_counter=0).accumulate()
    assert first.table.detach().tolist() == [1] * 6
    assert first.table.grad is not None and first.table.grad.tolist() == [2] * 6


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("remat", REMATS)
def test_float_input_with_and_without_gradient_at_the_first_stage(remat: str, requires_grad: bool) -> None:
    """Reentrant checkpointing gives no gradients at all where no input requires one."""
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 3, 3, remat, 7), spec.layers())
    inputs, targets = spec.batch(7, 0)
    engine.train_step(inputs.clone().requires_grad_(requires_grad), targets, batch_counter=0).accumulate()
    reference = oracle.pooled_step(spec.layers(), inputs, targets, spec.loss, num_micro_batches=3)
    for name, parameter in own_layers(engine).named_parameters():
        torch.testing.assert_close(parameter.grad, reference.gradients[name], rtol=0, atol=TOLERANCE)


def dtypes_seen(rank: int, world_size: int, remat: str, local: bool = False) -> list[tuple[int, bool, str]]:
    """(layer, is a recompute, dtype of its output) of each forward of one step under autocast."""
    mesh = None if local else PipelineMesh(world_size)
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, 2, remat), [layer.float() for layer in spec.layers()], mesh)
    seen: list[tuple[int, bool, str]] = []
    for stage in engine.stages.values():
        for index, layer in stage.layers.items():
            layer.register_forward_hook(
                lambda module, args, output, index=index: seen.append((index, is_recomputing(), str(output.dtype)))
            )
    inputs, targets = spec.batch(8, 0)
    with torch.autocast("cpu", torch.bfloat16):
        engine.train_step(*((inputs.float(), targets) if rank == 0 else (None, None)), batch_counter=0)
    engine.close()
    if mesh is not None:
        mesh.close()
    return seen


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("way", WAYS)
def test_recomputation_runs_in_the_dtype_of_the_forward(way: str, remat: str, pools: Pools) -> None:
    """Autocast is thread-local and was off where the recomputation ran."""
    by_rank = [dtypes_seen(0, 3, remat, True)] if way == "local" else pools(3).run(dtypes_seen, remat)
    seen = [entry for entries in by_rank for entry in entries]
    for layer in range(7):
        dtypes = {dtype for index, _, dtype in seen if index == layer}
        assert len(dtypes) == 1
        recomputed = sum(again for index, again, _ in seen if index == layer)
        assert recomputed == {"always": 2, "except_last": 1, "never": 0}[remat]
    assert {dtype for index, _, dtype in seen if index in (0, 3, 5, 6)} == {"torch.bfloat16"}


def plain_hooks(remat: str) -> tuple[int, int]:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 4, remat), spec.layers())
    counts = [0, 0]

    def count() -> None:
        counts[is_recomputing()] += 1

    for stage in engine.stages.values():
        next(iter(stage.layers.values())).register_forward_hook(lambda module, args, output: count())
    engine.train_step(*spec.batch(8, 0), batch_counter=0)
    return counts[0], counts[1]


@pytest.mark.parametrize(("remat", "recomputed"), [("always", 8), ("except_last", 6), ("never", 0)])
def test_a_hook_sees_each_micro_batch_once_and_can_ask_for_recomputes(remat: str, recomputed: int) -> None:
    """Counters (tokens seen, spectral norm's iterations) ran twice as fast under remat."""
    assert plain_hooks(remat) == (8, recomputed)
