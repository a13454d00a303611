"""Translation corpora as a DataModule: some languages to one, one vocabulary, batches by rows or by tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler, WeightedRandomSampler
from typing_extensions import override

from repro.datasets.batches import EncodedPair, EncodedPairs, collate
from repro.datasets.bucketing import SimilarLengths, TokenBatches, length_of, padded_tokens
from repro.datasets.parallel_corpus import ParallelCorpus, open_corpus
from repro.datasets.paths import missing_set, packaged_root
from repro.datasets.store import read_manifest
from repro.datasets.translation import NAME, Pair, load_pairs
from repro.datasets.vocabulary import CACHE, LINES, PAD_ID, Vocabulary, sampling_weights, vocabulary_of
from repro.errors import UserError
from repro.tasks.data_options import check_least

LANGUAGES = ("es", "it", "fr", "ca", "pt_BR")
"""Related languages with much text: what a few minutes on a laptop suffice for."""

CorpusName = Literal["packaged", "moses", "tsv", "opus100"]

_PARTS = {"train": "train", "val": "dev", "test": "test"}


class TranslationDataModule(pl.LightningDataModule):
    """Batches ((source, decoder input), decoder output) of piece numbers.

    The packaged corpus is split by clusters of near duplicates: no English sentence of its held-out parts has a near
    duplicate in training (0.2% of their source sentences do stand there, beside another English one; data/README.md).
    Other corpora come with their own splits.

    Only the rank that reads data opens the files. Sentences that are left out (an empty side, too long) are counted in
    the log.

    Args:
        root: folder of the packaged sets and of trained vocabularies; None: ``data/packaged`` of the checkout.
        languages: codes of the source languages; None: all that the corpus has.
        vocab_size: pieces of the shared SentencePiece vocabulary.
        batch_size: sentence pairs of a mini-batch, per replica, unless ``batch_tokens`` says otherwise.
        max_source: longest source in training and validation, in pieces; None: no limit. The test part has none unless
            ``short_test`` says so.
        max_target: likewise of the target.
        temperature: training pairs are drawn by language with p ~ size^(1/temperature); None: every pair once an epoch.
        limit_train: only so many training pairs.
        limit_val: only so many validation pairs.
        limit_test: only so many test pairs, spread evenly over the part.
        num_workers: loader processes of the rank that reads data.
        seed: of the lines that the vocabulary is trained on.
        corpus: "packaged", or the layout of the files in ``folder``: "moses" (``train.de-en.de`` and
            ``train.de-en.en``), "tsv" (``train.de-en.tsv``) or "opus100" (``supervised/de-en/opus.de-en-train.de``).
            Each file may be compressed by gzip.
        folder: of a corpus that is not packaged.
        stems: how the file names of "train", "dev" and "test" begin, where not so; for "moses" and "tsv".
        target: code of the language that is translated into; the packaged corpus has English only.
        batch_tokens: most tokens of a mini-batch, per replica, padding included: rows x (longest source + longest
            target, each with its end piece). A longer pair of the test part, which has no limits, goes alone. None:
            batches of ``batch_size`` rows.
        vocab_lines: sentences of the sources, drawn by language with temperature 5, and most sentences of the target
            that the vocabulary is trained on.
        vocabulary_languages: languages that the vocabulary is made for; None: ``languages``. A model of fewer languages
            then has the pieces of another model.
        limit_test_per_language: only so many test pairs of each language, spread evenly over them.
        short_test: leave out test pairs longer than ``max_source`` and ``max_target``, before limiting their number.
    """

    def __init__(
        self,
        root: str | None = None,
        languages: list[str] | None = list(LANGUAGES),  # noqa: B006  (the configuration tool reads it, nobody writes it)
        vocab_size: int = 8000,
        batch_size: int = 128,
        max_source: int | None = 26,
        max_target: int | None = 22,
        temperature: float | None = None,
        limit_train: int | None = None,
        limit_val: int | None = None,
        limit_test: int | None = None,
        num_workers: int = 0,
        seed: int = 0,
        corpus: CorpusName = "packaged",
        folder: str | None = None,
        stems: dict[str, str] | None = None,
        target: str = "en",
        batch_tokens: int | None = None,
        vocab_lines: int = LINES,
        vocabulary_languages: list[str] | None = None,
        limit_test_per_language: int | None = None,
        short_test: bool = False,
    ) -> None:
        super().__init__()
        check_least(
            1,
            batch_size=batch_size,
            limit_train=limit_train,
            limit_val=limit_val,
            limit_test=limit_test,
            limit_test_per_language=limit_test_per_language,
        )
        check_least(0, num_workers=num_workers)
        repeated = sorted({language for language in languages or () if (languages or []).count(language) > 1})
        if repeated:
            raise UserError(f"languages has {', '.join(repeated)} more than once; name each language once")
        if batch_tokens is not None and batch_tokens < _longest(max_source, max_target):
            raise UserError(
                f"batch_tokens={batch_tokens} does not hold one pair of max_source={max_source} and "
                f"max_target={max_target} pieces and their ends: it must be at least {_longest(max_source, max_target)}"
            )
        if corpus == "packaged" and (folder is not None or stems is not None or target != "en"):
            raise UserError(
                "folder, stems and target are for corpora of your own, and corpus is 'packaged'; give corpus=moses, "
                "tsv or opus100 with them"
            )
        if corpus != "packaged" and folder is None:
            raise UserError(f"corpus={corpus!r} needs folder: where its files are")
        self.root = root
        self.languages = languages
        self.vocab_size = vocab_size
        self.batch_size = batch_size
        self.max_source = max_source
        self.max_target = max_target
        self.temperature = temperature
        self.limits = {"train": limit_train, "val": limit_val, "test": limit_test}
        self.num_workers = num_workers
        self.seed = seed
        self.batch_tokens = batch_tokens
        self.vocab_lines = vocab_lines
        self.vocabulary_languages = vocabulary_languages
        self.limit_test_per_language = limit_test_per_language
        self.short_test = short_test
        self._corpus: ParallelCorpus | None = None
        if corpus != "packaged" and folder is not None:
            self._corpus = open_corpus(corpus, folder, target, stems)
        self._vocabulary: Vocabulary | None = None
        self._pairs: dict[str, list[Pair]] = {}
        self._encoded: dict[str, EncodedPairs] = {}

    def check(self) -> None:
        """Raises what would stop the run later: before any process starts. No sentence is read.

        Raises:
            DataError: the packaged corpus has not been fetched, or files of another one are missing.
        """
        if self._corpus is not None:
            self._corpus.check(self.languages)
            return
        base = packaged_root(self.root)
        if read_manifest(base, NAME) is None:
            raise missing_set(NAME, base)

    @property
    def vocabulary(self) -> Vocabulary:
        """The pieces that source and target share."""
        if self._vocabulary is None:
            others = self.vocabulary_languages
            read = self.limits["train"] is not None or others is not None
            pairs = self._read("train", others) if read else self.pairs("train")
            cache = packaged_root(self.root) / CACHE
            self._vocabulary = vocabulary_of(pairs, cache, self.vocab_size, self.seed, lines=self.vocab_lines)
        return self._vocabulary

    def pairs(self, part: str) -> list[Pair]:
        """The sentences of "train", "val" or "test"; ``encoded(part).items[i].index`` is a place in this list."""
        if part not in self._pairs:
            pairs = self._read(part)
            if part == "test":
                pairs = self._chosen_tests(pairs)
            self._pairs[part] = _spread(pairs, self.limits[part])
        return self._pairs[part]

    def encoded(self, part: str) -> EncodedPairs:
        """The same as piece numbers, within the limits on length."""
        if part not in self._encoded:
            limits = (None, None) if part == "test" else (self.max_source, self.max_target)
            self._encoded[part] = EncodedPairs(self.pairs(part), self.vocabulary, *limits)
            self._say(part, self._encoded[part])
        return self._encoded[part]

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader("train", self._training_batches)

    @override
    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader("val", partial(self._evaluation_batches, "val"))

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader("test", partial(self._evaluation_batches, "test"))

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        return self._loader("test", lambda: _cut(range(len(self.encoded("test"))), self.batch_size))

    def _say(self, part: str, encoded: EncodedPairs) -> None:
        """Logs what the limits on length left out."""
        report = encoded.report
        if report.source_too_long or report.target_too_long:
            rank_zero_info(f"{part}: {report} (max_source={self.max_source}, max_target={self.max_target} pieces)")

    def _chosen_tests(self, pairs: list[Pair]) -> list[Pair]:
        if self.short_test:
            short = EncodedPairs(pairs, self.vocabulary, self.max_source, self.max_target)
            self._say("test", short)
            pairs = [pairs[item.index] for item in short.items]
        if self.limit_test_per_language is None:
            return pairs
        by_language: dict[str, list[Pair]] = {}
        for pair in pairs:
            by_language.setdefault(pair.language, []).append(pair)
        return [pair for some in by_language.values() for pair in _spread(some, self.limit_test_per_language)]

    def _read(self, part: str, languages: list[str] | None = None) -> list[Pair]:
        languages = self.languages if languages is None else languages
        if self._corpus is None:
            return load_pairs(languages, _PARTS[part], self.root)
        pairs, skipped, absent = self._corpus.pairs(languages, _PARTS[part])
        message = f"{part}: {len(pairs):,} pairs from {self._corpus.folder}; {skipped}"
        (rank_zero_warn if skipped.total or absent else rank_zero_info)(
            message + (f"; no such part for {', '.join(absent)}" if absent else "")
        )
        return pairs

    def _training_batches(self) -> Iterable[list[int]]:
        encoded = self.encoded("train")
        order: Any = RandomSampler(encoded)
        if self.temperature is not None:
            pairs = self.pairs("train")
            weights = sampling_weights([pairs[item.index].language for item in encoded.items], self.temperature)
            order = WeightedRandomSampler(weights.tolist(), len(encoded))
        if self.batch_tokens is not None:
            return TokenBatches(order, encoded.items, self.batch_tokens)
        return SimilarLengths(order, encoded.items, self.batch_size)

    def _evaluation_batches(self, part: str) -> Iterable[list[int]]:
        items = self.encoded(part).items
        if self.batch_tokens is not None:
            ordered = TokenBatches(SequentialSampler(items), items, self.batch_tokens, shuffle=False, longer_alone=True)
            batches = list(ordered)  # a list: their number is known
            longer = sum(padded_tokens([items[index] for index in batch]) > self.batch_tokens for batch in batches)
            if longer:
                rank_zero_info(f"{part}: {longer} pairs of more than batch_tokens={self.batch_tokens} tokens go alone")
            return batches
        return _cut(sorted(range(len(items)), key=lambda index: length_of(items[index])), self.batch_size)

    def _loader(self, part: str, batches: Callable[[], Iterable[list[int]]]) -> DataLoader[Any]:
        return DataLoader(
            _Sentences(partial(self.encoded, part)),
            batch_sampler=_Batches(batches),
            num_workers=self.num_workers,
            collate_fn=_as_inputs_and_targets,
            persistent_workers=self.num_workers > 0,
        )


class _Sentences(Dataset[EncodedPair]):
    """Sentences that are read when the first is asked for: on the ranks that read no data, never."""

    def __init__(self, read: Callable[[], EncodedPairs]) -> None:
        self._read = read

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, index: int) -> EncodedPair:
        return self._read()[index]


class _Batches(Sampler[list[int]]):
    """Batches that are made when the first is asked for, likewise."""

    def __init__(self, make: Callable[[], Iterable[list[int]]]) -> None:
        self._make = make
        self._batches: Iterable[list[int]] | None = None

    def __len__(self) -> int:
        return len(self._made())  # type: ignore[arg-type]  # TypeError where their number is not known in advance

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._made())  # made at once, no generator: before workers start, which then share the sentences

    def _made(self) -> Iterable[list[int]]:
        if self._batches is None:
            self._batches = self._make()
        return self._batches


def _cut(order: Sequence[int], size: int) -> list[list[int]]:
    return [list(order[begin : begin + size]) for begin in range(0, len(order), size)]


def _longest(max_source: int | None, max_target: int | None) -> int:
    """Tokens of the longest pair, as far as it is limited."""
    return sum(limit + 1 for limit in (max_source, max_target) if limit is not None)


def _as_inputs_and_targets(items: Sequence[EncodedPair]) -> Any:
    source, target_in, target_out = collate(items, PAD_ID)
    return (source, target_in), target_out


def _spread(pairs: list[Pair], limit: int | None) -> list[Pair]:
    """``limit`` pairs at equal distances, so that every language keeps its share."""
    if limit is None or limit >= len(pairs):
        return pairs
    return [pairs[number * len(pairs) // limit] for number in range(limit)]
