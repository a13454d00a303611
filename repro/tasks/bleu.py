"""BLEU and chrF of a translator and of what it has to beat, and the likelihood under the simplest language model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu

from repro.datasets.baselines import copy_source, nearest_neighbour
from repro.datasets.batches import EncodedPair
from repro.datasets.translation import Pair


@dataclass(frozen=True)
class Score:
    """A corpus's BLEU or chrF, 0 to 100, and sacrebleu's signature of how it was computed."""

    score: float
    signature: str


@dataclass(frozen=True)
class Baselines:
    """What a translator has to beat on the same sentences: BLEU of copying and of the nearest training sentence."""

    copy: Score
    nearest: Score


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU by sacrebleu's defaults (13a tokens, mixed case), one reference per sentence."""
    return _score(sacrebleu.BLEU(), hypotheses, references)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2 by sacrebleu's defaults (character 1- to 6-grams, no words), one reference per sentence."""
    return _score(sacrebleu.CHRF(), hypotheses, references)


def _score(metric: sacrebleu.BLEU | sacrebleu.CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()))


def baselines(training: Sequence[Pair], test: Sequence[Pair]) -> Baselines:
    """BLEU on ``test`` of leaving the source as it is, and of the English of the most similar training source."""
    references = [pair.english for pair in test]
    return Baselines(
        corpus_bleu(copy_source(test), references), corpus_bleu(nearest_neighbour(training, test), references)
    )


def unigram_nll(training: Sequence[EncodedPair], test: Sequence[EncodedPair], *, eos_id: int, vocab_size: int) -> float:
    """Mean negative log likelihood of a test token when only its training frequency is known (add-one smoothing).

    Both sides count the end piece, as the loss of the Transformer does.
    """
    counts = Counter(piece for item in training for piece in (*item.target, eos_id))
    total = counts.total() + vocab_size
    tokens = [piece for item in test for piece in (*item.target, eos_id)]
    return -sum(math.log((counts[piece] + 1) / total) for piece in tokens) / len(tokens)
