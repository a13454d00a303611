"""Scores by language: counts add up to the BLEU of all sentences; baselines and training on a tiny corpus."""

from __future__ import annotations

import pytest

from repro.experiments.translation_scores import pooled_bleu, score
from repro.tasks.bleu import corpus_bleu

WORDS = [
    ("the lamp is on now", "the lamp is on"),
    ("turn the heating off", "turn off the heating"),
    ("no device was found here", "no device was found"),
    ("a b c d e", "f g h i j"),
    ("open the window", "open the window in the kitchen please"),
]


def test_pooled_bleu_is_that_of_all_sentences() -> None:
    for cut in range(1, len(WORDS)):
        pooled = pooled_bleu([score(WORDS[:cut]), score(WORDS[cut:])])
        assert pooled == pytest.approx(corpus_bleu([a for a, _ in WORDS], [b for _, b in WORDS]).score)
    for pairs in (WORDS[:1], WORDS[3:4], WORDS):
        expected = corpus_bleu([a for a, _ in pairs], [b for _, b in pairs]).score
        assert pooled_bleu([score(pairs)]) == pytest.approx(expected)


def test_score() -> None:
    same = score([("the lamp is on now", "the lamp is on now")])
    assert same["sentences"] == 1 and same["right"] == same["totals"] == [5, 4, 3, 2]
    assert same["chrf"] == pytest.approx(100) and pooled_bleu([same]) == pytest.approx(100)
    other = score(WORDS[3:4])
    assert other["right"] == [0, 0, 0, 0] and other["chrf"] == 0


def test_bleu_of_nothing() -> None:
    with pytest.raises(ValueError, match="no sentences"):
        pooled_bleu([])
