from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.datasets.paths import DataError
from repro.tasks.image_data import ImageDataModule


def test_parts_are_disjoint_and_the_split_is_fixed(packaged: Path) -> None:
    parts = []
    for _ in range(2):
        data = ImageDataModule(root=str(packaged), batch_size=16, validation=12)
        data.setup()
        rows = [
            torch.cat([images[:, 0, 2, 2] for images, _ in loader]).sort().values
            for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader())
        ]
        parts.append(rows)
        torch.manual_seed(1)  # the choice of rows does not depend on it
    # The first pixel of picture i is i.
    assert [len(rows) for rows in parts[0]] == [48, 12, 10]
    assert not set(parts[0][0].tolist()) & set(parts[0][1].tolist())
    for first, second in zip(*parts, strict=True):
        assert torch.equal(first, second)


def test_limits_and_shapes(packaged: Path) -> None:
    data = ImageDataModule(root=str(packaged), batch_size=8, validation=12, limit_train=20, limit_test=4, image_size=40)
    data.setup()
    batches = list(data.train_dataloader())
    assert [len(labels) for _, labels in batches] == [8, 8, 4]
    assert batches[0][0].shape == (8, 1, 40, 40)
    assert sum(len(labels) for _, labels in data.test_dataloader()) == 4


def test_missing_data_is_told_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m repro.datasets fetch.*make data"):
        ImageDataModule(root=str(tmp_path)).check()
