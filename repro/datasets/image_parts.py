"""Training, validation and test part of an image set, packaged or real, as inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from repro.datasets.image_sets import IMAGENET_MEAN, IMAGENET_STD, REAL_SETS, real_set, size_notes
from repro.datasets.images import PACKAGED, load_images, pixel_statistics, split_validation
from repro.datasets.paths import DataError
from repro.datasets.transforms import Fit, Preparation

_MOST_VALIDATION = 5000


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a source, prepared.

    Items are (float32 of shape (channels, size, size), int64 label of shape ()). Random preparations draw from torch's
    global generator, which a ``DataLoader`` seeds per worker.
    """

    def __init__(self, source: Any, rows: Sequence[int], prepare: nn.Module) -> None:
        """``source[row]`` is (uint8 picture, label); ``rows``: which of them, in order."""
        self.source, self.rows, self.prepare = source, rows, prepare

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.source[self.rows[index]]
        return self.prepare(image), torch.as_tensor(label)


@dataclass(frozen=True)
class ImageParts:
    """An image set, split.

    Attributes:
        parts: by "train", "val" and "test".
        classes: their number.
        channels: of the inputs.
        notes: differences from the published sizes, one sentence each.
    """

    parts: Mapping[str, ImageDataset]
    classes: int
    channels: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Which rows of a set are used.

    Attributes:
        validation: training rows to set aside (before ``limit_train`` applies, so that they stay the same); None: a
            tenth, at most 5,000.
        limit_train: only so many training rows.
        limit_test: only so many test rows.
        seed: of the choice of validation rows.
    """

    validation: int | None = None
    limit_train: int | None = None
    limit_test: int | None = None
    seed: int = 0

    def choose(self, train: int, test: int) -> dict[str, Tensor]:
        """Row numbers by part: "train" and "val" of the training split, "test" of the other one.

        Raises:
            DataError: no training row would be left.
        """
        validation = min(_MOST_VALIDATION, train // 10) if self.validation is None else self.validation
        training, held_out = split_validation(train, validation, self.seed)
        return {"train": training[: self.limit_train], "val": held_out, "test": torch.arange(test)[: self.limit_test]}


def image_parts(
    name: str,
    preparation: Preparation | None = None,
    rows: Rows | None = None,
    *,
    root: str | Path | None = None,
    folder: str | Path | None = None,
    download: bool = False,
) -> ImageParts:
    """The three parts of the set ``name``; the test split is never part of the others.

    Args:
        name: a key of ``PACKAGED`` or ``REAL_SETS``.
        preparation: how pictures become inputs; None: what ``default_preparation`` gives.
        rows: which rows.
        root: folder of the packaged sets; None: the checkout's.
        folder: where a real set lies.
        download: let torchvision download a real set into ``folder``.

    Raises:
        DataError: unknown name, the set is not there, or ``rows`` leaves no training row.
    """
    rows = Rows() if rows is None else rows
    preparation = default_preparation(name, root=root) if preparation is None else preparation
    return (
        _packaged(name, preparation, rows, root)
        if name in PACKAGED
        else _real(name, preparation, rows, folder, download)
    )


def set_names() -> list[str]:
    """Names of all image sets, packaged ones first."""
    return [*PACKAGED, *REAL_SETS]


def check_name(name: str) -> None:
    """Raises: DataError: there is no image set ``name``."""
    if name not in set_names():
        raise DataError(f"unknown image set {name!r}; there are {', '.join(set_names())}")


def default_preparation(
    name: str,
    size: int = 32,
    channels: int | None = None,
    fit: Fit | None = None,
    augment: bool = False,
    flip: bool | None = None,
    cutout: int = 0,
    *,
    root: str | Path | None = None,
) -> Preparation:
    """A preparation with what is left out chosen by the set: its pixel statistics, whether it may be mirrored, and
    padding where its pictures are at most as large as ``size`` and at least three quarters of it, else resizing.

    Raises:
        DataError: unknown name, or the packaged set is not there.
    """
    check_name(name)
    known = PACKAGED.get(name)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    if known is None:
        channels = 3 if channels is None else channels
        mean, std = IMAGENET_MEAN, IMAGENET_STD
        if channels == 1:
            mean, std = (sum(mean) / 3,), (sum(std) / 3,)
        return Preparation(size, channels, fit or "resize", augment, flip is not False, cutout, mean, std)
    if fit == "pad" and known.side > size:
        raise DataError(
            f"pictures of {known.side}x{known.side} do not fit image_size={size}: choose image_size={known.side}, or "
            "--data.fit=resize"
        )
    if fit == "crop":
        raise DataError(f"--data.fit=crop is for photographs; {name} takes pad or resize")
    if fit is None:
        fit = "pad" if 0.75 * size <= known.side <= size else "resize"
    mean, std = ((value,) for value in pixel_statistics(name, root))
    return Preparation(size, channels, fit, augment, known.mirrored if flip is None else flip, cutout, mean, std)


def _packaged(name: str, preparation: Preparation, rows: Rows, root: str | Path | None) -> ImageParts:
    images, labels = load_images(name, "train", root)
    test_images, test_labels = load_images(name, "test", root)
    chosen = rows.choose(len(images), len(test_images))
    parts = {}
    for part, numbers in chosen.items():
        training = part == "train"
        pixels, targets = (test_images, test_labels) if part == "test" else (images, labels)
        # In memory, so that what is the same each time is done once.
        source = TensorDataset(preparation.fixed(training=training)(pixels[numbers]), targets[numbers])
        parts[part] = ImageDataset(source, range(len(numbers)), preparation.each_time(training=training))
    channels = images.shape[1] if preparation.channels is None else preparation.channels
    return ImageParts(parts, PACKAGED[name].classes, channels)


def _real(name: str, preparation: Preparation, rows: Rows, folder: str | Path | None, download: bool) -> ImageParts:
    train, test = (real_set(name, folder, split, download=download) for split in ("train", "test"))
    _check_classes(name, list(train.classes), list(test.classes))
    chosen = rows.choose(len(train), len(test))
    parts = {}
    for part, numbers in chosen.items():
        training = part == "train"
        prepare = nn.Sequential(preparation.fixed(training=training), preparation.each_time(training=training))
        parts[part] = ImageDataset(test if part == "test" else train, numbers.tolist(), prepare)
    notes = size_notes(name, len(train), len(test), len(train.classes))
    return ImageParts(parts, len(train.classes), preparation.channels or 3, tuple(notes))


def _check_classes(name: str, train: list[Any], test: list[Any]) -> None:
    if train != test:
        only = sorted(map(str, set(map(str, train)) ^ set(map(str, test))))
        raise DataError(
            f"{name}: its training and its test folder have different classes ({len(train)} and {len(test)}); in one "
            f"of them only: {', '.join(only[:5])}{', ...' if len(only) > 5 else ''}"
        )
