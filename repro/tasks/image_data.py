"""Pictures as a LightningDataModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader
from typing_extensions import override

from repro.datasets.images import ImageDataset, image_datasets
from repro.datasets.paths import missing_set, packaged_root
from repro.datasets.store import read_manifest
from repro.errors import UserError


class ImageDataModule(pl.LightningDataModule):
    """Fashion-MNIST, packaged, padded to ``image_size``.

    The validation part is carved from the training split by a fixed seed; the test split is in neither.

    Args:
        root: folder of the packaged sets; None: ``data/packaged`` of the checkout.
        batch_size: rows of a mini-batch, per replica; it must divide into the micro-batches.
        image_size: side of the pictures after padding.
        validation: training rows to set aside.
        limit_train: only so many training rows.
        limit_test: only so many test rows.
        augment: shift within the padding and mirror the training pictures.
        num_workers: loader processes of the rank that reads data.
        split_seed: of the choice of validation rows.
    """

    def __init__(
        self,
        root: str | None = None,
        batch_size: int = 128,
        image_size: int = 32,
        validation: int = 5000,
        limit_train: int | None = None,
        limit_test: int | None = None,
        augment: bool = False,
        num_workers: int = 0,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        self.root = root
        self.batch_size = batch_size
        self.image_size = image_size
        self.validation = validation
        self.limit_train = limit_train
        self.limit_test = limit_test
        self.augment = augment
        self.num_workers = num_workers
        self.split_seed = split_seed
        self._parts: dict[str, ImageDataset] = {}

    def check(self) -> None:
        """Raises what would stop the run later: before any process starts.

        Raises:
            DataError: the set has not been fetched.
        """
        name, base = "fashion-mnist", packaged_root(self.root)
        if read_manifest(Path(base), name) is None:
            raise missing_set(name, base)

    @override
    def setup(self, stage: str | None = None) -> None:
        if not self._parts:
            parts = image_datasets(
                self.root,
                self.validation,
                self.limit_train,
                self.limit_test,
                self.augment,
                self.image_size,
                self.split_seed,
            )
            self._parts = dict(zip(("train", "val", "test"), parts, strict=True))

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader("train", shuffle=True)

    @override
    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader("val")

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader("test")

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        return self._loader("test")

    def _loader(self, part: str, *, shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(
            self._parts[part],
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )
