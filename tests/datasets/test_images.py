"""Reading the packaged image sets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.datasets.images import MEAN, PACKAGED, STD, load_images, pixel_statistics, read_idx, split_validation
from repro.datasets.paths import DataError
from tests.datasets.builders import idx, write_images, write_transfer


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


@pytest.mark.parametrize("name", ["digits", "emoji", "openclipart"])
def test_load_a_transfer_set(tmp_path: Path, name: str) -> None:
    write_transfer(tmp_path, name)
    images, labels = load_images(name, "train", tmp_path, limit=20)
    known = PACKAGED[name]
    assert (images.shape, images.dtype) == ((20, known.channels, known.side, known.side), torch.uint8)
    assert images[:, 0, 0, 0].tolist() == list(range(20))
    assert labels.tolist() == [row % known.classes for row in range(20)]
    assert pixel_statistics(name, tmp_path) == (0.25, 0.5)


def test_statistics_of_the_default_set() -> None:
    assert pixel_statistics("fashion-mnist") == (MEAN, STD)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_transfer(tmp_path, "digits")
    path = tmp_path / "digits/test-images-idx.gz"
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))  # the size that the manifest knows, other bytes
    with pytest.raises(DataError, match=r"test-images-idx\.gz cannot be read .*fetch the set again"):
        load_images("digits", "test", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar"}, "unknown image set 'cifar'"),
        ({"split": "dev"}, "unknown split 'dev'"),
        ({"name": "emoji"}, "not in .* Fetch it with `python -m repro.datasets fetch --only emoji"),
        ({}, "not in .* Fetch it with `python -m repro.datasets fetch --only images"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_images(**arguments, root=tmp_path)


@pytest.mark.parametrize("validation", [-1, 10, 11])
def test_validation_must_leave_training(validation: int) -> None:
    with pytest.raises(DataError, match="choose 0 to 9"):
        split_validation(10, validation)
