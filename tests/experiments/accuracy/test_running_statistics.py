"""Running statistics against recomputed ones, on models small enough to know the answer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from repro.experiments.accuracy.running_statistics import accuracy, compare, recompute


def loader(images: torch.Tensor, batch: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(images, torch.zeros(len(images), dtype=torch.int64)), batch)


def test_recomputed_statistics_are_those_of_the_data() -> None:
    images = torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 + 1
    model = nn.Sequential(nn.BatchNorm2d(3))
    recomputed = recompute(model, loader(images, 64))
    exact = recomputed[0]
    assert isinstance(exact, nn.BatchNorm2d)
    torch.testing.assert_close(exact.running_mean, images.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(exact.running_var, images.var(dim=(0, 2, 3)))
    # What was there before is untouched, and does not count.
    assert torch.equal(model[0].running_mean, torch.zeros(3))


def test_errors_in_their_units() -> None:
    model, exact = (nn.Sequential(nn.BatchNorm2d(2, eps=0.0)) for _ in range(2))
    model[0].running_mean.copy_(torch.tensor([1.0, 0.0]))
    model[0].running_var.copy_(torch.tensor([4.0, 2.0]))
    exact[0].running_mean.copy_(torch.tensor([0.0, 3.0]))
    exact[0].running_var.copy_(torch.tensor([4.0, 1.0]))
    found = compare(model, exact)
    # |1 - 0| / 2 and |0 - 3| / 1; log 1 and log 2
    assert found["running_mean_error"] == pytest.approx((0.5 + 3.0) / 2)
    assert found["running_variance_error"] == pytest.approx(math.log(2) / 2)
    assert found["channels"] == 2
    assert compare(exact, exact) == {"running_mean_error": 0.0, "running_variance_error": 0.0, "channels": 2}


def test_a_dead_channel_does_not_count() -> None:
    model, exact = (nn.Sequential(nn.BatchNorm2d(1, eps=1e-3)) for _ in range(2))
    exact[0].running_var.zero_()
    model[0].running_var.zero_()
    assert compare(model, exact)["running_variance_error"] == 0.0


def test_accuracy_is_of_all_rows_and_of_evaluation() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Identity(), nn.Linear(2, 2))
    with torch.no_grad():
        model[3].weight.copy_(torch.eye(2))
        model[3].bias.zero_()
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).reshape(3, 2, 1, 1)
    labels = torch.tensor([0, 1, 1])
    assert accuracy(model, DataLoader(TensorDataset(images, labels), 2)) == pytest.approx(2 / 3)
