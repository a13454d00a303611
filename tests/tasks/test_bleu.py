from __future__ import annotations

import math

import pytest
import sacrebleu

from repro.datasets.batches import EncodedPair
from repro.datasets.translation import Pair
from repro.tasks.bleu import baselines, corpus_bleu, unigram_nll

REFERENCES = ["the light in the kitchen is on", "open the door of the garage", "no device was found here today"]


def test_equals_sacrebleu() -> None:
    hypotheses = ["the light in the kitchen is off", "open a door of the garage", "no device found today"]
    found = corpus_bleu(hypotheses, REFERENCES)
    assert found.score == sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
    assert 0 < found.score < 100
    assert "tok:13a" in found.signature
    assert f"version:{sacrebleu.__version__}" in found.signature


def test_extremes() -> None:
    assert corpus_bleu(REFERENCES, REFERENCES).score == pytest.approx(100)
    assert corpus_bleu(["", "", ""], REFERENCES).score == 0


def test_baselines_copy_and_look_up() -> None:
    training = [Pair("de", "die tür der garage ist auf", REFERENCES[1], 0), Pair("de", "ganz anderes", "no", 1)]
    test = [Pair("de", "die tür der garage ist zu", REFERENCES[1], 2), Pair("de", REFERENCES[0], REFERENCES[0], 3)]
    found = baselines(training, test)
    assert found.copy == corpus_bleu([pair.source for pair in test], [pair.english for pair in test])
    nearest = [REFERENCES[1], found_second(training, test)]
    assert found.nearest == corpus_bleu(nearest, [pair.english for pair in test])


def found_second(training: list[Pair], test: list[Pair]) -> str:
    from repro.datasets.baselines import nearest_neighbour

    return nearest_neighbour(training, test)[1]


def test_unigram_likelihood_counts_the_end() -> None:
    training = [EncodedPair((9,), (5, 5, 6), 0)]  # with its end: 5 5 6 3
    test = [EncodedPair((9,), (5, 7), 0)]  # 5 7 3
    expected = -(math.log(3 / 14) + math.log(1 / 14) + math.log(2 / 14)) / 3
    assert unigram_nll(training, test, eos_id=3, vocab_size=10) == pytest.approx(expected)
