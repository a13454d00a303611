"""What crosses a boundary, and what has no gradients; the matrix of test_parity runs them all for K = 1 to 4."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.gpipe.building import make_skeletons
from repro.gpipe.engine import Engine
from repro.gpipe.mesh import PipelineMesh
from tests.helpers.pipelines import Cell, differences, run_cells
from tests.helpers.ranks import Pools

WAYS = ("local", "processes")


def check(name: str, way: str, pools: Pools, num_stages: int = 4) -> None:
    cells = [Cell(name, num_stages, 3, remat, 7) for remat in ("always", "except_last", "never")]
    for cell, outcomes in zip(cells, run_cells(way, cells, pools), strict=True):
        assert not (wrong := differences(cell, outcomes)), wrong


@pytest.mark.parametrize("way", WAYS)
def test_the_same_tensor_twice_integers_complex_numbers_and_an_output_that_nobody_uses(way: str, pools: Pools) -> None:
    """Two messages of one tensor lost one of the two gradients; an unused output waited for a gradient forever."""
    check("twice", way, pools)


@pytest.mark.parametrize("way", WAYS)
def test_decoder_stages_get_the_mask_and_the_tokens_that_only_the_first_stage_has_read(way: str, pools: Pools) -> None:
    """They are passed through every stage in between; None holds a place that a later stage fills."""
    check("translation", way, pools)


@pytest.mark.parametrize("way", WAYS)
def test_views_and_tensors_that_are_not_contiguous(way: str, pools: Pools) -> None:
    """A transposed output was sent as it lies in memory."""
    check("views", way, pools)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("gpipe", 2), ("interleaved", 2), ("zb-v", 2)])
def test_a_gradient_on_its_way_is_not_the_one_that_the_next_micro_batch_adds_to(
    schedule: str, virtual: int, way: str, pools: Pools
) -> None:
    """With one row a micro-batch, a parameter got the gradient of the stage's input for its own, without a copy."""
    cells = [Cell("shared_gradients", 4 // virtual, 5, remat, 5, virtual, schedule) for remat in ("always", "never")]
    for cell, outcomes in zip(cells, run_cells(way, cells, pools), strict=True):
        assert not (wrong := differences(cell, outcomes)), wrong


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["frozen_first", "frozen_middle", "frozen_last"])
def test_frozen_layers_and_stages(name: str, way: str, pools: Pools) -> None:
    """A frozen first stage sends an output that wants no gradient; the next one must not wait for it, nor send one."""
    check(name, way, pools)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["empty_stage", "empty_ends", "unused"])
def test_stages_without_parameters_and_parameters_without_use(name: str, way: str, pools: Pools) -> None:
    check(name, way, pools)


class Sizes(nn.Module):
    """A boundary of another number of elements in each layer: 1, 3, 2, with a zero-sized one among them."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, value: Any) -> Any:
        if self.number == 0:
            return value * self.weight, value.new_zeros(len(value), 0), None
        if self.number == 1:
            first, _, nothing = value
            assert nothing is None
            return first * self.weight, (first > 0).to(torch.uint8)
        return value[0] * self.weight + value[1]


def summed(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return outputs.sum(), len(targets)


def sizes_on_rank(rank: int, world_size: int, local: bool = False) -> list[float]:
    mesh = None if local else PipelineMesh(world_size)
    engine = Engine({i: Sizes(i) for i in range(3)}, [1, 1, 1], num_micro_batches=3, loss=summed, mesh=mesh)
    inputs = torch.arange(7, dtype=torch.float64)
    engine.train_step(*((inputs, inputs) if rank == 0 else (None, None)), batch_counter=0).accumulate()
    gradients = [float(layer.weight.grad) for stage in engine.stages.values() for layer in stage.layers.values()]
    engine.close()
    if mesh is not None:
        mesh.close()
    return gradients


@pytest.mark.parametrize("way", WAYS)
def test_boundaries_with_different_numbers_of_elements_and_an_empty_one(way: str, pools: Pools) -> None:
    by_rank = [sizes_on_rank(0, 3, True)] if way == "local" else pools(3).run(sizes_on_rank)
    # The loss is the mean of x w0 w1 w2 + (x > 0): each gradient is the mean of 0..6.
    assert [gradient for seen in by_rank for gradient in seen] == pytest.approx([3.0] * 3, abs=1e-12)


def test_tied_weights_are_an_error_and_never_two_copies_that_drift_apart() -> None:
    table = nn.Embedding(5, 4)

    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = table.weight

    with pytest.raises(UserError, match=r"layers 0 \(weight\) and 2 \(weight\) share a parameter"):
        make_skeletons([lambda: table, nn.ReLU, Output])


class Looks(nn.Module):
    """Looks at a value while it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.linspace(0, 0.1, 3)[1].item()
        self.inner = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))


def test_a_factory_that_looks_at_a_value_is_made_where_there_are_values() -> None:
    state = torch.get_rng_state()
    skeletons = make_skeletons([Looks, Looks, partial(nn.Linear, 4, 4)])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.is_meta for layer in skeletons for parameter in layer.parameters())
    assert [name for name, _ in skeletons[0].named_parameters()] == [name for name, _ in Looks().named_parameters()]
