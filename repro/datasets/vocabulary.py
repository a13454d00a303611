"""One SentencePiece vocabulary for all languages (Arivazhagan et al. 2019), trained once and cached."""

from __future__ import annotations

import io
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import sentencepiece
import torch
from torch import Tensor

from repro.datasets.paths import DataError, packaged_root
from repro.datasets.sources import sha256
from repro.datasets.store import locked
from repro.datasets.translation import Pair, load_pairs

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
TEMPERATURE = 5.0
"""Of the sampling of languages, as in Arivazhagan et al. 2019 ("NMT in the wild")."""

LINES = 60_000
"""Source sentences that a vocabulary is trained on."""

CACHE = "vocab"
"""Folder of trained vocabularies, below that of the packaged sets."""

_FORMAT = 1


class Vocabulary:
    """Pieces of text as integers.

    Attributes:
        size: number of pieces, the four special ones and the 256 bytes included.
        pad_id, unk_id, bos_id, eos_id: numbers of the special pieces.
    """

    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID

    def __init__(self, model: bytes) -> None:
        """``model``: a serialised SentencePiece model (the content of a ``.model`` file), else RuntimeError."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.load_from_serialized_proto(model)  # given to the constructor, an empty one would pass
        self.size: int = self._processor.get_piece_size()

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[bytes]]:
        return Vocabulary, (self.model,)

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> list[int]:
        """Pieces of a sentence, without begin and end."""
        pieces: list[int] = self._processor.encode(text)
        return pieces

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of many sentences, in one call."""
        pieces: list[list[int]] = self._processor.encode(list(texts))
        return pieces

    def decode(self, pieces: Sequence[int] | Tensor) -> str:
        """The sentence up to the first end piece; begin and padding are skipped."""
        numbers: list[int] = pieces.tolist() if isinstance(pieces, Tensor) else list(pieces)
        if self.eos_id in numbers:
            numbers = numbers[: numbers.index(self.eos_id)]
        text: str = self._processor.decode([number for number in numbers if number not in (self.pad_id, self.bos_id)])
        return text

    def tag_id(self, language: str) -> int:
        """Number of the piece that names ``language``.

        Raises:
            DataError: the vocabulary was trained without language tags.
        """
        number: int = self._processor.piece_to_id(_tag(language))
        if number == self.unk_id:
            raise DataError(f"the vocabulary has no tag for {language!r}; train it with language_tags=True")
        return number


def sampling_probabilities(sizes: Mapping[str, int], temperature: float = TEMPERATURE) -> dict[str, float]:
    """Probability of each language, proportional to (D_l / D)^(1/T): 1 keeps the sizes, infinity makes all equal.

    Raises:
        DataError: no language, an empty language, or a temperature that is not positive.
    """
    if not sizes or min(sizes.values()) <= 0:
        raise DataError(f"every language needs at least one sentence, got sizes {dict(sizes)}")
    if not temperature > 0:
        raise DataError(f"temperature={temperature} must be positive; the paper's companion uses {TEMPERATURE}")
    total = sum(sizes.values())
    powers = {language: (size / total) ** (1 / temperature) for language, size in sizes.items()}
    norm = sum(powers.values())
    return {language: power / norm for language, power in powers.items()}


def sampling_weights(languages: Sequence[str], temperature: float = TEMPERATURE) -> Tensor:
    """Weight of every sentence (given its language) for a ``WeightedRandomSampler``; they add up to 1.

    Languages are then drawn with ``sampling_probabilities``, sentences of a language evenly.
    """
    sizes: dict[str, int] = {}
    for language in languages:
        sizes[language] = sizes.get(language, 0) + 1
    probabilities = sampling_probabilities(sizes, temperature)
    return torch.tensor([probabilities[language] / sizes[language] for language in languages], dtype=torch.float64)


def sample_lines(pairs: Sequence[Pair], lines: int, temperature: float = TEMPERATURE, seed: int = 0) -> list[str]:
    """``lines`` source sentences drawn by temperature, and every English sentence once, or ``lines`` of them.

    A language whose share exceeds its sentences repeats them, which is how small languages get pieces of their own.
    """
    by_language: dict[str, list[str]] = {}
    for pair in pairs:
        by_language.setdefault(pair.language, []).append(pair.source)
    shares = sampling_probabilities({name: len(texts) for name, texts in by_language.items()}, temperature)
    drawn = []
    for name in sorted(by_language):
        texts, wanted = by_language[name], max(1, round(lines * shares[name]))
        generator = random.Random(f"{seed} {name}")
        whole, rest = divmod(wanted, len(texts))
        drawn += texts * whole + generator.sample(texts, rest)
    english = sorted({pair.english for pair in pairs})
    if len(english) > lines:
        english = random.Random(f"{seed} english").sample(english, lines)
    return drawn + english


def train_vocabulary(lines: Sequence[str], size: int, languages: Sequence[str] = ()) -> Vocabulary:
    """Train a unigram vocabulary with byte fallback, so that every text can be encoded.

    Text is neither normalised nor lower-cased: decoding gives back what was encoded. Training runs on one thread, which
    makes it repeatable.

    Args:
        lines: sentences to train on.
        size: number of pieces in all.
        languages: codes that get a tag piece each.

    Raises:
        DataError: ``size`` does not suit the amount of text.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=size,
            model_type="unigram",
            byte_fallback=True,
            character_coverage=0.9995,
            normalization_rule_name="identity",
            user_defined_symbols=[_tag(language) for language in languages],
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            # Else longer lines would be left out in silence; 4,192 is its own limit.
            max_sentence_length=max(4192, *(len(line.encode()) for line in lines)),
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(
            f"no vocabulary of size={size} from {len(lines)} lines: {error}. Choose another size."
        ) from error
    return Vocabulary(model.getvalue())


def load_vocabulary(
    languages: Sequence[str] | None = None,
    size: int = 8000,
    seed: int = 0,
    temperature: float = TEMPERATURE,
    lines: int = LINES,
    language_tags: bool = False,
    root: str | Path | None = None,
) -> Vocabulary:
    """The shared vocabulary of ``languages`` and English: from the cache, else trained on the training split.

    Args:
        languages: codes; all of the corpus where None. Their order does not matter.
        size: number of pieces.
        seed: of the drawn lines.
        temperature: of the sampling of languages.
        lines: source sentences to draw, and most English ones.
        language_tags: give every language a tag piece.
        root: folder of the packaged sets; the checkout's ``data/packaged`` where None.

    Raises:
        DataError: the corpus has not been fetched, a language is unknown, or ``size`` does not suit the text.
    """
    base = packaged_root(root)
    pairs = load_pairs(sorted(set(languages)) if languages is not None else None, "train", base)
    return vocabulary_of(pairs, base / CACHE, size, seed, temperature, lines, language_tags)


def vocabulary_of(
    pairs: Sequence[Pair],
    cache: Path,
    size: int = 8000,
    seed: int = 0,
    temperature: float = TEMPERATURE,
    lines: int = LINES,
    language_tags: bool = False,
) -> Vocabulary:
    """The shared vocabulary of both sides of ``pairs``: from the cache, else trained.

    Args:
        pairs: training pairs of any corpus.
        cache: folder of vocabularies; a file is named by what it was trained on.
        size: number of pieces.
        seed: of the drawn lines.
        temperature: of the sampling of languages.
        lines: source sentences to draw, and most English ones.
        language_tags: give every language a tag piece.

    Raises:
        DataError: ``size`` does not suit the text, or the cache cannot be written.
    """
    names = sorted({pair.language for pair in pairs})
    drawn = sample_lines(pairs, lines, temperature, seed)
    # The key holds the text itself: another corpus never meets an old vocabulary.
    text = sha256("\n".join(drawn).encode())
    key = sha256(repr((_FORMAT, sentencepiece.__version__, names, size, language_tags, text)).encode())[:16]
    path = cache / f"{len(names)}-languages-{size}-{key}.model"
    try:
        found = _cached(path)
        if found is None:
            with locked(cache.parent):  # several ranks may ask at once: one trains, the others find it
                found = _cached(path)
                if found is None:
                    found = train_vocabulary(drawn, size, names if language_tags else ())
                    _write_atomically(path, found.model)
    except OSError as error:
        raise DataError(f"the vocabulary {path} cannot be kept: {error}. Vocabularies go below --data.root.") from error
    return found


def _cached(path: Path) -> Vocabulary | None:
    """The vocabulary in a file; None where there is none, or a damaged one, which is trained again."""
    try:
        return Vocabulary(path.read_bytes())
    except (FileNotFoundError, RuntimeError):
        return None


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _tag(language: str) -> str:
    return f"<{language}>"
