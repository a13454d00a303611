"""Pictures as a LightningDataModule: the packaged sets, and the real ones of the paper's Table 4."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.utils.data import DataLoader
from typing_extensions import override

from repro.datasets.image_parts import ImageParts, Rows, check_name, default_preparation, image_parts
from repro.datasets.image_sets import REAL_SETS, real_set
from repro.datasets.images import PACKAGED
from repro.datasets.paths import missing_set, packaged_root
from repro.datasets.store import read_manifest
from repro.datasets.transforms import Fit
from repro.errors import UserError
from repro.tasks.data_options import check_least


class ImageDataModule(pl.LightningDataModule):
    """An image set, prepared for AmoebaNet.

    The validation part is carved from the training split by a fixed seed; the test split is in neither.

    Args:
        root: folder of the packaged sets; None: ``data/packaged`` of the checkout.
        dataset: "fashion-mnist", "digits", "emoji" or "openclipart" (packaged); "imagenet", "cifar10", "cifar100",
            "stanford-cars", "oxford-pets", "food101", "fgvc-aircraft" or "birdsnap" (from ``folder``).
        folder: where a set that is not packaged lies, in torchvision's layout or as ``train/`` and ``test/`` with one
            folder per class.
        download: let torchvision download the set into ``folder`` where it can.
        batch_size: rows of a mini-batch, per replica; it must divide into the micro-batches.
        image_size: side of the inputs in pixels.
        channels: 1 (grey) or 3 (RGB; grey pictures are repeated); None: as the pictures are.
        fit: "pad" (black border), "resize" (to the square) or "crop" (a random part in training, the centre in
            evaluation); None: "pad" where the pictures are hardly smaller than ``image_size``, else "resize".
        validation: training rows to set aside; None: a tenth, at most 5,000.
        limit_train: only so many training rows.
        limit_test: only so many test rows.
        augment: mirror the training pictures, and shift them within the padding.
        flip: whether ``augment`` mirrors; None: where a mirrored picture shows the same class (not of digits).
        cutout: side in pixels of the square that is blanked in training pictures; 0: none.
        num_workers: loader processes of the rank that reads data.
        split_seed: of the choice of validation rows.
    """

    def __init__(
        self,
        root: str | None = None,
        dataset: str = "fashion-mnist",
        folder: str | None = None,
        download: bool = False,
        batch_size: int = 128,
        image_size: int = 32,
        channels: int | None = None,
        fit: Fit | None = None,
        validation: int | None = None,
        limit_train: int | None = None,
        limit_test: int | None = None,
        augment: bool = False,
        flip: bool | None = None,
        cutout: int = 0,
        num_workers: int = 0,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        check_least(1, batch_size=batch_size, limit_train=limit_train, limit_test=limit_test)
        check_least(0, num_workers=num_workers)
        check_name(dataset)
        self.root = root
        self.dataset = dataset
        self.folder = folder
        self.download = download
        self.batch_size = batch_size
        self.image_size = image_size
        self.channels = channels
        self.fit = fit
        self.rows = Rows(validation, limit_train, limit_test, split_seed)
        self.augment = augment
        self.flip = flip
        self.cutout = cutout
        self.num_workers = num_workers
        self._parts: ImageParts | None = None
        self._classes: int | None = None  # of a real set: known once it was looked at

    def check(self) -> None:
        """Raises what would stop the run later: before any process starts.

        Raises:
            DataError: the set has not been fetched, or is not where it is said to be.
        """
        if self.dataset in REAL_SETS:
            if not self.download:
                train, _ = (real_set(self.dataset, self.folder, split) for split in ("train", "test"))
                self._classes = len(train.classes)
            return
        base = packaged_root(self.root)
        if read_manifest(base, self.dataset) is None:
            raise missing_set(self.dataset, base)

    def check_model(self, model: pl.LightningModule) -> None:
        """Raises: UserError: the model expects other classes or channels than the data have."""
        classes, channels = self._classes, self.channels or 3
        if self.dataset in PACKAGED:
            known = PACKAGED[self.dataset]
            classes, channels = known.classes, self.channels or known.channels
        for name, ours, what in (("num_classes", classes, "classes"), ("in_channels", channels, "channels")):
            theirs = model.hparams.get(name, ours)
            if ours is not None and theirs != ours:
                other = " or another --data.channels" if name == "in_channels" else ""
                raise UserError(
                    f"{self.dataset} gives {ours} {what}, but the model has {name}={theirs}: give "
                    f"--model.{name}={ours}{other}"
                )

    @override
    def prepare_data(self) -> None:
        if self.download and self.dataset in REAL_SETS:  # on one process of the machine
            for split in ("train", "test"):
                real_set(self.dataset, self.folder, split, download=True)

    @override
    def setup(self, stage: str | None = None) -> None:
        if self._parts is None:
            preparation = default_preparation(
                self.dataset,
                self.image_size,
                self.channels,
                self.fit,
                self.augment,
                self.flip,
                self.cutout,
                root=self.root,
            )
            self._parts = image_parts(self.dataset, preparation, self.rows, root=self.root, folder=self.folder)
            for note in self._parts.notes:
                rank_zero_info(note)
            self._classes = self._parts.classes
        if self.trainer is not None:
            self.check_model(self.trainer.lightning_module)

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
        assert self._parts is not None, "setup() comes first"
        return DataLoader(
            self._parts.parts[part],
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )
