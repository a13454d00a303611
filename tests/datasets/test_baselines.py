"""Baselines against a slow but plain implementation."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.datasets.baselines import copy_source, nearest_neighbour
from repro.datasets.paths import DataError
from repro.datasets.translation import Pair

SENTENCES = st.lists(st.text("abÄ 日", min_size=1, max_size=8), min_size=1, max_size=6)


def pairs(language: str, sources: list[str]) -> list[Pair]:
    return [Pair(language, source, f"{language} {index}", index) for index, source in enumerate(sources)]


def grams(text: str) -> Counter[str]:
    padded = f" {text.lower()} "
    return Counter(padded[i : i + n] for n in (2, 3, 4) for i in range(len(padded) - n + 1))


def slow_similarities(known: list[str], query: str) -> list[float]:
    counts = [grams(text) for text in known]
    documents = Counter(gram for row in counts for gram in row)
    weights = [{g: c * math.log((1 + len(known)) / documents[g]) for g, c in row.items()} for row in counts]
    asked = {g: c * math.log((1 + len(known)) / documents[g]) for g, c in grams(query).items() if g in documents}
    return [
        sum(asked.get(g, 0.0) * w for g, w in row.items()) / (math.sqrt(sum(w * w for w in row.values())) or 1.0)
        for row in weights
    ]


@given(SENTENCES, SENTENCES)
@settings(max_examples=60, deadline=None)
def test_nearest_neighbour_is_the_most_similar(known: list[str], queries: list[str]) -> None:
    hypotheses = nearest_neighbour(pairs("de", known), pairs("de", queries))
    for query, hypothesis in zip(queries, hypotheses, strict=True):
        similarities = slow_similarities(known, query)
        assert similarities[int(hypothesis.split()[1])] == pytest.approx(max(similarities), rel=1e-5, abs=1e-6)


def test_neighbours_are_of_the_same_language_and_in_order() -> None:
    training = [*pairs("de", ["die rote Tür", "das grüne Haus"]), *pairs("fr", ["la porte rouge", "das grüne Haus"])]
    test = [Pair("fr", "porte rouge", "", 0), Pair("de", "ein grünes Haus", "", 0), Pair("de", "rote Türen", "", 0)]
    assert nearest_neighbour(training, test) == ["fr 0", "de 1", "de 0"]


def test_more_queries_than_a_block_holds() -> None:
    sources = [f"wort{number} satz{number * 7}" for number in range(300)]
    known = pairs("de", sources)
    assert nearest_neighbour(known, known) == [pair.english for pair in known]


def test_language_without_training_is_an_error() -> None:
    with pytest.raises(DataError, match="training sentences in 'it'"):
        nearest_neighbour(pairs("de", ["eins"]), pairs("it", ["uno"]))


def test_copy_source() -> None:
    assert copy_source(pairs("de", ["eins", "zwei"])) == ["eins", "zwei"]
