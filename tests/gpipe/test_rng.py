from __future__ import annotations

import itertools

import pytest
import torch

from repro.gpipe.rng import StepKey, generator, initialisation_seed, mix, preserved


def test_keys_are_32_bits_and_differ_in_every_part() -> None:
    parts = [
        (seed, batch, replica, part, layer)
        for seed, batch, replica, part, layer in itertools.product(range(4), repeat=5)
    ]
    seeds = {StepKey(seed, batch, replica).layer(part, layer) for seed, batch, replica, part, layer in parts}
    assert all(0 <= seed < 2**32 for seed in seeds)
    # 1024 draws of 32 bits: a collision has a chance of about one in 8000, and the hash is fixed.
    assert len(seeds) == len(parts)


def test_keys_are_the_same_on_every_machine() -> None:
    assert mix(1, 2, 3) == 2534417627
    assert StepKey(seed=7, batch=1).layer(micro_batch=2, layer=3) == mix(7, 1, 0, 2, 3)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**64 - 1, -1])
def test_any_seed_will_do(seed: int) -> None:
    assert 0 <= initialisation_seed(seed, 3) < 2**32


def test_layers_are_initialised_under_different_seeds() -> None:
    assert len({initialisation_seed(0, layer) for layer in range(1000)}) == 1000


def test_the_state_of_the_generator_is_put_back_after_an_exception_too() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="stop"), preserved(torch.device("cpu")) as own:
        own.manual_seed(1)
        torch.rand(3)
        raise RuntimeError("stop")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_generator_is_the_one_that_dropout_draws_from() -> None:
    with preserved(torch.device("cpu")):
        generator(torch.device("cpu")).manual_seed(5)
        first = torch.nn.functional.dropout(torch.ones(64))
        generator(torch.device("cpu")).manual_seed(5)
        assert torch.equal(torch.nn.functional.dropout(torch.ones(64)), first)
