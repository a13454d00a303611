"""From picture files to arrays: decoding onto white, groups of near duplicates, a split that keeps groups together."""

from __future__ import annotations

import gzip
import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from repro.datasets.sources import content_digest

NEAR = 0.95
"""Correlation of two pictures, small and grey, from which on they count as near duplicates (``near_duplicates``)."""

_LARGEST = 20_000_000  # pixels; decoding takes four bytes for each, and the largest have 169 million
_SIDE = 16
_ROWS = 1024


@dataclass(frozen=True)
class Pictures:
    """A labelled image set, split.

    Attributes:
        images: uint8 (N, channels, height, width), by split ("train", "test").
        labels: int64 (N,), by split; indices into ``classes``.
        classes: names.
        skipped: pictures of the archive that do not decode or are too large to.
        groups: groups of near duplicates with more than one picture, each on one side of the split.
    """

    images: dict[str, Tensor]
    labels: dict[str, Tensor]
    classes: tuple[str, ...]
    skipped: int = 0
    groups: int = 0


def picture_on_white(data: bytes, size: int) -> Tensor:
    """A picture file as uint8 (3, size, size): transparent parts white, its longer side ``size``, in the middle.

    Raises:
        ValueError: the file does not decode, or is too large to; the message says how.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own bound is far below
            file = Image.open(io.BytesIO(data))
        if file.width * file.height > _LARGEST:
            raise ValueError(f"{file.width}x{file.height} are too many pixels")
        image = file.convert("RGBA")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    longer = max(image.size)
    if longer != size:
        width, height = (max(1, round(size * side / longer)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX if longer > size else Image.Resampling.BICUBIC)
    canvas = Image.new("RGBA", (size, size), (255, 255, 255, 255))
    canvas.alpha_composite(image, ((size - image.width) // 2, (size - image.height) // 2))
    pixels = torch.frombuffer(bytearray(canvas.convert("RGB").tobytes()), dtype=torch.uint8)
    return pixels.reshape(size, size, 3).permute(2, 0, 1).contiguous()


def near_duplicates(images: Tensor) -> list[int]:
    """A group number for every picture; pictures of one group look nearly alike, whatever their colours.

    Two pictures are near duplicates if their grey versions, 16x16, correlate with at least ``NEAR``; groups are the
    connected components.

    Args:
        images: uint8 (N, channels, height, width); height and width are multiples of 16.
    """
    # Whole numbers below 2**53: sums are exact, and the groups the same on every machine.
    count, channels, height, width = images.shape
    cell = (height // _SIDE, width // _SIDE)
    blocks = images.to(torch.int64).reshape(count, channels, _SIDE, cell[0], _SIDE, cell[1])
    grey = (blocks.sum(dim=(1, 3, 5)) // (channels * cell[0] * cell[1])).flatten(1)
    centred = (_SIDE**2 * grey - grey.sum(dim=1, keepdim=True)).to(torch.float64)
    squares = (centred * centred).sum(dim=1)
    parents = list(range(count))
    for start in range(0, count, _ROWS):
        products = centred[start : start + _ROWS] @ centred.T
        bound = NEAR * NEAR * squares[start : start + _ROWS, None] * squares[None, :]
        near = (products > 0) & (products * products >= bound)
        for row, column in near.nonzero().tolist():
            if row + start < column:
                join(parents, row + start, column)
    return [root(parents, index) for index in range(len(images))]


def root(parents: list[int], index: int) -> int:
    """The representative of ``index`` in a union-find forest; shortens the way there."""
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def join(parents: list[int], first: int, second: int) -> None:
    """Make the groups of two elements of a union-find forest one."""
    low, high = sorted((root(parents, first), root(parents, second)))
    parents[high] = low


def merged(groups: Sequence[int], keys: Sequence[Hashable]) -> list[int]:
    """Groups in which elements with the same key are together as well."""
    parents = list(range(len(groups)))
    for labelling in (groups, keys):
        first: dict[Hashable, int] = {}
        for index, key in enumerate(labelling):
            join(parents, first.setdefault(key, index), index)
    return [root(parents, index) for index in range(len(groups))]


def split_by_group(names: Sequence[str], labels: Sequence[int], groups: Sequence[int], share: float) -> list[bool]:
    """Which pictures are held out: about ``share`` of every class, a group always on one side.

    Groups are taken in the order of a hash of their first name, so that the split depends on nothing else; groups
    with more than a tenth of their class's share stay in training.
    """
    sizes, wanted = Counter(groups), {label: share * count for label, count in Counter(labels).items()}
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    order = sorted(members, key=lambda group: hashlib.sha256(names[members[group][0]].encode()).hexdigest())
    held_out, taken = [False] * len(names), Counter[int]()
    for group in order:
        label = labels[members[group][0]]
        if sizes[group] <= max(1, wanted[label] / 10) and taken[label] + sizes[group] <= wanted[label]:
            taken[label] += sizes[group]
            for index in members[group]:
                held_out[index] = True
    return held_out


def tables(pictures: Pictures) -> dict[str, bytes]:
    """The files of a built set, uncompressed: pictures and labels as IDX, names of the classes one a line."""
    files = {"classes.txt": "".join(f"{name}\n" for name in pictures.classes).encode()}
    for split, images in pictures.images.items():
        files[f"{split}-images-idx"] = to_idx(images)
        files[f"{split}-labels-idx"] = to_idx(pictures.labels[split].to(torch.uint8))
    return files


def digest(files: dict[str, bytes]) -> str:
    """One SHA-256 over the uncompressed files."""
    return content_digest(files)


def write_pictures(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a built set, the arrays compressed; the same arrays give the same bytes (no time stamp)."""
    for name, data in files.items():
        if name.endswith("-idx"):
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, compresslevel=6, mtime=0))
        else:
            (folder / name).write_bytes(data)


def statistics(images: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of all pixels, scaled to 0..1, to four digits."""
    counts = torch.bincount(images.flatten(), minlength=256).to(torch.float64)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = float((counts * values).sum() / counts.sum())
    variance = float((counts * (values - mean) ** 2).sum() / counts.sum())
    return round(mean, 4), round(variance**0.5, 4)


def to_idx(values: Tensor) -> bytes:
    """A uint8 tensor as an IDX file (the format of MNIST); ``images.read_idx`` reads it."""
    header = bytes([0, 0, 8, values.dim()]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.contiguous().numpy().tobytes()
