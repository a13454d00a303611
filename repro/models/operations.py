"""The operations of an AmoebaNet cell; none of them writes to its input, which other edges and cells read too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from .genotypes import Operation

NORM_EPS = 1e-3  # the authors' public TPU code, for BatchNorm
MOST_GROUPS = 32  # Wu and He 2018, their default
LEAST_GROUP = 4  # channels; not published, chosen because the small models have layers of 4

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of so many channels."""


class FactorizedReduction(nn.Module):
    """Halves the image's side without dropping three pixels in four: two strided 1x1, one shifted by one pixel."""

    def __init__(self, in_channels: int, channels: int, *, norm: Norm) -> None:
        super().__init__()
        self.even = nn.Conv2d(in_channels, channels // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(in_channels, channels - channels // 2, 1, stride=2, bias=False)
        self.norm = norm(channels)

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_channels, height, width) to (B, channels, ceil(height / 2), ceil(width / 2))."""
        images = F.relu(images)
        # Padded at the far side, so that both halves have ceil(side / 2) positions also where the side is odd.
        shifted = F.pad(images, (0, 1, 0, 1))[:, :, 1:, 1:]
        normed: Tensor = self.norm(torch.cat([self.even(images), self.odd(shifted)], dim=1))
        return normed


class DropPath(nn.Dropout):
    """Drops what an operation made of an image, for whole images, and scales what it keeps by 1 / (1 - p).

    As an ``nn.Dropout`` it draws from the default generator and does nothing in evaluation. ``p`` is 0 until somebody
    follows the training (``amoebanet.set_drop_path``).

    Args:
        final: ``p`` at the end of training.
    """

    def __init__(self, final: float) -> None:
        super().__init__(p=0.0)
        self.final = final

    @override
    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, height, width) to the same."""
        if not self.training or self.p == 0:
            return images
        return images * F.dropout(images.new_ones(images.shape[0], 1, 1, 1), self.p)

    @override
    def extra_repr(self) -> str:
        return f"p={self.p}, final={self.final}"


def batch_norm(channels: int, *, momentum: float) -> nn.BatchNorm2d:
    """BatchNorm with the epsilon that all of AmoebaNet uses."""
    return nn.BatchNorm2d(channels, eps=NORM_EPS, momentum=momentum)


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with as many groups as divide the channels, at most 32, with at least 4 channels each.

    A number of channels without such a divisor, such as the 307 of the auxiliary head, is one group.
    """
    most = min(MOST_GROUPS, channels // LEAST_GROUP)
    groups = next((groups for groups in range(most, 0, -1) if channels % groups == 0), 1)
    return nn.GroupNorm(groups, channels, eps=NORM_EPS)


def relu_convolution(
    in_channels: int,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
    dilation: int = 1,
    separable: bool = False,
    inplace: bool = False,
    norm: Norm,
) -> list[nn.Module]:
    """ReLU, convolution (depthwise, then 1x1, if separable), BatchNorm; `inplace` only where no one else reads."""
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (dilation * (kernel[0] - 1) // 2, dilation * (kernel[1] - 1) // 2)
    spatial = nn.Conv2d(
        in_channels,
        in_channels if separable else channels,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=in_channels if separable else 1,
        bias=False,
    )
    pointwise = [nn.Conv2d(in_channels, channels, 1, bias=False)] if separable else []
    return [nn.ReLU(inplace=inplace), spatial, *pointwise, norm(channels)]


def _bottleneck(
    in_channels: int, channels: int, kernels: tuple[tuple[int, int], ...], stride: int, norm: Norm
) -> nn.Sequential:
    """1x1 to a quarter of the channels, the spatial convolutions at that width, 1x1 back.

    A kernel of one row strides over columns only, and the other way round.
    """
    narrow = max(channels // 4, 1)
    layers = relu_convolution(in_channels, narrow, 1, norm=norm)
    for height, width in kernels:
        strides = (stride if height > 1 else 1, stride if width > 1 else 1)
        layers += relu_convolution(narrow, narrow, (height, width), stride=strides, inplace=True, norm=norm)
    layers += relu_convolution(narrow, channels, 1, inplace=True, norm=norm)
    return nn.Sequential(*layers)


def _separable(in_channels: int, channels: int, kernel: int, stride: int, dilation: int, norm: Norm) -> nn.Sequential:
    """Two separable convolutions; the first one has the stride."""
    convolution = partial(relu_convolution, kernel=kernel, dilation=dilation, separable=True, norm=norm)
    return nn.Sequential(
        *convolution(in_channels, channels, stride=stride), *convolution(channels, channels, inplace=True)
    )


def operation(name: Operation, in_channels: int, channels: int, *, stride: int, norm: Norm) -> nn.Module:
    """The operation of one edge. It never writes to its input: other edges and the next cell read it too."""
    match name:
        case "none" if stride == 1 and in_channels == channels:
            return nn.Identity()
        case "none" | "conv_1x1":
            return nn.Sequential(*relu_convolution(in_channels, channels, 1, stride=stride, norm=norm))
        case "conv_3x3":
            return _bottleneck(in_channels, channels, ((3, 3),), stride, norm)
        case "conv_1x7_7x1":
            return _bottleneck(in_channels, channels, ((1, 7), (7, 1)), stride, norm)
        case "separable_3x3" | "separable_5x5" | "separable_7x7":
            return _separable(in_channels, channels, int(name[-1]), stride, 1, norm)
        case "dilated_separable_5x5":
            return _separable(in_channels, channels, 5, stride, 2, norm)
    pool: nn.Module
    match name:
        case "avg_pool_3x3":
            pool = nn.AvgPool2d(3, stride=stride, padding=1, count_include_pad=False)
        case "max_pool_3x3":
            pool = nn.MaxPool2d(3, stride=stride, padding=1)
        case "max_pool_2x2" if stride == 2:
            pool = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        case _:
            raise ValueError(f"operation {name!r} with stride {stride} is not defined")
    if in_channels == channels:
        return pool
    return nn.Sequential(pool, nn.Conv2d(in_channels, channels, 1, bias=False), norm(channels))
