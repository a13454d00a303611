"""The AmoebaNet cells as data: which operation reads which state.

A cell starts from two states: state 0 is the output of the cell before, projected to the cell's width; state 1 is the
output of the cell before that. Each pair of edges is computed and added, and the sum becomes the next state (2 to 6).
The cell's output is the concatenation of the states in `concat`. Source: the authors' public TPU code (Real et al.
2018, AmoebaNet-A to -D); the normal cell of D concatenates states 0, 3, 4 and 6, the only choice with which the
parameter counts of Table 1 of the GPipe paper come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal[
    "none",
    "conv_1x1",
    "conv_3x3",
    "conv_1x7_7x1",
    "avg_pool_3x3",
    "max_pool_2x2",
    "max_pool_3x3",
    "separable_3x3",
    "separable_5x5",
    "separable_7x7",
    "dilated_separable_5x5",
]
Edge = tuple[Operation, int]  # the operation and the state that it reads


@dataclass(frozen=True)
class CellGenotype:
    """One cell: pairs of edges, in the order in which their sums become states 2, 3, ..., and what is concatenated."""

    pairs: tuple[tuple[Edge, Edge], ...]
    concat: tuple[int, ...]


@dataclass(frozen=True)
class Genotype:
    """The two cells of a network; in the reduction cell the edges that read state 0 or 1 have stride 2."""

    normal: CellGenotype
    reduction: CellGenotype


AMOEBANET_A = Genotype(
    normal=CellGenotype(
        pairs=(
            (("avg_pool_3x3", 0), ("max_pool_3x3", 0)),
            (("separable_3x3", 1), ("none", 1)),
            (("none", 0), ("avg_pool_3x3", 1)),
            (("separable_3x3", 0), ("separable_5x5", 2)),
            (("avg_pool_3x3", 5), ("separable_3x3", 0)),
        ),
        concat=(1, 3, 4, 6),
    ),
    reduction=CellGenotype(
        pairs=(
            (("separable_3x3", 1), ("avg_pool_3x3", 0)),
            (("max_pool_3x3", 0), ("separable_7x7", 2)),
            (("max_pool_3x3", 1), ("max_pool_3x3", 0)),
            (("separable_3x3", 4), ("conv_1x7_7x1", 0)),
            (("avg_pool_3x3", 1), ("separable_7x7", 0)),
        ),
        concat=(2, 3, 4, 5, 6),
    ),
)

AMOEBANET_B = Genotype(
    normal=CellGenotype(
        pairs=(
            (("conv_1x1", 1), ("max_pool_3x3", 1)),
            (("none", 1), ("separable_3x3", 0)),
            (("conv_1x1", 1), ("separable_3x3", 0)),
            (("conv_1x1", 2), ("none", 2)),
            (("avg_pool_3x3", 1), ("conv_1x1", 5)),
        ),
        concat=(0, 3, 4, 6),
    ),
    reduction=CellGenotype(
        pairs=(
            (("max_pool_2x2", 0), ("max_pool_3x3", 0)),
            (("none", 2), ("conv_3x3", 1)),
            (("dilated_separable_5x5", 2), ("max_pool_3x3", 2)),
            (("none", 3), ("separable_3x3", 1)),
            (("avg_pool_3x3", 4), ("conv_1x1", 3)),
        ),
        concat=(5, 6),
    ),
)

AMOEBANET_D = Genotype(
    normal=CellGenotype(
        pairs=(
            (("conv_1x1", 1), ("max_pool_3x3", 1)),
            (("none", 1), ("conv_1x7_7x1", 0)),
            (("conv_1x1", 0), ("conv_1x7_7x1", 0)),
            (("max_pool_3x3", 2), ("none", 2)),
            (("avg_pool_3x3", 1), ("conv_1x1", 5)),
        ),
        concat=(0, 3, 4, 6),
    ),
    reduction=CellGenotype(
        pairs=(
            (("max_pool_2x2", 0), ("max_pool_3x3", 0)),
            (("none", 2), ("conv_3x3", 1)),
            (("conv_1x7_7x1", 2), ("max_pool_3x3", 2)),
            (("none", 3), ("max_pool_2x2", 1)),
            (("avg_pool_3x3", 2), ("conv_1x1", 3)),
        ),
        concat=(4, 5, 6),
    ),
)
