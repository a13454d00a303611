"""The shared vocabulary: round trip, special pieces, temperature, cache."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch

from repro.datasets.paths import DataError
from repro.datasets.translation import Pair
from repro.datasets.vocabulary import (
    Vocabulary,
    load_vocabulary,
    sample_lines,
    sampling_probabilities,
    sampling_weights,
    train_vocabulary,
)
from tests.datasets.builders import english, foreign, write_corpus

SIZE = 330
LINES = [english(number) for number in range(100)] + [foreign(number, "de") for number in range(100)]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return train_vocabulary(LINES, SIZE)


@pytest.mark.parametrize("text", ["alpha1 beta2 gamma3", "never seen, Ünïcode 日本語 ẞ", "…", "a", ""])
def test_round_trip_of_any_text(vocabulary: Vocabulary, text: str) -> None:
    pieces = vocabulary.encode(text)
    assert vocabulary.decode(pieces) == text
    assert not {vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id} & set(pieces)
    assert all(0 <= piece < vocabulary.size for piece in pieces)
    assert vocabulary.encode_many([text, text]) == [pieces, pieces]


def test_sizes_and_special_pieces(vocabulary: Vocabulary) -> None:
    assert len(vocabulary) == vocabulary.size == SIZE
    assert [vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id] == [0, 1, 2, 3]


def test_decode_stops_at_the_end_piece(vocabulary: Vocabulary) -> None:
    pieces = vocabulary.encode("alpha1 beta2")
    row = torch.tensor([vocabulary.bos_id, *pieces, vocabulary.eos_id, *pieces, vocabulary.pad_id])
    assert vocabulary.decode(row) == "alpha1 beta2"


def test_training_is_repeatable_and_pickling_keeps_it(vocabulary: Vocabulary) -> None:
    assert train_vocabulary(LINES, SIZE).model == vocabulary.model
    assert pickle.loads(pickle.dumps(vocabulary)).encode("alpha7") == vocabulary.encode("alpha7")


def test_tags(vocabulary: Vocabulary) -> None:
    tagged = train_vocabulary(LINES, SIZE, ["de", "pt_BR"])
    assert len({tagged.tag_id("de"), tagged.tag_id("pt_BR")}) == 2
    with pytest.raises(DataError, match=r"no tag for 'de'.*language_tags=True"):
        vocabulary.tag_id("de")


def test_size_that_does_not_suit() -> None:
    for size in (100, 100_000):
        with pytest.raises(DataError, match=f"size={size} .*Choose another size"):
            train_vocabulary(LINES, size)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.9, 0.09, 0.01]), (5.0, [0.9**0.2, 0.09**0.2, 0.01**0.2]), (math.inf, [1, 1, 1])],
)
def test_temperature(temperature: float, expected: list[float]) -> None:
    found = sampling_probabilities({"a": 90, "b": 9, "c": 1}, temperature)
    assert list(found.values()) == pytest.approx([value / sum(expected) for value in expected])


@pytest.mark.parametrize(
    ("sizes", "temperature"), [({}, 5.0), ({"a": 0}, 5.0), ({"a": 1}, 0.0), ({"a": 1}, -1.0), ({"a": 1}, math.nan)]
)
def test_temperature_refuses(sizes: dict[str, int], temperature: float) -> None:
    with pytest.raises(DataError, match=r"at least one sentence|must be positive"):
        sampling_probabilities(sizes, temperature)


def test_weights_of_sentences_add_up_to_their_language() -> None:
    languages = ["a"] * 90 + ["b"] * 10
    weights = sampling_weights(languages, 2.0)
    shares = sampling_probabilities({"a": 90, "b": 10}, 2.0)
    assert weights[:90].sum().item() == pytest.approx(shares["a"])
    assert weights[90:].sum().item() == pytest.approx(shares["b"])
    assert len(weights[:90].unique()) == 1


def test_sampled_lines_repeat_small_languages_but_no_english() -> None:
    pairs = [Pair("big", f"b{number}", f"e{number}", number) for number in range(90)]
    pairs += [Pair("small", f"s{number}", f"e{number}", number) for number in range(10)]
    lines = Counter(sample_lines(pairs, 60, math.inf, seed=1))
    assert sum(lines[f"b{number}"] for number in range(90)) == 30 and max(lines[f"b{n}"] for n in range(90)) == 1
    assert [lines[f"s{number}"] for number in range(10)] == [3] * 10
    assert sum(lines[f"e{number}"] for number in range(90)) == 60 and max(lines[f"e{n}"] for n in range(90)) == 1
    assert [Counter(sample_lines(pairs, 90, seed=1))[f"e{number}"] for number in range(90)] == [1] * 90
    assert sample_lines(pairs, 60, seed=1) == sample_lines(pairs, 60, seed=1) != sample_lines(pairs, 60, seed=2)


def test_cache(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["de", "fr"], 60)

    def cached() -> list[Path]:
        return sorted((tmp_path / "vocab").iterdir())

    first = load_vocabulary(["de", "fr"], SIZE, lines=50, root=tmp_path)
    (path,) = cached()
    stamp = path.stat().st_mtime_ns
    assert load_vocabulary(["fr", "de"], SIZE, lines=50, root=tmp_path).model == first.model
    assert cached() == [path] and path.stat().st_mtime_ns == stamp
    for change in ({"languages": ["de"]}, {"size": SIZE + 1}, {"seed": 1}, {"language_tags": True}):
        load_vocabulary(**{"languages": ["de", "fr"], "size": SIZE, "lines": 50, "root": tmp_path, **change})
    assert len(cached()) == 5 and all(path.suffix == ".model" for path in cached())


@pytest.mark.parametrize("left", [0, 1000])
def test_a_damaged_vocabulary_in_the_cache_is_trained_again(left: int, tmp_path: Path) -> None:
    """An empty file, of a machine that lost power, stopped every run until it was deleted by hand."""
    write_corpus(tmp_path, ["de"], 60)
    first = load_vocabulary(["de"], SIZE, lines=50, root=tmp_path)
    (path,) = (tmp_path / "vocab").iterdir()
    path.write_bytes(first.model[:left])
    assert load_vocabulary(["de"], SIZE, lines=50, root=tmp_path).model == first.model == path.read_bytes()


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["de"], 60)
    (tmp_path / "vocab").write_text("a file where the folder would be", encoding="utf-8")
    with pytest.raises(DataError, match=r"vocab.* cannot be kept"):
        load_vocabulary(["de"], SIZE, lines=50, root=tmp_path)


def test_vocabulary_sees_the_training_split_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path, ["de"], 60)
    held_out = {text for text, part in zip(corpus.english, corpus.parts, strict=True) if part != "train"}
    seen: list[str] = []

    def train(lines: list[str], size: int, languages: list[str]) -> Vocabulary:
        seen.extend(lines)
        return train_vocabulary(lines, size, languages)

    monkeypatch.setattr("repro.datasets.vocabulary.train_vocabulary", train)
    load_vocabulary(["de"], SIZE, lines=50, root=tmp_path)
    assert len(held_out) == 10 and seen and not held_out & set(seen)
