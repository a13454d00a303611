"""From pixels to inputs: channels, size, random flips and shifts, cutout, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from repro.datasets.paths import DataError

Fit = Literal["pad", "resize", "crop"]

_CENTRE = 0.875
"""Share of the shorter side that the central crop of a test picture keeps (the Inception networks' evaluation)."""


@dataclass(frozen=True)
class Preparation:
    """How pictures become inputs.

    Attributes:
        size: side of the inputs in pixels.
        channels: 1 (grey), 3 (RGB; grey pictures are repeated), or None: as the pictures are.
        fit: "pad" puts smaller pictures into a black square; "resize" stretches to the square (the paper's fine-tuning,
            section 4); "crop" cuts: a random part in training, the centre of the test pictures (the Inception
            networks' way for ImageNet).
        augment: shift training pictures within the padding of "pad", and mirror them where ``flip`` says so.
        flip: whether a mirrored picture still shows its class.
        cutout: side in pixels of a square that is blanked in training pictures at random; 0: none.
        mean: of the training pixels scaled to 0..1, per channel or one for all.
        std: their standard deviation, likewise.
    """

    size: int
    channels: int | None = None
    fit: Fit = "resize"
    augment: bool = False
    flip: bool = True
    cutout: int = 0
    mean: Sequence[float] = (0.5,)
    std: Sequence[float] = (0.5,)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"image_size={self.size} must be at least 1")
        if self.channels not in (None, 1, 3):
            raise DataError(f"channels={self.channels} must be 1 (grey) or 3 (RGB), or null for the pictures' own")
        if self.fit not in get_args(Fit):
            raise DataError(f"fit={self.fit!r} is unknown; choose {', '.join(get_args(Fit))}")
        if not 0 <= self.cutout <= 2 * self.size:
            raise DataError(f"cutout={self.cutout} must be between 0 (none) and twice image_size={self.size}")

    def fixed(self, *, training: bool) -> nn.Module:
        """What can be done once, on a batch of uint8 pictures as well: channels, and the size unless it is random."""
        steps: list[nn.Module] = []
        if self.channels == 1:
            steps.append(v2.Grayscale(1))
        elif self.channels == 3:
            steps.append(v2.RGB())
        if self.fit == "resize":
            steps.append(v2.Resize((self.size, self.size), antialias=True))
        elif self.fit == "pad" and not (training and self.augment):
            steps.append(v2.CenterCrop(self.size))  # pads what is smaller
        elif self.fit == "crop" and not training:
            steps += [v2.Resize(round(self.size / _CENTRE), antialias=True), v2.CenterCrop(self.size)]
        return nn.Sequential(*steps)

    def each_time(self, *, training: bool) -> nn.Module:
        """What is done whenever a picture is read: random choices, scaling to 0..1, normalisation, cutout."""
        steps: list[nn.Module] = []
        if training and self.fit == "crop":
            steps.append(v2.RandomResizedCrop(self.size, antialias=True))
        if training and self.augment:
            if self.fit == "pad":
                steps.append(v2.RandomCrop(self.size, pad_if_needed=True))  # all places within the padding
            if self.flip:
                steps.append(v2.RandomHorizontalFlip())
        steps.append(Normalise(self.mean, self.std))
        if training and self.cutout:
            steps.append(Cutout(self.cutout))
        return nn.Sequential(*steps)


class Normalise(nn.Module):
    """uint8 pixels to float32: scaled to 0..1, less the mean, over the standard deviation."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = list(mean), list(std)

    def forward(self, image: Tensor) -> Tensor:
        """``image``: uint8 (channels, height, width)."""
        # The kernel of v2.Normalize: the class around it takes every picture for a tree of inputs, and twice the time.
        normalised: Tensor = functional.normalize_image(image.to(torch.float32) / 255, self.mean, self.std)
        return normalised


class Cutout(nn.Module):
    """Blanks one square of a normalised picture (DeVries and Taylor 2017): its centre is any pixel, so that it may
    reach over the border; what is blanked becomes 0, the mean of the data.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, image: Tensor) -> Tensor:
        """``image``: float (channels, height, width), changed in place. Draws from torch's global generator."""
        top, left = (int(torch.randint(length, ())) - self.side // 2 for length in image.shape[-2:])
        image[..., max(0, top) : max(0, top + self.side), max(0, left) : max(0, left + self.side)] = 0.0
        return image
