"""AmoebaNet-A, -B and -D as a sequence of layers.

The network of (L, D): a stem, three stacks of L/3 normal cells with D, 2D and 4D filters, a reduction cell between
stacks, and a classifier; L counts the normal cells only, as Table 1 of the GPipe paper does. Every cell reads the
outputs of the two layers before it, so what crosses a boundary is the pair (output, previous output).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from .genotypes import AMOEBANET_A, AMOEBANET_B, AMOEBANET_D, CellGenotype, Genotype
from .operations import DropPath, FactorizedReduction, Norm, batch_norm, group_norm, operation, relu_convolution

Variant = Literal["A", "B", "D"]
Stem = Literal["imagenet", "small"]
NormName = Literal["batch", "group"]
Boundary = tuple[Tensor | None, ...]

IMAGENET_STEM_CHANNELS = 32  # the same; together with stem cells of D/4 and D/2 filters it gives the published counts
AUX_CHANNELS = (51, 307)  # 128 and 768, scaled by the public code's aux_scaling of 0.4
AUX_GRID = 4  # 5x5 average pooling with stride 3 leaves 4x4 of the 14x14 that the head sees at 224 pixels


def amoebanet(
    variant: Variant,
    *,
    num_layers: int,
    num_filters: int,
    num_classes: int = 1000,
    aux_head: bool = False,
    in_channels: int = 3,
    stem: Stem = "imagenet",
    stem_stride: int | None = None,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    norm: NormName = "batch",
    bn_momentum: float = 0.1,
) -> list[Callable[[], nn.Module]]:
    """AmoebaNet as zero-argument factories, one for each layer.

    `nn.Sequential(*(make() for make in factories))` is the whole model: images (B, in_channels, height, width) in,
    logits (B, num_classes) out. Between layers goes `(output, previous output)`; after the first layer the previous
    output is None. With `aux_head` there is one layer more, behind the second stack; its logits travel to the end, and
    the model returns `(logits, auxiliary logits)`. The auxiliary head normalises a single position per image, so with
    BatchNorm it trains with at least two images in each micro-batch.

    Args:
        variant: the genotype, "A", "B" or "D".
        num_layers: L, the number of normal cells, a multiple of 3. The sequence has L + 6 layers with the ImageNet
            stem and L + 4 with the small one.
        num_filters: D, the filters of a normal cell of the first stack; at least 4.
        num_classes: outputs of the classifier.
        aux_head: whether to add the auxiliary classifier.
        in_channels: channels of the images.
        stem: "imagenet": a strided convolution and two reduction cells, which divide the image's side by 8;
            "small": one 3x3 convolution that keeps it, for images of about 32x32 (CIFAR, Fashion-MNIST).
        stem_stride: stride of the stem's convolution, unless given 2 for "imagenet" and 1 for "small", where 2 makes
            every cell four times cheaper.
        dropout: probability of dropping a feature before the classifier (0.5 in Real et al. 2018).
        drop_path: scheduled drop-path (Zoph et al. 2018; 0.3 in Real et al. 2018, who keep 0.7): the probability with
            which an operation's output is dropped, for an image, in the last cell at the end of training. It grows
            linearly from cell to cell, and with the progress that `set_drop_path` is told. The operation "none" is
            never dropped, as in the public code.
        norm: "batch", or "group" for GroupNorm (see `operations.group_norm`) throughout: as many parameters, no running
            statistics, and an image's output does not depend on the others of its batch.
        bn_momentum: weight of the new batch in the running statistics, PyTorch's sense and default. The public code's
            decay of 0.9997 is 0.0003 here.

    Raises:
        UserError: for an unknown variant or stem and for sizes out of range.
    """
    genotypes: dict[str, Genotype] = {"A": AMOEBANET_A, "B": AMOEBANET_B, "D": AMOEBANET_D}
    if variant not in genotypes:
        raise UserError(f"unknown AmoebaNet variant {variant!r}; choose one of {', '.join(genotypes)}")
    if stem not in get_args(Stem):
        raise UserError(f"unknown stem {stem!r}; choose one of {', '.join(get_args(Stem))}")
    if num_layers < 3 or num_layers % 3:
        raise UserError(
            f"num_layers={num_layers}: AmoebaNet has three stacks of num_layers / 3 normal cells, "
            "so num_layers must be a positive multiple of 3"
        )
    if num_filters < 4:
        raise UserError(f"num_filters={num_filters} must be at least 4: the first stem cell has a quarter of them")
    for name, value in (("num_classes", num_classes), ("in_channels", in_channels), ("stem_stride", stem_stride)):
        if value is not None and value < 1:
            raise UserError(f"{name}={value} must be at least 1")
    for name, share in (("dropout", dropout), ("drop_path", drop_path)):
        if not 0.0 <= share < 1.0:
            raise UserError(f"{name}={share} must be at least 0 and less than 1")
    if norm not in get_args(NormName):
        raise UserError(f"unknown norm {norm!r}; choose one of {', '.join(get_args(NormName))}")

    genotype = genotypes[variant]
    make_norm: Norm = group_norm if norm == "group" else partial(batch_norm, momentum=bn_momentum)
    num_cells = num_layers + (4 if stem == "imagenet" else 2)
    num_made = 0
    factories: list[Callable[[], nn.Module]] = []
    # Walking down the network: the channels of the two tensors in the boundary, and whether they differ in size.
    previous_channels: int | None = None
    channels = IMAGENET_STEM_CHANNELS if stem == "imagenet" else num_filters
    after_reduction = False

    def add_cell(width: int, *, reduction: bool) -> None:
        nonlocal previous_channels, channels, after_reduction, num_made
        num_made += 1
        cell = genotype.reduction if reduction else genotype.normal
        factories.append(
            partial(
                Cell,
                cell,
                in_channels=channels,
                previous_channels=previous_channels,
                channels=width,
                stride=2 if reduction else 1,
                reduce_previous=after_reduction,
                drop_path=drop_path * num_made / num_cells,
                norm=make_norm,
            )
        )
        previous_channels, channels, after_reduction = channels, len(cell.concat) * width, reduction

    if stem_stride is None:
        stem_stride = 2 if stem == "imagenet" else 1
    factories.append(partial(StemConvolution, in_channels, channels, stride=stem_stride, norm=make_norm))
    if stem == "imagenet":
        add_cell(num_filters // 4, reduction=True)
        add_cell(num_filters // 2, reduction=True)
    for stack in range(3):
        width = num_filters * 2**stack
        if stack > 0:
            add_cell(width, reduction=True)
        for _ in range(num_layers // 3):
            add_cell(width, reduction=False)
        if stack == 1 and aux_head:
            factories.append(partial(AuxiliaryHead, channels, num_classes, norm=make_norm))
    factories.append(partial(Classifier, channels, num_classes, dropout=dropout))
    return factories


def set_drop_path(model: nn.Sequential, progress: float) -> None:
    """Tells the cells how far the training is, for drop-path: in proportion to it their probability grows.

    Args:
        model: the layers, or some of them.
        progress: optimizer steps done / all of the run; beyond 1 is 1.
    """
    for layer in model:
        if isinstance(layer, Cell):
            layer.drop_path.p = layer.drop_path.final * min(1.0, progress)


def softmax_layers(model: nn.Sequential) -> list[str]:
    """Names, within ``model``, of the layers whose outputs are logits: of the auxiliary head and of the classifier."""
    found = []
    for index, layer in enumerate(model):
        if isinstance(layer, AuxiliaryHead):
            found.append(f"{index}.layers.{len(layer.layers) - 1}")
        elif isinstance(layer, Classifier):
            found.append(f"{index}.linear")
    return found


class StemConvolution(nn.Module):
    """A 3x3 convolution of the images; opens the boundary with no previous output."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm = norm(channels)

    def forward(self, images: Tensor) -> Boundary:
        """Images (B, in_channels, height, width) to (output, None)."""
        return self.norm(self.convolution(images)), None


class Cell(nn.Module):
    """A normal (stride 1) or reduction (stride 2) cell: (output, previous output) -> (new output, output).

    Whatever follows the pair, such as auxiliary logits, is handed on untouched.
    """

    def __init__(
        self,
        genotype: CellGenotype,
        *,
        in_channels: int,
        previous_channels: int | None,
        channels: int,
        stride: int,
        reduce_previous: bool,
        drop_path: float,
        norm: Norm,
    ) -> None:
        super().__init__()
        self.concat = genotype.concat
        self.sources = tuple((left, right) for (_, left), (_, right) in genotype.pairs)
        self.project = nn.Sequential(*relu_convolution(in_channels, channels, 1, norm=norm))
        state_channels = [channels, channels]
        self.project_previous: nn.Module = nn.Identity()
        if previous_channels is None:
            # The first cell has no predecessor: the raw output of the stem is state 1, whatever its width.
            state_channels[1] = in_channels
        elif reduce_previous:
            self.project_previous = FactorizedReduction(previous_channels, channels, norm=norm)
        elif previous_channels != channels:
            self.project_previous = nn.Sequential(*relu_convolution(previous_channels, channels, 1, norm=norm))
        state_channels += [channels] * len(genotype.pairs)
        self.operations = nn.ModuleList(
            operation(
                name,
                state_channels[source],
                channels,
                stride=stride if source < 2 else 1,
                norm=norm,
            )
            for pair in genotype.pairs
            for name, source in pair
        )
        self.drop_path = DropPath(drop_path)
        self.dropped = tuple(name != "none" for pair in genotype.pairs for name, _ in pair)

    def forward(self, boundary: Boundary) -> Boundary:
        """(Output, previous output, ...) to (new output, output, ...)."""
        output, previous, *rest = boundary
        assert output is not None
        states = [self.project(output), self.project_previous(output if previous is None else previous)]
        for pair, (left, right) in enumerate(self.sources):
            states.append(self._edge(2 * pair, states[left]) + self._edge(2 * pair + 1, states[right]))
        return torch.cat([states[state] for state in self.concat], dim=1), output, *rest

    def _edge(self, index: int, state: Tensor) -> Tensor:
        made: Tensor = self.operations[index](state)
        return self.drop_path(made) if self.dropped[index] else made


class AuxiliaryHead(nn.Module):
    """A small classifier in mid-network (Real et al. 2018); appends its logits to the boundary.

    The authors' code averages 5x5 windows and ends in a convolution over all that is left, whose size depends on the
    image's. Pooling to a grid of fixed size gives the same parameters at 224 pixels and works at every other size.
    """

    def __init__(self, in_channels: int, num_classes: int, *, norm: Norm) -> None:
        super().__init__()
        narrow, wide = AUX_CHANNELS
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(AUX_GRID),
            nn.Conv2d(in_channels, narrow, 1, bias=False),
            norm(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, wide, AUX_GRID, bias=False),
            norm(wide),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(wide, num_classes),
        )

    def forward(self, boundary: Boundary) -> Boundary:
        """(Output, previous output) to (output, previous output, auxiliary logits)."""
        return *boundary, self.layers(boundary[0])


class Classifier(nn.Module):
    """Global average pooling, dropout and the softmax layer; ends the boundary.

    Returns logits, or (logits, auxiliary logits) where an auxiliary head has added its own.
    """

    def __init__(self, in_channels: int, num_classes: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(in_channels, num_classes)

    def forward(self, boundary: Boundary) -> Tensor | Boundary:
        """(Output, previous output, ...) to logits (B, num_classes), or (logits, ...)."""
        output, _, *rest = boundary
        assert output is not None
        logits: Tensor = self.linear(self.dropout(F.relu(output).mean(dim=(2, 3))))
        return (logits, *rest) if rest else logits
