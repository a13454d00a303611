"""Fashion-MNIST as tensors and as a ``Dataset``: padded, normalised, optionally augmented."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from repro.datasets.paths import DataError, missing_set, packaged_root
from repro.datasets.store import read_manifest

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
MEAN, STD = 0.2860, 0.3530
"""Of the training pixels, scaled to 0..1 (before padding)."""

_PREFIX = {"train": "train", "test": "t10k"}
_IDX_UINT8 = 0x08


def read_idx(data: bytes) -> Tensor:
    """An IDX file of unsigned bytes (the format of MNIST) as a uint8 tensor.

    Raises:
        ValueError: not such a file, or not as long as its header says.
    """
    if len(data) < 4 or data[0] or data[1] or data[2] != _IDX_UINT8:
        raise ValueError("not an IDX file of unsigned bytes")
    dimensions = data[3]
    offset = 4 + 4 * dimensions
    shape = [int.from_bytes(data[4 + 4 * index : 8 + 4 * index], "big") for index in range(dimensions)]
    values = torch.frombuffer(bytearray(data[offset:]), dtype=torch.uint8)
    if values.numel() != torch.Size(shape).numel():
        raise ValueError(f"the header says {shape}, the file has {values.numel()} values")
    return values.reshape(shape)


def load_images(
    name: str = "fashion-mnist", split: str = "train", root: str | Path | None = None, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """One split of a packaged image set.

    Args:
        name: ``"fashion-mnist"``.
        split: ``"train"`` or ``"test"``.
        root: folder of the packaged sets; the checkout's ``data/packaged`` where None.
        limit: only the first ``limit`` pictures.

    Returns:
        uint8 pictures of shape (N, 1, 28, 28) and int64 labels of shape (N,).

    Raises:
        DataError: unknown name or split, or the set has not been fetched.
    """
    if name != "fashion-mnist":
        raise DataError(f"unknown image set {name!r}; packaged is 'fashion-mnist'")
    if split not in _PREFIX:
        raise DataError(f"unknown split {split!r} of {name}; it has 'train' and 'test'")
    base = packaged_root(root)
    if read_manifest(base, name) is None:
        raise missing_set(name, base)
    folder = base / name
    images = read_idx((folder / f"{_PREFIX[split]}-images-idx3-ubyte").read_bytes())[:limit]
    labels = read_idx((folder / f"{_PREFIX[split]}-labels-idx1-ubyte").read_bytes())[:limit]
    return images.unsqueeze(1), labels.to(torch.int64)


def split_validation(count: int, validation: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Row numbers of the training and of the validation part of a training split, both sorted.

    Args:
        count: rows of the training split.
        validation: rows to set aside.
        seed: fixes which rows; independent of the global random state.

    Raises:
        DataError: no training row would be left.
    """
    if not 0 <= validation < count:
        raise DataError(f"validation={validation} rows cannot be set aside from {count}: choose 0 to {count - 1}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[validation:].sort().values, order[:validation].sort().values


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pictures padded to ``size`` and normalised; training pictures optionally shifted and mirrored.

    Items are (float32 of shape (channels, size, size), int64 label of shape ()). Augmentation draws from torch's
    global generator, which a ``DataLoader`` seeds per worker.
    """

    def __init__(self, images: Tensor, labels: Tensor, size: int = 32, augment: bool = False) -> None:
        """``images``: uint8 (N, channels, height, width); ``labels``: int64 (N,).

        Raises:
            DataError: pictures and labels disagree in number, or a picture is larger than ``size``.
        """
        if len(images) != len(labels):
            raise DataError(f"{len(images)} pictures but {len(labels)} labels")
        height, width = images.shape[-2:]
        if height > size or width > size:
            raise DataError(f"pictures of {height}x{width} do not fit size={size}; choose size={max(height, width)}")
        self.images, self.labels, self.size, self.augment = images, labels, size, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        height, width = image.shape[-2:]
        room_above, room_left = self.size - height, self.size - width
        top, left = room_above // 2, room_left // 2
        if self.augment:
            # The padding is the room that a crop of the padded picture would have: shift within it.
            top = int(torch.randint(room_above + 1, ()))
            left = int(torch.randint(room_left + 1, ()))
            if bool(torch.rand(()) < 0.5):
                image = image.flip(-1)
        # Padded before it is normalised: the border is black, as the background of the pictures is.
        padded = torch.zeros(image.shape[0], self.size, self.size)
        padded[:, top : top + height, left : left + width] = image
        return (padded / 255 - MEAN) / STD, self.labels[index]


def image_datasets(
    root: str | Path | None = None,
    validation: int = 5000,
    limit_train: int | None = None,
    limit_test: int | None = None,
    augment: bool = False,
    size: int = 32,
    seed: int = 0,
) -> tuple[ImageDataset, ImageDataset, ImageDataset]:
    """Training, validation and test part of Fashion-MNIST.

    The validation part is carved from the training split with a fixed seed (before ``limit_train`` applies, so it
    stays the same); the test split is never part of the others.

    Raises:
        DataError: the set has not been fetched, or ``validation`` leaves no training row.
    """
    images, labels = load_images(split="train", root=root)
    training, held_out = split_validation(len(images), validation, seed)
    training = training[:limit_train]
    test_images, test_labels = load_images(split="test", root=root, limit=limit_test)
    return (
        ImageDataset(images[training], labels[training], size, augment),
        ImageDataset(images[held_out], labels[held_out], size),
        ImageDataset(test_images, test_labels, size),
    )
