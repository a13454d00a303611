"""How the packaged transfer sets are made from what their packages hold: digits, emoji, OpenClipart."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import torch

from repro.datasets.pictures import Pictures, merged, near_duplicates, picture_on_white, split_by_group

SIDE = 64
"""Pixels of a side of the coloured sets: what the emoji have."""

TEST_SHARE = 0.2
"""Of every class: the coloured sets have no published split."""

_DIGITS, _DIGITS_TEST = "sklearn/datasets/data/digits.csv.gz", 360
_DIGITS_LARGEST = 16
_EMOJI = "emoji.json"
_EMOJI_FOLDER = "img/google/64/"
_EMOJI_WITHOUT_PICTURES_OF_ITS_OWN = "Component"  # five swatches of skin tones
_CLIPART_FOLDER = "usr/share/openclipart/png/"
_CLIPART_SMALLEST_CLASS = 100
_CLIPART_NO_CLASS = "unsorted"

# Code points that make variants of one picture: skin tones, signs of gender, joiner, presentation; man and woman
# stand for person.
_VARIANTS = {"200D", "FE0F", "2640", "2642", *(f"1F3F{tone}" for tone in "BCDEF")}
_PERSONS = {"1F468": "1F9D1", "1F469": "1F9D1", "1F466": "1F9D2", "1F467": "1F9D2", "1F474": "1F9D3", "1F475": "1F9D3"}


@dataclass(frozen=True)
class Recipe:
    """How one set is made.

    Attributes:
        wanted: whether a member of the package is read, by its name.
        licence: whether a member is kept as a licence beside the set.
        build: members to pictures.
    """

    wanted: Callable[[str], bool]
    licence: Callable[[str], bool]
    build: Callable[[Mapping[str, bytes]], Pictures]


def build_digits(members: Mapping[str, bytes]) -> Pictures:
    """Handwritten digits, 8x8, grey, values 0 to 16 scaled to 0 to 255.

    The last 360 rows are the test split, unshuffled: neighbouring rows may be by one hand.
    """
    rows = [[int(float(value)) for value in row] for row in csv.reader(io.StringIO(members[_DIGITS].decode()))]
    values = torch.tensor(rows)
    images = (values[:, :-1] * 255 // _DIGITS_LARGEST).to(torch.uint8).reshape(-1, 1, 8, 8)
    labels = values[:, -1]
    parts = {"train": slice(None, -_DIGITS_TEST), "test": slice(-_DIGITS_TEST, None)}
    return Pictures(
        {split: images[rows] for split, rows in parts.items()},
        {split: labels[rows] for split, rows in parts.items()},
        tuple(str(digit) for digit in range(10)),
    )


def build_emoji(members: Mapping[str, bytes]) -> Pictures:
    """Google's emoji on white; the class is Unicode's category.

    Pictures that differ in skin tone only are left out. Variants of one base code point (man, woman, person) and
    pictures that look nearly alike are on one side of the split.
    """
    entries = sorted(
        (
            (entry["image"], entry["category"], base_code_points(entry["unified"]))
            for entry in json.loads(members[_EMOJI])
            if entry["has_img_google"] and entry["category"] != _EMOJI_WITHOUT_PICTURES_OF_ITS_OWN
        ),
        key=lambda entry: str(entry[0]),
    )
    files = {name: members[f"{_EMOJI_FOLDER}{name}"] for name, _, _ in entries}
    return _coloured(files, {name: kind for name, kind, _ in entries}, {name: base for name, _, base in entries})


def base_code_points(unified: str) -> str:
    """The code points of an emoji without those that only make variants of the same picture.

    ``"1F469-1F3FB-200D-1F692"`` (woman, light skin, fire engine) is ``"1F9D1-1F692"`` (person, fire engine).
    """
    points = [_PERSONS.get(point, point) for point in unified.split("-") if point not in _VARIANTS]
    return "-".join(points) or unified


def build_openclipart(members: Mapping[str, bytes]) -> Pictures:
    """Clip art on white; the class is the top folder, where it has 100 pictures or more (``unsorted`` is no class).

    Pictures that look nearly alike are on one side of the split.
    """
    kinds = {
        name: PurePosixPath(name.removeprefix(_CLIPART_FOLDER)).parts[0]
        for name in sorted(members)
        if _is_clipart(name)
    }
    counts = Counter(kinds.values())
    chosen = {
        name: kind
        for name, kind in kinds.items()
        if counts[kind] >= _CLIPART_SMALLEST_CLASS and kind != _CLIPART_NO_CLASS
    }
    return _coloured({name: members[name] for name in chosen}, chosen, {})


def _coloured(files: Mapping[str, bytes], kinds: Mapping[str, str], keys: Mapping[str, str]) -> Pictures:
    images, names = [], []
    for name, data in files.items():
        try:
            images.append(picture_on_white(data, SIDE))
        except ValueError:
            continue
        names.append(name)
    classes = tuple(sorted({kinds[name] for name in names}))
    labels = [classes.index(kinds[name]) for name in names]
    stacked = torch.stack(images)
    groups = merged(near_duplicates(stacked), [keys.get(name, name) for name in names])
    held_out = torch.tensor(split_by_group(names, labels, groups, TEST_SHARE))
    targets = torch.tensor(labels)
    return Pictures(
        {"train": stacked[~held_out], "test": stacked[held_out]},
        {"train": targets[~held_out], "test": targets[held_out]},
        classes,
        skipped=len(files) - len(names),
        groups=sum(count > 1 for count in Counter(groups).values()),
    )


def _is_clipart(name: str) -> bool:
    return name.startswith(_CLIPART_FOLDER) and name.endswith(".png")


RECIPES: Mapping[str, Recipe] = {
    "digits": Recipe(
        lambda name: name in (_DIGITS, "sklearn/datasets/descr/digits.rst") or name.endswith("licenses/COPYING"),
        lambda name: name.endswith(("COPYING", ".rst")),
        build_digits,
    ),
    "emoji": Recipe(
        lambda name: name in (_EMOJI, "LICENSE", "README.md") or name.startswith(_EMOJI_FOLDER),
        lambda name: name in ("LICENSE", "README.md"),  # the latter says under which licence whose pictures are
        build_emoji,
    ),
    "openclipart": Recipe(
        lambda name: _is_clipart(name) or name.endswith("openclipart-png/copyright"),
        lambda name: name.endswith("copyright"),
        build_openclipart,
    ),
}
