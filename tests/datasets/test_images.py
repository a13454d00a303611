"""Pictures: read, padded, normalised, augmented; the test split stays apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.datasets.images import MEAN, STD, ImageDataset, image_datasets, load_images, read_idx, split_validation
from repro.datasets.paths import DataError
from tests.datasets.builders import idx, write_images


def test_read_idx() -> None:
    assert read_idx(idx((2, 3), bytes(range(6)))).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("data", [b"", b"\0\0\x0d\x01\0\0\0\0", idx((2, 3), bytes(5)), idx((2, 3), bytes(7))])
def test_read_idx_refuses_other_files(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an IDX|the header says"):
        read_idx(data)


def test_load_images(tmp_path: Path) -> None:
    write_images(tmp_path)
    images, labels = load_images("fashion-mnist", "test", tmp_path)
    assert (images.shape, images.dtype, labels.dtype) == ((10, 1, 28, 28), torch.uint8, torch.int64)
    assert images[:, 0, 0, 0].tolist() == labels.tolist() == list(range(10))
    assert len(load_images("fashion-mnist", "train", tmp_path, limit=7)[0]) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar"}, "unknown image set 'cifar'"),
        ({"split": "dev"}, "unknown split 'dev'"),
        ({}, "not in .* Fetch it with `python -m repro.datasets fetch --only images"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_images(**arguments, root=tmp_path)


def test_padding_is_the_normalised_background() -> None:
    images = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    images[0, 0, 0, 0] = 255
    picture, label = ImageDataset(images, torch.tensor([3]))[0]
    assert picture.shape == (1, 32, 32) and label.item() == 3
    assert picture[0, 2, 2].item() == pytest.approx((1 - MEAN) / STD)
    rest = picture.flatten()[torch.arange(1024) != 2 * 32 + 2]
    assert rest.unique().tolist() == [pytest.approx(-MEAN / STD)]


def test_augmentation_shifts_and_mirrors_within_the_padding() -> None:
    images = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    images[0, 0, 0, 0] = 255
    data = ImageDataset(images, torch.tensor([3]), augment=True)
    torch.manual_seed(0)
    places = set()
    for _ in range(400):
        picture = data[0][0][0]
        assert (picture > 0).sum() == 1
        places.add(divmod(int(picture.argmax()), 32))
    assert places == {(row, column) for row in range(5) for column in [*range(5), *range(27, 32)]}


@pytest.mark.parametrize(
    ("images", "labels", "size", "message"),
    [((2, 1, 28, 28), 3, 32, "2 pictures but 3 labels"), ((2, 1, 28, 40), 2, 32, "28x40 do not fit size=32")],
)
def test_dataset_refuses(images: tuple[int, ...], labels: int, size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageDataset(torch.zeros(images, dtype=torch.uint8), torch.zeros(labels), size)


def test_validation_is_carved_from_training_with_a_fixed_seed(tmp_path: Path) -> None:
    write_images(tmp_path, train=200, test=10)
    training, validation, test = image_datasets(tmp_path, validation=50, limit_test=4)
    assert (len(training), len(validation), len(test)) == (150, 50, 4)
    rows = [set(part.images[:, 0, 0, 0].tolist()) for part in (training, validation)]
    assert rows[0] | rows[1] == set(range(200)) and not rows[0] & rows[1]
    again = image_datasets(tmp_path, validation=50, limit_train=20)
    assert torch.equal(again[1].images, validation.images) and torch.equal(again[0].images, training.images[:20])
    other = image_datasets(tmp_path, validation=50, seed=1)[1]
    assert not torch.equal(other.images, validation.images)


@pytest.mark.parametrize("validation", [-1, 10, 11])
def test_validation_must_leave_training(validation: int) -> None:
    with pytest.raises(DataError, match="choose 0 to 9"):
        split_validation(10, validation)
