"""The oracle itself: with one micro-batch it is plain training, with more it is what its docstrings say."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.helpers.models import MODELS
from tests.helpers.oracle import cut, pooled_step

DETERMINISTIC = [name for name in MODELS if name != "dropout"]


# Plain PyTorch counts what a checkpointed BatchNorm sees twice.
@pytest.mark.parametrize("name", [name for name in DETERMINISTIC if name != "batch_norm_checkpointed"])
def test_one_micro_batch_is_a_plain_training_step_batch_norm_included(name: str) -> None:
    spec = MODELS[name]
    layers = spec.layers()
    inputs, targets = spec.batch(7, 1)
    reference = pooled_step(layers, inputs, targets, spec.loss, num_micro_batches=1)

    plain = nn.Sequential(*copy.deepcopy(layers))
    total, count = spec.loss(plain(inputs), targets)
    (total / count).backward()
    torch.testing.assert_close(reference.loss, (total / count).detach(), rtol=0, atol=1e-13)
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(reference.gradients[key], parameter.grad, rtol=0, atol=1e-13)
    for key, buffer in plain.named_buffers():
        torch.testing.assert_close(reference.buffers[key], buffer, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", list(MODELS))
def test_micro_batches_matter_only_where_the_model_says_so(name: str) -> None:
    spec = MODELS[name]
    layers = spec.layers()
    inputs, targets = spec.batch(7, 0)
    pieces = pooled_step(layers, inputs, targets, spec.loss, num_micro_batches=3)
    whole = pooled_step(layers, inputs, targets, spec.loss, num_micro_batches=1)
    largest = max(
        (gradient - whole.gradients[key]).abs().max().item()  # type: ignore[operator]
        for key, gradient in pieces.gradients.items()
        if gradient is not None
    )
    assert (largest < 1e-12) == spec.whole


def test_the_layers_that_are_given_stay_as_they_are() -> None:
    layers = MODELS["batch_norm_2d"].layers()
    before = copy.deepcopy(nn.Sequential(*layers).state_dict())
    inputs, targets = MODELS["batch_norm_2d"].batch(4, 0)
    state = torch.random.get_rng_state()
    pooled_step(layers, inputs, targets, MODELS["batch_norm_2d"].loss, num_micro_batches=2)
    torch.testing.assert_close(nn.Sequential(*layers).state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for layer in layers for parameter in layer.parameters())


def test_running_statistics_are_one_update_from_all_rows() -> None:
    """The first BatchNorm sees the same values whatever M is, so its statistics are those of the whole batch."""
    spec = MODELS["batch_norm_2d"]
    inputs, targets = spec.batch(7, 0)
    whole, pieces = (
        pooled_step(spec.layers(), inputs, targets, spec.loss, num_micro_batches=parts).buffers for parts in (1, 3)
    )
    torch.testing.assert_close(pieces["1.running_mean"], whole["1.running_mean"], rtol=0, atol=1e-14)
    torch.testing.assert_close(pieces["1.running_var"], whole["1.running_var"], rtol=0, atol=1e-14)
    assert pieces["1.num_batches_tracked"] == whole["1.num_batches_tracked"] == 1
    assert not torch.allclose(pieces["4.running_var"], whole["4.running_var"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "parts", "expected"),
    [(8, 4, [2, 2, 2, 2]), (7, 3, [3, 2, 2]), (3, 8, [1, 1, 1]), (1, 4, [1]), (7, 4, [2, 2, 2, 1])],
)
def test_rows_of_micro_batches(rows: int, parts: int, expected: list[int]) -> None:
    batch = (torch.arange(rows), None, torch.zeros(rows, 2))
    pieces = cut(batch, parts)
    assert [len(piece[0]) for piece in pieces] == [len(piece[2]) for piece in pieces] == expected
    assert torch.equal(torch.cat([piece[0] for piece in pieces]), batch[0])
    assert all(piece[1] is None for piece in pieces)
