"""From picture files to arrays, and the split that keeps near duplicates together."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image, ImageDraw

from repro.datasets.images import read_idx
from repro.datasets.picture_recipes import RECIPES, base_code_points
from repro.datasets.pictures import (
    Pictures,
    digest,
    merged,
    near_duplicates,
    picture_on_white,
    split_by_group,
    statistics,
    tables,
)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def ellipse(box: tuple[int, int, int, int], color: tuple[int, int, int] = (200, 0, 0), size: int = 64) -> bytes:
    image = Image.new("RGBA", (size, size), (0, 0, 0, 0))
    ImageDraw.Draw(image).ellipse(box, fill=(*color, 255))
    return png(image)


def test_transparent_parts_are_white_and_the_picture_is_in_the_middle() -> None:
    found = picture_on_white(png(Image.new("RGBA", (40, 20), (10, 20, 30, 255))), 64)
    assert (found.shape, found.dtype) == ((3, 64, 64), torch.uint8)
    assert found[:, 32, 0].tolist() == [10, 20, 30], "its longer side fills the square"
    assert found[:, 15, 32].tolist() == [255] * 3 and found[:, 16, 32].tolist() == [10, 20, 30]
    assert picture_on_white(png(Image.new("RGBA", (9, 9), (0, 0, 0, 0))), 16).min() == 255
    assert picture_on_white(png(Image.new("L", (200, 100), 7)), 16).unique().tolist() == [7, 255]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot identify"),
        (png(Image.new("L", (50, 50)))[:-20], "truncated|broken|Truncated"),
        (png(Image.new("1", (5000, 4001))), "5000x4001 are too many pixels"),
    ],
)
def test_what_does_not_decode_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        picture_on_white(data, 16)


def test_near_duplicates_look_alike_whatever_their_color() -> None:
    files = [
        ellipse((8, 8, 40, 40)),
        ellipse((8, 8, 40, 40), (0, 150, 0)),  # another color
        ellipse((9, 8, 40, 41)),  # a pixel wider
        ellipse((30, 30, 60, 60)),  # elsewhere
        png(Image.new("RGB", (64, 64), (255, 255, 255))),  # blank pictures are alone
        png(Image.new("RGB", (64, 64), (255, 255, 255))),
    ]
    groups = near_duplicates(torch.stack([picture_on_white(data, 64) for data in files]))
    assert groups[0] == groups[1] == groups[2]
    assert len({groups[0], *groups[3:]}) == 4


def test_groups_are_joined_by_keys_too() -> None:
    groups = merged([0, 0, 2, 3, 4], ["a", "b", "b", "c", "d"])
    assert groups[0] == groups[1] == groups[2] and len(set(groups)) == 3


def test_a_group_is_on_one_side_and_every_class_has_its_share() -> None:
    labels = [number % 2 for number in range(400)]
    groups = [number // 4 * 4 if number < 80 else (80 if number < 180 else number) for number in range(400)]
    names = [f"picture {number}" for number in range(400)]
    held_out = split_by_group(names, labels, groups, 0.2)
    for group in set(groups):
        sides = {held_out[index] for index in range(400) if groups[index] == group}
        assert len(sides) == 1
    assert not any(held_out[80:180]), "a large family trains"
    for label in (0, 1):
        count = sum(held for held, its in zip(held_out, labels, strict=True) if its == label)
        assert 30 <= count <= 44
    assert split_by_group(names, labels, groups, 0.2) == held_out
    assert split_by_group([f"other {number}" for number in range(400)], labels, groups, 0.2) != held_out


def test_tables_are_read_back_and_their_digest_depends_on_every_pixel() -> None:
    images = {"train": torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8), "test": torch.zeros(2, 3, 8, 8)}
    images["test"] = images["test"].to(torch.uint8)
    labels = {"train": torch.tensor([0, 1, 2, 1, 0]), "test": torch.tensor([2, 2])}
    files = tables(Pictures(images, labels, ("a", "b", "c")))
    assert torch.equal(read_idx(files["train-images-idx"]), images["train"])
    assert read_idx(files["test-labels-idx"]).tolist() == [2, 2]
    assert files["classes.txt"] == b"a\nb\nc\n"
    before = digest(files)
    images["test"][1, 2, 7, 7] = 1
    assert digest(tables(Pictures(images, labels, ("a", "b", "c")))) != before


def test_statistics_are_of_scaled_pixels() -> None:
    assert statistics(torch.tensor([0, 255, 0, 255], dtype=torch.uint8)) == (0.5, 0.5)
    assert statistics(torch.tensor([51], dtype=torch.uint8)) == (0.2, 0.0)


@pytest.mark.parametrize(
    ("unified", "base"),
    [
        ("1F600", "1F600"),
        ("1F44B-1F3FD", "1F44B"),
        ("1F469-1F3FB-200D-1F692", "1F9D1-1F692"),
        ("1F468-200D-1F692", "1F9D1-1F692"),
        ("1F9D1-200D-1F692", "1F9D1-1F692"),
        ("1F3C3-200D-2640-FE0F", "1F3C3"),
        ("2640-FE0F", "2640-FE0F"),  # the sign itself
        ("0023-FE0F-20E3", "0023-20E3"),
    ],
)
def test_variants_of_an_emoji_have_one_base(unified: str, base: str) -> None:
    assert base_code_points(unified) == base


def test_digits_keep_their_order_and_scale() -> None:
    rows = "".join(",".join(["16.0"] + ["0.0"] * 63 + [f"{number % 10}.0"]) + "\n" for number in range(400))
    pictures = RECIPES["digits"].build({"sklearn/datasets/data/digits.csv.gz": rows.encode()})
    assert [len(pictures.labels[split]) for split in ("train", "test")] == [40, 360]
    assert pictures.images["test"].shape == (360, 1, 8, 8)
    assert pictures.images["train"][0, 0, 0].tolist() == [255] + [0] * 7
    assert pictures.labels["test"][:3].tolist() == [0, 1, 2]


def test_openclipart_takes_folders_of_a_hundred_and_counts_what_does_not_decode() -> None:
    def places(folder: str, count: int) -> dict[str, bytes]:
        boxes = [(x, y, x + 9, y + 9) for x in range(0, 50, 5) for y in range(0, 55, 5)]
        prefix = f"usr/share/openclipart/png/{folder}"
        return {f"{prefix}/{number}.png": ellipse(boxes[number]) for number in range(count)}

    members = {**places("animals", 105), **places("shapes", 100), **places("unsorted", 101), **places("few", 99)}
    members["usr/share/openclipart/png/animals/104.png"] = b"odd"
    members["usr/share/doc/openclipart-png/copyright"] = b"public domain"
    pictures = RECIPES["openclipart"].build(members)
    assert pictures.classes == ("animals", "shapes") and pictures.skipped == 1
    assert sum(len(labels) for labels in pictures.labels.values()) == 204
    assert pictures.groups >= 100, "the same place in both folders"
