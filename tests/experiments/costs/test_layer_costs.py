from __future__ import annotations

from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from repro.errors import UserError
from repro.experiments.costs.full_models import FullModel, LayerCosts, amoebanet_d, choose_models, transformer_l
from repro.experiments.costs.layer_costs import count_layers, counted_flops, factories_of, profiled_seconds
from repro.gpipe.profiling import flop_costs

TINY = FullModel("tiny", "amoebanet", 3, 8, 64, 4, "p40")


class Counted(nn.Module):
    """Counts how often it is built."""

    built: ClassVar[list[int]] = []

    def __init__(self, width: int) -> None:
        super().__init__()
        self.built.append(width)
        self.linear = nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(value)
        return result


def test_equal_layers_are_looked_at_once() -> None:
    Counted.built.clear()
    factories = [partial(Counted, 4), partial(Counted, 4), partial(Counted, 4), partial(Counted, 4)]
    costs = count_layers(factories, torch.empty(1, 4, device="meta"))
    # The first one has no input gradient, so it is another layer for B.
    assert Counted.built == [4, 4]
    assert costs == LayerCosts((32.0,) * 4, (32.0, 64.0, 64.0, 64.0), (16.0,) * 4, distinct=2)


def test_a_transformer_layer_costs_what_its_products_do() -> None:
    model = transformer_l(48, "tpu-v3")
    costs = counted_flops(model)
    tokens, width, wide, vocabulary = 1024, 2048, 8192, 32000
    products = 2 * tokens * (4 * width**2 + 2 * width * wide)
    attention = 2 * 2 * tokens**2 * width
    assert costs.num_layers == 50 and costs.distinct == 3
    assert set(costs.forward[1:-1]) == {products + attention}
    assert set(costs.backward[1:-1]) == {2 * (products + attention)}
    assert (costs.forward[0], costs.forward[-1]) == (0, 2 * tokens * width * vocabulary)
    assert set(costs.boundary_bytes[:-1]) == {4 * tokens * width}


def test_separate_sub_layers_add_up_to_whole_layers() -> None:
    model = transformer_l(24, "p100")
    whole, separate = (counted_flops(model, split_sublayers=split) for split in (False, True))
    assert (whole.num_layers, separate.num_layers) == (26, 50)
    assert sum(separate.both) == sum(whole.both)


def test_distinct_layers_stand_for_all_of_amoebanet() -> None:
    model = amoebanet_d(128, "p100")
    costs = counted_flops(model)
    factories, example = factories_of(model)
    with torch.device("meta"):
        layers = [make() for make in factories]
    assert list(costs.forward) == flop_costs(layers, example)
    assert costs.distinct < costs.num_layers == 24
    # No gradient of the images is wanted.
    assert costs.backward[0] == costs.forward[0]
    assert list(costs.backward[1:]) == [2 * cost for cost in costs.forward[1:]]
    # Output and previous output cross a boundary.
    assert costs.boundary_bytes[8] == 4 * 2 * 4 * 128 * 28**2


def test_a_profile_times_both_ways_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    costs = profiled_seconds(TINY, torch.device("cpu"), repeats=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert costs.num_layers == 9 and min(costs.both) > 0
    assert costs.boundary_bytes == counted_flops(TINY).boundary_bytes


def test_flops_become_seconds() -> None:
    assert LayerCosts((2.0,), (4.0,), (8.0,), 1).at(2.0) == LayerCosts((1.0,), (2.0,), (8.0,), 1)


def test_models_are_chosen_by_family() -> None:
    models = (TINY, transformer_l(24, "p100"))
    assert choose_models(models, None) == list(models)
    assert choose_models(models, ["transformer"]) == [models[1]]
    with pytest.raises(UserError, match="--models amoeba: unknown model; did you mean amoebanet"):
        choose_models(models, ["amoeba"])
