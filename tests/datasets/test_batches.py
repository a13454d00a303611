"""Encoded pairs and padded batches."""

from __future__ import annotations

import pytest
import torch

from repro.datasets.batches import EncodedPair, EncodedPairs, LengthReport, collate
from repro.datasets.paths import DataError
from repro.datasets.translation import Pair
from repro.datasets.vocabulary import Vocabulary, train_vocabulary
from tests.datasets.builders import english, foreign

PAIRS = [Pair("de", foreign(number, "de"), english(number), number) for number in range(50)]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    lines = [pair.source for pair in PAIRS] + [pair.english for pair in PAIRS]
    return train_vocabulary(lines, 330, ["de"])


def test_items_decode_to_their_pair(vocabulary: Vocabulary) -> None:
    data = EncodedPairs(PAIRS, vocabulary)
    assert len(data) == 50 and data.report == LengthReport(50, 0, 0)
    for item in (data[0], data[49]):
        assert vocabulary.decode(item.source) == PAIRS[item.index].source
        assert vocabulary.decode(item.target) == PAIRS[item.index].english


def test_limits_drop_and_say_so(vocabulary: Vocabulary) -> None:
    long = (
        Pair("de", "wort " * 60, "word", 0),
        Pair("de", "wort", "word " * 60, 0),
        Pair("de", "wort " * 60, "word " * 60, 0),
    )
    data = EncodedPairs([*long, *PAIRS], vocabulary, max_source=50, max_target=50)
    assert data.report == LengthReport(kept=50, source_too_long=2, target_too_long=1)
    assert str(data.report) == "50 pairs kept, 3 dropped (2 sources and 1 targets too long)"
    assert [item.index for item in data.items] == list(range(3, 53))
    limit = max(len(item.source) for item in data.items)
    assert EncodedPairs(PAIRS, vocabulary, max_source=limit).report.kept == 50
    assert EncodedPairs(PAIRS, vocabulary, max_source=limit - 1).report.source_too_long > 0


def test_nothing_left_is_an_error(vocabulary: Vocabulary) -> None:
    with pytest.raises(DataError, match="none of 50 pairs is within max_source=1 and max_target=None"):
        EncodedPairs(PAIRS, vocabulary, max_source=1)


def test_tag_stands_before_the_source(vocabulary: Vocabulary) -> None:
    plain, tagged = EncodedPairs(PAIRS, vocabulary), EncodedPairs(PAIRS, vocabulary, tag_source=True)
    assert tagged[7].source == (vocabulary.tag_id("de"), *plain[7].source)
    assert tagged[7].target == plain[7].target


def test_collate() -> None:
    source, target_in, target_out = collate([EncodedPair((10, 11), (20,), 0), EncodedPair((12,), (21, 22), 1)])
    assert source.tolist() == [[10, 11, 3], [12, 3, 0]]
    assert target_in.tolist() == [[2, 20, 0], [2, 21, 22]]
    assert target_out.tolist() == [[20, 3, 0], [21, 22, 3]]
    assert source.dtype == target_in.dtype == target_out.dtype == torch.int64


def test_collate_to_fixed_lengths() -> None:
    items = [EncodedPair((10, 11), (20,), 0)]
    source, target_in, target_out = collate(items, pad_id=9, pad_to=(4, 3))
    assert source.tolist() == [[10, 11, 3, 9]]
    assert (target_in.tolist(), target_out.tolist()) == ([[2, 20, 9]], [[20, 3, 9]])
    with pytest.raises(DataError, match="3 pieces does not fit pad_to=2"):
        collate(items, pad_to=(2, 3))
