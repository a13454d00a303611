"""The packaged translation corpus as a DataModule: a few languages to English, one vocabulary, batches by rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset, WeightedRandomSampler
from typing_extensions import override

from repro.datasets.batches import EncodedPair, EncodedPairs, collate
from repro.datasets.paths import missing_set, packaged_root
from repro.datasets.store import read_manifest
from repro.datasets.translation import NAME, Pair, load_pairs
from repro.datasets.vocabulary import Vocabulary, load_vocabulary, sampling_weights
from repro.errors import UserError

LANGUAGES = ("es", "it", "fr", "ca", "pt_BR")
"""Related languages with much text: what a few minutes on a laptop suffice for."""

_POOL = 16  # batches whose sentences are sorted by length together

_PARTS = {"train": "train", "val": "dev", "test": "test"}


class TranslationDataModule(pl.LightningDataModule):
    """Batches ((source, decoder input), decoder output) of piece numbers; the target is English.

    The splits of the corpus are by clusters of near duplicates: no sentence of the held-out parts has a near duplicate
    in training.

    Args:
        root: folder of the packaged sets; None: ``data/packaged`` of the checkout.
        languages: codes of the source languages; None: all 102.
        vocab_size: pieces of the shared SentencePiece vocabulary.
        vocabulary_languages: languages that the vocabulary is made for; None: ``languages``. A model of fewer languages
            then has the pieces of another model.
        batch_size: sentence pairs of a mini-batch, per replica.
        max_source: longest source in training and validation, in pieces; None: no limit. The test part has none unless
            ``short_test`` says so.
        max_target: likewise of the target.
        temperature: training pairs are drawn by language with p ~ size^(1/temperature); None: every pair once an epoch.
        limit_train: only so many training pairs.
        limit_val: only so many validation pairs.
        limit_test: only so many test pairs, spread evenly over the part.
        limit_test_per_language: only so many test pairs of each language, spread evenly over them.
        short_test: leave out test pairs longer than ``max_source`` and ``max_target``, before limiting their number.
        num_workers: loader processes of the rank that reads data.
        seed: of the lines that the vocabulary is trained on.
    """

    def __init__(
        self,
        root: str | None = None,
        languages: list[str] | None = list(LANGUAGES),  # noqa: B006  (the configuration tool reads it, nobody writes it)
        vocab_size: int = 8000,
        vocabulary_languages: list[str] | None = None,
        batch_size: int = 128,
        max_source: int | None = 26,
        max_target: int | None = 22,
        temperature: float | None = None,
        limit_train: int | None = None,
        limit_val: int | None = None,
        limit_test: int | None = None,
        limit_test_per_language: int | None = None,
        short_test: bool = False,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        self.root = root
        self.languages = languages
        self.vocab_size = vocab_size
        self.vocabulary_languages = languages if vocabulary_languages is None else vocabulary_languages
        self.batch_size = batch_size
        self.max_source = max_source
        self.max_target = max_target
        self.temperature = temperature
        self.limits = {"train": limit_train, "val": limit_val, "test": limit_test}
        self.limit_test_per_language = limit_test_per_language
        self.short_test = short_test
        self.num_workers = num_workers
        self.seed = seed
        self._vocabulary: Vocabulary | None = None
        self._pairs: dict[str, list[Pair]] = {}
        self._encoded: dict[str, EncodedPairs] = {}

    def check(self) -> None:
        """Raises what would stop the run later: before any process starts.

        Raises:
            DataError: the corpus has not been fetched.
        """
        base = packaged_root(self.root)
        if read_manifest(base, NAME) is None:
            raise missing_set(NAME, base)

    @property
    def vocabulary(self) -> Vocabulary:
        """The pieces that source and target share."""
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self.vocabulary_languages, self.vocab_size, self.seed, root=self.root)
        return self._vocabulary

    def pairs(self, part: str) -> list[Pair]:
        """The sentences of "train", "val" or "test"; ``encoded(part).items[i].index`` is a place in this list."""
        if part not in self._pairs:
            pairs = load_pairs(self.languages, _PARTS[part], self.root)
            if part == "test":
                pairs = self._chosen_tests(pairs)
            self._pairs[part] = _spread(pairs, self.limits[part])
        return self._pairs[part]

    def _chosen_tests(self, pairs: list[Pair]) -> list[Pair]:
        if self.short_test:
            short = EncodedPairs(pairs, self.vocabulary, self.max_source, self.max_target)
            pairs = [pairs[item.index] for item in short.items]
        if self.limit_test_per_language is None:
            return pairs
        by_language: dict[str, list[Pair]] = {}
        for pair in pairs:
            by_language.setdefault(pair.language, []).append(pair)
        return [pair for some in by_language.values() for pair in _spread(some, self.limit_test_per_language)]

    def encoded(self, part: str) -> EncodedPairs:
        """The same as piece numbers, within the limits on length."""
        if part not in self._encoded:
            limits = (None, None) if part == "test" else (self.max_source, self.max_target)
            self._encoded[part] = EncodedPairs(self.pairs(part), self.vocabulary, *limits)
        return self._encoded[part]

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        encoded = self.encoded("train")
        weights = None
        if self.temperature is not None:
            pairs = self.pairs("train")
            weights = sampling_weights([pairs[item.index].language for item in encoded.items], self.temperature)
        order: Any = (
            RandomSampler(encoded) if weights is None else WeightedRandomSampler(weights.tolist(), len(encoded))
        )
        return self._loader(encoded, batch_sampler=SimilarLengths(order, encoded.items, self.batch_size))

    @override
    def val_dataloader(self) -> DataLoader[Any]:
        return self._evaluation_loader("val")

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return self._evaluation_loader("test")

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        encoded = self.encoded("test")
        return self._loader(encoded, batch_size=self.batch_size)

    def _evaluation_loader(self, part: str) -> DataLoader[Any]:
        encoded = self.encoded(part)
        order = sorted(range(len(encoded)), key=lambda index: _length(encoded.items[index]))
        return self._loader(Subset(encoded, order), batch_size=self.batch_size)

    def _loader(self, dataset: Dataset[EncodedPair], **batches: Any) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            collate_fn=partial(_as_inputs_and_targets, pad_id=self.vocabulary.pad_id),
            persistent_workers=self.num_workers > 0,
            **batches,
        )


class SimilarLengths(Sampler[list[int]]):
    """Batches of sentences of similar length, so that little is padding, in random order.

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
        by_length = sorted(pool, key=lambda index: _length(self._items[index]))
        batches = [by_length[begin : begin + self._batch_size] for begin in range(0, len(pool), self._batch_size)]
        for number in torch.randperm(len(batches)).tolist():
            yield batches[number]


def _length(item: EncodedPair) -> tuple[int, int]:
    return len(item.target), len(item.source)


def _as_inputs_and_targets(items: Sequence[EncodedPair], pad_id: int) -> Any:
    source, target_in, target_out = collate(items, pad_id)
    return (source, target_in), target_out


def _spread(pairs: list[Pair], limit: int | None) -> list[Pair]:
    """``limit`` pairs at equal distances, so that every language keeps its share."""
    if limit is None or limit >= len(pairs):
        return pairs
    return [pairs[number * len(pairs) // limit] for number in range(limit)]
