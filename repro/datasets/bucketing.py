"""Batches of sentences of similar length, so that little of a batch is padding: by rows or by tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from repro.datasets.batches import EncodedPair
from repro.datasets.paths import DataError

_POOL = 16  # batches whose sentences are sorted by length together
_BAND = 4  # target pieces that count as one length where both lengths matter


class SimilarLengths(Sampler[list[int]]):
    """Batches of a fixed number of sentences of similar length, in random order.

    The order is cut into pools of 16 batches; each pool is sorted by length and cut into batches, which are shuffled.

    Args:
        order: sampler of single sentences, as long as an epoch.
        items: the sentences.
        batch_size: sentences of a batch; only the last batch of an epoch's last pool may have fewer.
    """

    def __init__(self, order: Sampler[int], items: Sequence[EncodedPair], batch_size: int) -> None:
        self._order = order
        self._items = items
        self._batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self._order) / self._batch_size)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        pool: list[int] = []
        for index in self._order:
            pool.append(index)
            if len(pool) == _POOL * self._batch_size:
                yield from self._batches(pool)
                pool = []
        yield from self._batches(pool)

    def _batches(self, pool: list[int]) -> Iterator[list[int]]:
        by_length = sorted(pool, key=lambda index: length_of(self._items[index]))
        batches = [by_length[begin : begin + self._batch_size] for begin in range(0, len(pool), self._batch_size)]
        for number in torch.randperm(len(batches)).tolist():
            yield batches[number]


class TokenBatches(Sampler[list[int]]):
    """Batches of as many sentences of similar length as fit a number of tokens, in random order.

    A batch of rows padded to the longest source S and the longest target T, both with their end piece, holds
    rows x (S + T) tokens: that product stays within the budget. The order is cut into pools of about 16 batches; each
    pool is sorted by both lengths and filled into batches, which are shuffled. How many batches an epoch has depends on
    the order, so there is no length.

    Args:
        order: sampler of single sentences, as long as an epoch.
        items: the sentences.
        batch_tokens: most tokens of a batch, padding included.
        longer_alone: a pair that does not fit is a batch of its own; otherwise it is an error.
        shuffle: shuffle the batches of a pool. The shuffling is settled by one draw from the default generator at the
            start of an epoch: whatever else draws during the epoch, every replica and every resumed run sees the same.
    """

    def __init__(
        self,
        order: Sampler[int],
        items: Sequence[EncodedPair],
        batch_tokens: int,
        shuffle: bool = True,
        longer_alone: bool = False,
    ) -> None:
        self._order = order
        self._items = items
        self._batch_tokens = batch_tokens
        self._shuffle = shuffle
        self._longer_alone = longer_alone

    def __iter__(self) -> Iterator[list[int]]:
        shuffling = torch.Generator()
        if self._shuffle:
            shuffling.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        pool: list[int] = []
        tokens = 0
        for index in self._order:
            pool.append(index)
            tokens += padded_tokens([self._items[index]])
            if tokens >= _POOL * self._batch_tokens:
                yield from self._batches(pool, shuffling)
                pool, tokens = [], 0
        yield from self._batches(pool, shuffling)

    def _batches(self, pool: list[int], shuffling: torch.Generator) -> Iterator[list[int]]:
        batches: list[list[int]] = []
        rows, longest_source, longest_target = 0, 0, 0
        for index in sorted(pool, key=lambda index: _both_lengths(self._items[index])):
            item = self._items[index]
            longest_source = max(longest_source, len(item.source) + 1)
            longest_target = max(longest_target, len(item.target) + 1)
            if rows == 0 or (rows + 1) * (longest_source + longest_target) > self._batch_tokens:
                rows, longest_source, longest_target = 0, len(item.source) + 1, len(item.target) + 1
                self._check(longest_source, longest_target)
                batches.append([])
            batches[-1].append(index)
            rows += 1
        places = torch.randperm(len(batches), generator=shuffling).tolist() if self._shuffle else range(len(batches))
        for place in places:
            yield batches[place]

    def _check(self, source: int, target: int) -> None:
        if source + target > self._batch_tokens and not self._longer_alone:
            raise DataError(
                f"batch_tokens={self._batch_tokens} is too few for a pair of {source} + {target} pieces: raise it, or "
                "lower max_source and max_target"
            )


def padded_tokens(items: Sequence[EncodedPair]) -> int:
    """Tokens of a batch of ``items``: rows x (longest source + longest target), each with its end piece."""
    return len(items) * (max(len(item.source) for item in items) + max(len(item.target) for item in items) + 2)


def _both_lengths(item: EncodedPair) -> tuple[int, int]:
    """Sorts so that neighbours differ little in either length: bands of target lengths, and the source's lengths up in
    one band and down in the next. On the packaged corpus 15% of a batch is then padding, 23% in the order of targets.
    """
    band = len(item.target) // _BAND
    return band, len(item.source) if band % 2 == 0 else -len(item.source)


def length_of(item: EncodedPair) -> tuple[int, int]:
    """What sentences are sorted by: the target's length, then the source's."""
    return len(item.target), len(item.source)
