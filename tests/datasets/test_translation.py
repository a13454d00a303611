"""The reader of the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.datasets.paths import DataError
from repro.datasets.translation import Pair, language_sizes, load_pairs
from tests.datasets.builders import english, foreign, write_corpus


def test_pairs_come_back_as_they_were_built(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, ["de", "fr"], 40)
    seen = [pair for split in ("train", "dev", "test") for pair in load_pairs(split=split, root=tmp_path)]
    assert {(pair.language, pair.source, pair.english) for pair in seen} == {
        (language, foreign(number, language), english(number)) for language in ("de", "fr") for number in range(40)
    }
    assert len(seen) == 80
    number = corpus.english.index(seen[0].english)
    assert seen[0].cluster == corpus.clusters[number]


def test_split_keeps_english_sentences_apart(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["de", "fr"], 40)
    sentences = {
        split: {pair.english for pair in load_pairs(split=split, root=tmp_path)} for split in ("train", "dev", "test")
    }
    assert {split: len(its) for split, its in sentences.items()} == {"train": 30, "dev": 5, "test": 5}
    assert len(set.union(*sentences.values())) == 40


def test_languages_in_the_order_asked(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["de", "fr", "it"], 40)
    assert list(dict.fromkeys(pair.language for pair in load_pairs(["it", "de"], root=tmp_path))) == ["it", "de"]
    assert language_sizes(tmp_path) == {"de": 30, "fr": 30, "it": 30}
    assert isinstance(load_pairs(["it"], "test", tmp_path)[0], Pair)


@pytest.mark.parametrize(
    ("languages", "split", "message"),
    [(["xx", "de"], "train", "unknown languages xx; the corpus has de"), (None, "valid", "unknown split 'valid'")],
)
def test_wrong_names(tmp_path: Path, languages: list[str] | None, split: str, message: str) -> None:
    write_corpus(tmp_path, ["de"], 40)
    with pytest.raises(DataError, match=message):
        load_pairs(languages, split, tmp_path)


def test_missing_corpus_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"fetch --only translation --root"):
        load_pairs(root=tmp_path)


def test_damaged_table_is_named(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["de"], 40)
    path = tmp_path / "translation" / "de.tsv.gz"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(DataError, match=r"de\.tsv\.gz cannot be read"):
        load_pairs(root=tmp_path)
