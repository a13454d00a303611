from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from repro.datasets.paths import DataError
from repro.errors import UserError
from repro.tasks.image_classification import ImageClassification
from repro.tasks.image_data import ImageDataModule
from tests.datasets.builders import write_transfer
from tests.datasets.test_image_sets import class_folders


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


def fit(data: ImageDataModule, model: ImageClassification) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)


def model(**options: Any) -> ImageClassification:
    return ImageClassification(
        num_layers=3, num_filters=4, stem_stride=2, image_size=16, schedule="constant", **options
    )


def test_a_set_in_color_trains(tmp_path: Path) -> None:
    write_transfer(tmp_path, "emoji")
    data = ImageDataModule(
        str(tmp_path), "emoji", batch_size=4, image_size=16, validation=0, augment=True, cutout=4, limit_train=4
    )
    data.check()
    fit(data, model(num_classes=9, in_channels=3))


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        (
            {"num_classes": 10, "in_channels": 3},
            {},
            "emoji gives 9 classes, .*num_classes=10: give --model.num_classes=9",
        ),
        ({"num_classes": 9}, {}, "emoji gives 3 channels, .*in_channels=1.* or another --data.channels"),
        ({"num_classes": 9, "in_channels": 3}, {"channels": 1}, "emoji gives 1 channels"),
    ],
)
def test_a_model_for_other_data_is_one_error(
    tmp_path: Path, options: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    write_transfer(tmp_path, "emoji")
    module = ImageDataModule(str(tmp_path), "emoji", batch_size=4, image_size=16, validation=0, **data)
    with pytest.raises(UserError, match=message):
        module.check_model(model(**options))
    with pytest.raises(UserError, match=message):
        fit(module, model(**options))


def test_a_real_set_says_how_it_differs_from_the_paper(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class_folders(tmp_path)
    data = ImageDataModule(dataset="birdsnap", folder=str(tmp_path), batch_size=2, image_size=16, validation=0)
    data.check()
    with pytest.raises(UserError, match=r"birdsnap gives 2 classes, .*num_classes=500"):
        data.check_model(model(num_classes=500, in_channels=3))
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        data.setup()
    assert "birdsnap has 4 test pictures here; the paper's Table 4 prints 2,443 (-2,439)" in caplog.text
    images, labels = next(iter(data.test_dataloader()))
    assert images.shape == (2, 3, 16, 16) and labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "cifar"}, "unknown image set 'cifar'; there are fashion-mnist"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"limit_train": -1}, "limit_train=-1 must be at least 1: change --data.limit_train"),
        ({"limit_test": 0}, "limit_test=0 must be at least 1: change --data.limit_test"),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0: change --data.num_workers"),
        ({"dataset": "food101"}, r"where does food101 lie\? Give --data.folder"),
        ({"dataset": "stanford-cars", "folder": "nowhere"}, "stanford-cars is not in nowhere"),
    ],
)
def test_mistakes_are_told_before_work_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageDataModule(**options).check()
