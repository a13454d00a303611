"""The packaged image sets as tensors: Fashion-MNIST, and those to fine-tune on (digits, emoji, OpenClipart)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from repro.datasets.archives import gunzip_if_needed
from repro.datasets.paths import DataError, missing_set, packaged_root
from repro.datasets.store import read_manifest

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
"""Of Fashion-MNIST."""

MEAN, STD = 0.2860, 0.3530
"""Of Fashion-MNIST's training pixels, scaled to 0..1 (before padding)."""


@dataclass(frozen=True)
class PackagedSet:
    """A packaged image set: number of classes, side of the pictures, and whether mirroring keeps a picture's class."""

    classes: int
    side: int
    channels: int
    mirrored: bool


PACKAGED: Mapping[str, PackagedSet] = {
    "fashion-mnist": PackagedSet(classes=10, side=28, channels=1, mirrored=True),
    "digits": PackagedSet(classes=10, side=8, channels=1, mirrored=False),
    "emoji": PackagedSet(classes=9, side=64, channels=3, mirrored=True),
    "openclipart": PackagedSet(classes=12, side=64, channels=3, mirrored=True),
}

_FILES = {
    "fashion-mnist": {
        "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    }
}
_OWN_FILES = {split: (f"{split}-images-idx.gz", f"{split}-labels-idx.gz") for split in ("train", "test")}
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
        name: a key of ``PACKAGED``.
        split: ``"train"`` or ``"test"``.
        root: folder of the packaged sets; the checkout's ``data/packaged`` where None.
        limit: only the first ``limit`` pictures.

    Returns:
        uint8 pictures of shape (N, channels, side, side) and int64 labels of shape (N,).

    Raises:
        DataError: unknown name or split, the set has not been fetched, or one of its files is damaged.
    """
    if name not in PACKAGED:
        raise DataError(f"unknown image set {name!r}; packaged are {', '.join(PACKAGED)}")
    files = _FILES.get(name, _OWN_FILES)
    if split not in files:
        raise DataError(f"unknown split {split!r} of {name}; it has 'train' and 'test'")
    base = packaged_root(root)
    if read_manifest(base, name) is None:
        raise missing_set(name, base)
    images, labels = (_read(base / name / file)[:limit] for file in files[split])
    return images.unsqueeze(1) if images.dim() == 3 else images, labels.to(torch.int64)


def pixel_statistics(name: str, root: str | Path | None = None) -> tuple[float, float]:
    """Mean and standard deviation of a packaged set's training pixels, scaled to 0..1.

    Raises:
        DataError: the set has not been fetched.
    """
    if name == "fashion-mnist":
        return MEAN, STD
    base = packaged_root(root)
    manifest = read_manifest(base, name)
    if manifest is None:
        raise missing_set(name, base)
    return float(manifest.counts["mean"]), float(manifest.counts["std"])


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


def _read(path: Path) -> Tensor:
    try:
        return read_idx(gunzip_if_needed(path.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Delete the folder {path.parent} and fetch the set again."
        ) from error
