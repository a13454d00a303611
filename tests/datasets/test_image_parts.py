"""Image sets as inputs: the parts stay apart, pictures are prepared as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from repro.datasets.image_parts import Rows, default_preparation, image_parts
from repro.datasets.images import MEAN, STD
from repro.datasets.paths import DataError
from tests.datasets.builders import write_images, write_transfer


def test_validation_is_carved_from_training_with_a_fixed_seed(tmp_path: Path) -> None:
    write_images(tmp_path, train=200, test=10)

    def first_pixels(part: str, **rows: Any) -> list[int]:
        """Of the pictures of a part: picture i of the set begins with i."""
        dataset = image_parts("fashion-mnist", rows=Rows(**rows), root=tmp_path).parts[part]
        return [round(255 * (dataset[index][0][0, 2, 2].item() * STD + MEAN)) for index in range(len(dataset))]

    training, validation, test = (first_pixels(part, validation=50, limit_test=4) for part in ("train", "val", "test"))
    assert (len(training), len(validation), test) == (150, 50, [0, 1, 2, 3])
    assert sorted(training + validation) == list(range(200))
    assert first_pixels("train", validation=50, limit_train=20) == training[:20]
    assert first_pixels("val", validation=50, limit_train=20) == validation
    assert first_pixels("val", validation=50, seed=1) != validation
    assert len(first_pixels("val")) == 20, "a tenth, where nothing is said"


def test_padding_is_the_normalised_background(tmp_path: Path) -> None:
    write_images(tmp_path)
    picture, label = image_parts("fashion-mnist", root=tmp_path).parts["test"][9]
    assert picture.shape == (1, 32, 32) and picture.dtype == torch.float32 and label.item() == 9
    assert picture[0, 2, 2].item() == pytest.approx((9 / 255 - MEAN) / STD)
    rest = picture.flatten()[torch.arange(1024) != 2 * 32 + 2]
    assert rest.unique().tolist() == [pytest.approx(-MEAN / STD)]


def test_augmentation_shifts_and_mirrors_training_pictures_within_the_padding(tmp_path: Path) -> None:
    write_images(tmp_path)
    parts = image_parts("fashion-mnist", default_preparation("fashion-mnist", augment=True), root=tmp_path).parts
    torch.manual_seed(0)
    places = {divmod(int(parts["train"][5][0][0].argmax()), 32) for _ in range(400)}
    assert places == {(row, column) for row in range(5) for column in [*range(5), *range(27, 32)]}
    assert {divmod(int(parts[name][1][0][0].argmax()), 32) for name in ("val", "test") for _ in range(9)} == {(2, 2)}


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("digits", {}, (1, 32, 32)),
        ("digits", {"channels": 3, "size": 16}, (3, 16, 16)),
        ("fashion-mnist", {"channels": 3}, (3, 32, 32)),
        ("emoji", {}, (3, 32, 32)),
        ("emoji", {"channels": 1, "size": 64}, (1, 64, 64)),
        ("openclipart", {"size": 80, "augment": True, "cutout": 8}, (3, 80, 80)),
    ],
)
def test_shapes(tmp_path: Path, name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    (write_images if name == "fashion-mnist" else lambda root: write_transfer(root, name))(tmp_path)
    found = image_parts(name, default_preparation(name, root=tmp_path, **options), root=tmp_path)
    assert {found.parts[part][0][0].shape for part in ("train", "val", "test")} == {torch.Size(shape)}
    assert found.channels == shape[0]


def test_grey_pictures_become_three_equal_channels_of_the_same_values(tmp_path: Path) -> None:
    write_transfer(tmp_path, "digits")
    one, three = (
        image_parts("digits", default_preparation("digits", channels=channels, root=tmp_path), root=tmp_path)
        for channels in (None, 3)
    )
    grey, rgb = one.parts["test"][7][0], three.parts["test"][7][0]
    assert torch.equal(grey.expand(3, -1, -1), rgb)
    assert grey.unique().tolist() == [pytest.approx((7 / 255 - 0.25) / 0.5)]


def test_digits_are_not_mirrored(tmp_path: Path) -> None:
    write_transfer(tmp_path, "digits")
    assert not default_preparation("digits", root=tmp_path).flip
    assert default_preparation("digits", flip=True, root=tmp_path).flip


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar", {}, "unknown image set 'cifar'; there are fashion-mnist, .*cifar10"),
        ("fashion-mnist", {"size": 24, "fit": "pad"}, "28x28 do not fit image_size=24"),
        ("emoji", {"fit": "crop"}, "photographs"),
        ("fashion-mnist", {"fit": "stretch"}, "fit='stretch' is unknown; choose pad, resize, crop"),
        ("fashion-mnist", {"channels": 2}, "channels=2"),
        ("fashion-mnist", {"cutout": 65}, "cutout=65"),
        ("fashion-mnist", {"size": 0}, "image_size=0"),
    ],
)
def test_what_cannot_be_is_one_message(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    write_transfer(tmp_path, "emoji")
    with pytest.raises(DataError, match=message):
        default_preparation(name, root=tmp_path, **options)
