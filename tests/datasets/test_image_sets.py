"""The data sets of Table 4, in the layouts of torchvision, with a few pictures each."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from repro.datasets import image_sets
from repro.datasets.image_parts import Rows, default_preparation, image_parts
from repro.datasets.image_sets import REAL_SETS, read_picture, real_set, size_notes
from repro.datasets.paths import DataError


def save(path: Path, value: int, size: tuple[int, int] = (12, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * len(mode)).save(path)


def class_folders(root: Path, held_out: str = "test") -> None:
    for split, count in (("train", 3), (held_out, 2)):
        for kind in ("ant", "bee"):
            for number in range(count):
                save(root / split / kind / f"{number}.png", 10 * number)


def cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, count in [(f"data_batch_{number}", 2) for number in range(1, 6)] + [("test_batch", 3)]:
        batch = {"data": np.full((count, 3072), 7, dtype=np.uint8), "labels": list(range(count))}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {number}" for number in range(10)]}))


def pets(root: Path) -> None:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for split, count in (("trainval", 4), ("test", 2)):
        names = [f"{('Abc', 'Def')[number % 2]}_{split}{number}" for number in range(count)]
        rows = [f"{name} {number % 2 + 1} 1 {number}" for number, name in enumerate(names)]
        (base / "annotations" / f"{split}.txt").write_text("\n".join(rows))
        for name in names:
            save(base / "images" / f"{name}.jpg", 90)


def food(root: Path) -> None:
    base = root / "food-101"
    (base / "meta").mkdir(parents=True)
    for split, count in (("train", 3), ("test", 2)):
        names = {kind: [f"{kind}/{split}{number}" for number in range(count)] for kind in ("pie", "soup")}
        (base / "meta" / f"{split}.json").write_text(json.dumps(names))
        for name in names["pie"] + names["soup"]:
            save(base / "images" / f"{name}.jpg", 120)


def aircraft(root: Path) -> None:
    base = root / "fgvc-aircraft-2013b/data"
    (base / "images").mkdir(parents=True)
    (base / "variants.txt").write_text("A1\nB2\n")
    for split, count in (("trainval", 4), ("test", 2)):
        rows = [f"{split}{number} {('A1', 'B2')[number % 2]}" for number in range(count)]
        (base / f"images_variant_{split}.txt").write_text("\n".join(rows))
        for row in rows:
            save(base / "images" / f"{row.split()[0]}.jpg", 60)


@pytest.mark.parametrize(
    ("name", "build", "sizes"),
    [
        ("cifar10", cifar10, (10, 3, 10)),
        ("oxford-pets", pets, (4, 2, 2)),
        ("food101", food, (6, 4, 2)),
        ("fgvc-aircraft", aircraft, (4, 2, 2)),
        ("birdsnap", class_folders, (6, 4, 2)),
        ("stanford-cars", class_folders, (6, 4, 2)),
        ("imagenet", lambda root: class_folders(root, "val"), (6, 4, 2)),
    ],
)
def test_layouts(
    tmp_path: Path,
    name: str,
    build: Callable[[Path], None],
    sizes: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)  # of the real files
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    build(tmp_path)
    train, test = (real_set(name, tmp_path, split) for split in ("train", "test"))
    assert (len(train), len(test), len(train.classes)) == sizes
    image, label = train[len(train) - 1]
    assert image.dtype == torch.uint8 and image.shape[0] == 3 and int(label) in range(sizes[2])

    found = image_parts(name, default_preparation(name, 16, augment=True, cutout=4), Rows(1), folder=tmp_path)
    assert [len(found.parts[part]) for part in ("train", "val", "test")] == [sizes[0] - 1, 1, sizes[1]]
    assert {found.parts[part][0][0].shape for part in found.parts} == {torch.Size((3, 16, 16))}
    assert (found.classes, found.channels, len(found.notes)) == (sizes[2], 3, 2 if name == "cifar10" else 3)
    grey = image_parts(name, default_preparation(name, 8, channels=1), Rows(0), folder=tmp_path)
    assert grey.parts["test"][0][0].shape == (1, 8, 8)


@pytest.mark.parametrize("name", sorted(REAL_SETS))
def test_a_missing_set_says_what_is_expected_and_how_to_get_it(tmp_path: Path, name: str) -> None:
    for folder in (None, tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError) as caught:
            real_set(name, folder, "train")
        text = str(caught.value)
        assert name in text and "Expected there: " in text and REAL_SETS[name].get in text
        assert ("--data.folder=FOLDER" if folder is None else str(folder)) in text


@pytest.mark.parametrize("name", [name for name, known in REAL_SETS.items() if not known.downloads])
def test_what_cannot_be_downloaded_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name} cannot be downloaded"):
        real_set(name, tmp_path, "train", download=True)


@pytest.mark.parametrize("content", [b"", b"no picture", None])
def test_a_picture_that_does_not_decode_is_named(tmp_path: Path, content: bytes | None) -> None:
    class_folders(tmp_path)
    path = tmp_path / "train/bee/1.png"
    path.write_bytes(path.read_bytes()[:-30] if content is None else content)
    rows = real_set("birdsnap", tmp_path, "train")
    with pytest.raises(DataError, match=r"train/bee/1\.png does not decode as a picture"):
        [rows[index] for index in range(len(rows))]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    Image.new("RGB", (5, 4), (9, 9, 9)).convert(mode).save(tmp_path / "x.png")
    assert read_picture(tmp_path / "x.png").shape == (3, 4, 5)


def test_different_classes_in_training_and_test_are_an_error(tmp_path: Path) -> None:
    class_folders(tmp_path)
    save(tmp_path / "test/wasp/0.png", 1)
    with pytest.raises(DataError, match=r"birdsnap: .* different classes \(2 and 3\).*wasp"):
        image_parts("birdsnap", rows=Rows(0), folder=tmp_path)


def test_differences_from_the_published_sizes_are_said() -> None:
    assert size_notes("cifar10", 50000, 10000, 10) == []
    (note,) = size_notes("oxford-pets", 3680, 3669, 37)
    assert note == "oxford-pets has 3,669 test pictures here; the paper's Table 4 prints 3,369 (+300)"


def test_every_set_of_table_4_has_a_reader() -> None:
    assert [known.title for known in REAL_SETS.values()] == [row["dataset"] for row in image_sets.published("table4")]
