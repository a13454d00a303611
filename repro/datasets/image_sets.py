"""The data sets of the paper's Table 4, from a folder: through torchvision, or as folders of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from torch import Tensor
from torchvision import datasets
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from repro.datasets.paper import published
from repro.datasets.paths import DataError

Split = Literal["train", "test"]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's training pixels (torchvision). All sets take them: what is fine-tuned was trained with them."""

Rows = Any
"""A map-style data set of (uint8 picture (3, height, width), label), with ``classes``."""


@dataclass(frozen=True)
class RealSet:
    """One data set of Table 4.

    Attributes:
        title: its name in ``data/paper/table4.csv``.
        read: (folder, split, download) to rows; a torchvision class with its arguments.
        layout: what is expected in the folder.
        get: how to get it.
        downloads: whether torchvision can download it.
    """

    title: str
    read: Callable[[Path, Split, bool], Rows]
    layout: str
    get: str
    downloads: bool = False


def read_picture(path: str | Path) -> Tensor:
    """A picture file as uint8 (3, height, width).

    Raises:
        DataError: it does not decode; the message names the file.
    """
    try:
        with Image.open(path) as image:
            pixels: Tensor = functional.pil_to_tensor(image.convert("RGB"))
            return pixels
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} does not decode as a picture ({error}). Bring an intact copy of the file, or take it out of the "
            "data set."
        ) from error


class _Pets:
    """Torchvision's class, decoding like the others: it takes no ``loader``."""

    def __init__(self, inner: datasets.OxfordIIITPet) -> None:
        self.inner, self.classes = inner, inner.classes

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return read_picture(self.inner._images[index]), self.inner._labels[index]


def _cifar(kind: type[datasets.CIFAR10]) -> Callable[[Path, Split, bool], Rows]:
    return lambda folder, split, download: kind(
        folder, train=split == "train", download=download, transform=v2.PILToTensor()
    )


def _imagenet(folder: Path, split: Split, download: bool) -> Rows:
    return datasets.ImageNet(folder, "train" if split == "train" else "val", loader=read_picture)


def _no_torchvision(folder: Path, split: Split, download: bool) -> Rows:
    raise FileNotFoundError(f"no folder {folder / split}")


REAL_SETS: Mapping[str, RealSet] = {
    "imagenet": RealSet(
        "ImageNet-2012",
        _imagenet,
        "ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz (torchvision unpacks them; "
        "it needs scipy for the last one)",
        "register at image-net.org and download the three archives of ILSVRC 2012",
    ),
    "cifar10": RealSet(
        "CIFAR-10", _cifar(datasets.CIFAR10), "cifar-10-batches-py/", "give --data.download=true", downloads=True
    ),
    "cifar100": RealSet(
        "CIFAR-100", _cifar(datasets.CIFAR100), "cifar-100-python/", "give --data.download=true", downloads=True
    ),
    "stanford-cars": RealSet(
        "Stanford Cars",
        lambda folder, split, download: datasets.StanfordCars(folder, split, loader=read_picture),
        "stanford_cars/ with cars_train/, cars_test/, devkit/ and cars_test_annos_withlabels.mat (needs scipy)",
        "its site is gone; bring a copy by hand",
    ),
    "oxford-pets": RealSet(
        "Oxford Pets",
        lambda folder, split, download: _Pets(
            datasets.OxfordIIITPet(folder, "trainval" if split == "train" else "test", download=download)
        ),
        "oxford-iiit-pet/ with images/ and annotations/",
        "give --data.download=true",
        downloads=True,
    ),
    "food101": RealSet(
        "Food-101",
        lambda folder, split, download: datasets.Food101(folder, split, download=download, loader=read_picture),
        "food-101/ with images/ and meta/",
        "give --data.download=true (5 GB)",
        downloads=True,
    ),
    "fgvc-aircraft": RealSet(
        "FGVC Aircraft",
        lambda folder, split, download: datasets.FGVCAircraft(
            folder, "trainval" if split == "train" else "test", download=download, loader=read_picture
        ),
        "fgvc-aircraft-2013b/data/",
        "give --data.download=true (3 GB)",
        downloads=True,
    ),
    "birdsnap": RealSet(
        "Birdsnap",
        _no_torchvision,
        "train/ and test/ with one folder per species",
        "its pictures are links that its authors' script downloads; bring a copy by hand",
    ),
}


def real_set(name: str, folder: str | Path | None, split: Split, *, download: bool = False) -> Rows:
    """One split of a real data set.

    Whatever the set, a folder that holds ``train/`` and ``test/`` (or ``val/``) with one folder per class is read as
    it is; else the folder must have the layout of torchvision's class.

    Raises:
        DataError: no folder was given, or it does not hold the set; the message says what is expected and how to get
            it.
    """
    known = REAL_SETS[name]
    if folder is None:
        raise DataError(f"where does {name} lie? Give --data.folder=FOLDER.{_expected(known)}")
    folder = Path(folder).expanduser()
    if download and not known.downloads:
        raise DataError(f"{name} cannot be downloaded: {known.get}.{_expected(known)}")
    classes = class_folders(folder, split)
    try:
        if classes is not None:
            return datasets.ImageFolder(str(classes), loader=read_picture)
        if not folder.is_dir() and not download:
            raise FileNotFoundError(f"no folder {folder}")
        return known.read(folder, split, download)
    except (OSError, RuntimeError, ValueError, ImportError, KeyError) as error:
        raise DataError(f"{name} is not in {folder} ({error}).{_expected(known)}") from error


def class_folders(folder: Path, split: Split) -> Path | None:
    """The folder of folders of one split, where the set lies as ``train/`` and ``test/`` (or ``val/``)."""
    held_out = next((folder / name for name in ("test", "val") if _holds_folders(folder / name)), None)
    if held_out is None or not _holds_folders(folder / "train"):
        return None
    return folder / "train" if split == "train" else held_out


def size_notes(name: str, train: int, test: int, classes: int) -> list[str]:
    """How the data differ in size from what the paper's Table 4 prints, one sentence each."""
    title = REAL_SETS[name].title
    row = next(row for row in published("table4") if row["dataset"] == title)
    notes = []
    for what, found, printed in (
        ("training pictures", train, row["train_images"]),
        ("test pictures", test, row["test_images"]),
        ("classes", classes, row["classes"]),
    ):
        assert isinstance(printed, int)
        if found != printed:
            notes.append(
                f"{name} has {found:,} {what} here; the paper's Table 4 prints {printed:,} ({found - printed:+,})"
            )
    return notes


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir())


def _expected(known: RealSet) -> str:
    return f"\nExpected there: {known.layout}; or train/ and test/ with one folder per class. To get it: {known.get}."
