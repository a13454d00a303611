"""From sentence pairs to padded batches of piece numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from repro.datasets.paths import DataError
from repro.datasets.translation import Pair
from repro.datasets.vocabulary import PAD_ID, Vocabulary


@dataclass(frozen=True)
class EncodedPair:
    """Piece numbers of one pair, without begin, end and padding; ``index`` is its place in the pairs given."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    index: int


@dataclass(frozen=True)
class LengthReport:
    """What the limits on length did: pairs kept, and pairs dropped for their source or (else) for their target."""

    kept: int
    source_too_long: int
    target_too_long: int

    def __str__(self) -> str:
        dropped = self.source_too_long + self.target_too_long
        return (
            f"{self.kept} pairs kept, {dropped} dropped ({self.source_too_long} sources and {self.target_too_long} "
            "targets too long)"
        )


class EncodedPairs(Dataset[EncodedPair]):
    """Pairs as piece numbers, those within the limits only.

    Attributes:
        items: the encoded pairs, in the order given.
        report: how many the limits dropped.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        vocabulary: Vocabulary,
        max_source: int | None = None,
        max_target: int | None = None,
        tag_source: bool = False,
    ) -> None:
        """Encode ``pairs``.

        Args:
            pairs: sentences to encode.
            vocabulary: of both sides.
            max_source: most pieces of a source (the tag counts, the end piece does not); no limit where None.
            max_target: most pieces of a target (begin and end do not count); no limit where None.
            tag_source: put the tag of its language before every source.

        Raises:
            DataError: no pair is left, or tags are asked of a vocabulary without them.
        """
        sources = vocabulary.encode_many([pair.source for pair in pairs])
        targets = vocabulary.encode_many([pair.english for pair in pairs])
        if tag_source:
            sources = [[vocabulary.tag_id(pair.language), *source] for pair, source in zip(pairs, sources, strict=True)]
        items, long_sources, long_targets = [], 0, 0
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if max_source is not None and len(source) > max_source:
                long_sources += 1
            elif max_target is not None and len(target) > max_target:
                long_targets += 1
            else:
                items.append(EncodedPair(tuple(source), tuple(target), index))
        if not items:
            raise DataError(
                f"none of {len(pairs)} pairs is within max_source={max_source} and max_target={max_target} pieces; "
                "raise the limits or choose other languages"
            )
        self.items = items
        self.report = LengthReport(len(items), long_sources, long_targets)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> EncodedPair:
        return self.items[index]


def collate(
    items: Sequence[EncodedPair], pad_id: int = PAD_ID, pad_to: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of ``EncodedPair`` for teacher forcing.

    Args:
        items: at least one pair.
        pad_id: fills rows up to the longest of the batch.
        pad_to: fixed (source, target) lengths instead, end and begin pieces included.

    Returns:
        int64 tensors (source, target_in, target_out) of shapes (B, S), (B, T), (B, T): source pieces and end; begin
        and target pieces; target pieces and end.

    Raises:
        DataError: a row is longer than ``pad_to``.
    """
    source = [(*item.source, Vocabulary.eos_id) for item in items]
    target_in = [(Vocabulary.bos_id, *item.target) for item in items]
    target_out = [(*item.target, Vocabulary.eos_id) for item in items]
    source_length, target_length = pad_to if pad_to is not None else (None, None)
    return (
        _padded(source, pad_id, source_length),
        _padded(target_in, pad_id, target_length),
        _padded(target_out, pad_id, target_length),
    )


def _padded(rows: Sequence[Sequence[int]], pad_id: int, length: int | None) -> Tensor:
    longest = max(len(row) for row in rows)
    if length is not None and longest > length:
        raise DataError(f"a row of {longest} pieces does not fit pad_to={length}; raise pad_to or lower the limits")
    width = longest if length is None else length
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], dtype=torch.int64)
