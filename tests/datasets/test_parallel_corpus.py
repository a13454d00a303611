"""Corpora of the user's own: three layouts of the same sentences, and what is wrong in real files."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from repro.datasets.parallel import MAX_CHARACTERS, NO_CLUSTER
from repro.datasets.parallel_corpus import LayoutName, open_corpus
from repro.datasets.paths import DataError
from repro.datasets.translation import Pair

Sentences = Sequence[tuple[str, str]]
Writer = Callable[[Path, str, str, Sentences], None]

SENTENCES: dict[str, dict[str, Sentences]] = {
    "de": {
        "train": [("eins", "one"), ("zwei drei", "two three")],
        "dev": [("vier", "four")],
        "test": [("f\u2028x", "z")],
    },
    "zh-Hant": {"train": [("\u4e00", "one")], "dev": [("\u4e8c", "two")], "test": [("\u4e09", "three")]},
}


def write(path: Path, lines: Sequence[str], *, compress: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    if compress:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


def write_moses(folder: Path, language: str, split: str, pairs: Sentences) -> None:
    stem = f"{ {'train': 'corpus', 'dev': 'valid', 'test': 'test'}[split] }.{language}-en"
    write(folder / f"{stem}.{language}", [source for source, _ in pairs], compress=split == "train")
    write(folder / f"{stem}.en", [target for _, target in pairs])


def write_tsv(folder: Path, language: str, split: str, pairs: Sentences) -> None:
    # One language is written the other way round, as its name says.
    turned = language == "de"
    lines = ["\t".join(pair[::-1] if turned else pair) for pair in pairs]
    write(folder / f"{split}.{f'en-{language}' if turned else f'{language}-en'}.tsv", lines, compress=split == "dev")


def write_opus100(folder: Path, language: str, split: str, pairs: Sentences) -> None:
    pair = "-".join(sorted((language, "en")))
    inside = folder / "supervised" / pair
    write(inside / f"opus.{pair}-{split}.{language}", [source for source, _ in pairs])
    write(inside / f"opus.{pair}-{split}.en", [target for _, target in pairs], compress=split == "test")


LAYOUTS: Mapping[LayoutName, Writer] = {"moses": write_moses, "tsv": write_tsv, "opus100": write_opus100}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> LayoutName:
    name: LayoutName = request.param
    return name


def fill(layout: LayoutName, folder: Path, sentences: Mapping[str, Mapping[str, Sentences]] = SENTENCES) -> None:
    for language, splits in sentences.items():
        for split, pairs in splits.items():
            LAYOUTS[layout](folder, language, split, pairs)


def test_pairs_come_back(layout: LayoutName, tmp_path: Path) -> None:
    fill(layout, tmp_path)
    (tmp_path / "README").write_text("not a corpus file")
    corpus = open_corpus(layout, tmp_path)
    corpus.check(None)
    assert corpus.languages(None) == ["de", "zh-Hant"]
    for split in ("train", "dev", "test"):
        pairs, skipped, absent = corpus.pairs(["zh-Hant", "de"], split)
        assert pairs == [Pair(name, *one, NO_CLUSTER) for name in ("zh-Hant", "de") for one in SENTENCES[name][split]]
        assert (skipped.total, str(skipped), absent) == (0, "no pair skipped", [])


def test_opus100_may_be_given_by_its_inner_folder(tmp_path: Path) -> None:
    fill("opus100", tmp_path)
    assert len(open_corpus("opus100", tmp_path / "supervised").pairs(None, "train")[0]) == 3


def test_another_target_and_other_names(tmp_path: Path) -> None:
    write(tmp_path / "europarl.de-fr.de", ["eins"])
    write(tmp_path / "europarl.de-fr.fr", ["un"])
    corpus = open_corpus("moses", tmp_path, "fr", {"train": "europarl", "dev": "europarl"})
    corpus.check(["de"])
    assert corpus.pairs(None, "train")[0] == [Pair("de", "eins", "un", NO_CLUSTER)]


def test_byte_order_mark_and_line_ends_of_other_systems(tmp_path: Path) -> None:
    (tmp_path / "train.de-en.tsv").write_bytes("\ufeffeins\tone\r\n zwei \t two\r\ndrei\tthree".encode())
    pairs, _, _ = open_corpus("tsv", tmp_path).pairs(None, "train")
    assert [(pair.source, pair.english) for pair in pairs] == [("eins", "one"), ("zwei", "two"), ("drei", "three")]


def test_empty_and_over_long_sides_are_counted(layout: LayoutName, tmp_path: Path) -> None:
    long = "x" * (MAX_CHARACTERS + 1)
    bad = [("a", "b"), ("", "c"), ("d", "  "), ("", ""), (long, "e"), ("f", long), ("g", long[1:])]
    fill(layout, tmp_path, {"de": {"train": bad}})
    pairs, skipped, _ = open_corpus(layout, tmp_path).pairs(None, "train")
    assert [pair.source for pair in pairs] == ["a", "g"]
    assert (skipped.empty, skipped.too_long) == (3, 2)
    assert str(skipped).startswith("5 pairs skipped: 3 with an empty side (first: ")
    assert skipped.first_empty is not None and skipped.first_too_long is not None
    assert (skipped.first_empty.line, skipped.first_too_long.line) == (2, 5)
    assert f"{skipped.first_too_long.path}, line 5" in str(skipped)


@pytest.mark.parametrize(("left", "right"), [(2, 5), (5, 2), (0, 1)])
def test_unequal_line_counts(tmp_path: Path, left: int, right: int) -> None:
    write(tmp_path / "train.de-en.de", ["wort"] * left)
    write(tmp_path / "train.de-en.en", ["word"] * right)
    short, long = ("de", "en") if left < right else ("en", "de")
    message = rf"train\.de-en\.{short} has {min(left, right)} lines but .*train\.de-en\.{long} has {max(left, right)}"
    with pytest.raises(DataError, match=message):
        open_corpus("moses", tmp_path).pairs(None, "train")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "gut\tgood\nm\u00fcde\ttired\n".encode("latin1"),
            r"train\.de-en\.tsv, line 2: not UTF-8 .*byte 2 of the line.*iconv",
        ),
        ("gut\tgood\n".encode("utf-16-le"), r"train\.de-en\.tsv, line 1: holds a zero byte, as UTF-16 does"),
        (b"gut\tgood\neins\tzwei\tdrei\n", r"train\.de-en\.tsv, line 2: 3 columns in place of 2"),
        (b"gut\tgood\nonly one\n", r"train\.de-en\.tsv, line 2: 1 columns in place of 2"),
        (b"\n\n\t\n", r"no usable sentence pair for 'de' \(3 pairs skipped: 3 with an empty side"),
    ],
    ids=["latin1", "utf-16", "three columns", "one column", "nothing"],
)
def test_bad_files_are_named_with_their_line(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "train.de-en.tsv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        open_corpus("tsv", tmp_path).pairs(None, "train")


@pytest.mark.parametrize("damage", ["cut", "no gzip at all", "one byte"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    data = gzip.compress(b"".join(b"%d eins\tone\n" % number for number in range(5000)))
    wrong = {"cut": data[: len(data) // 2], "no gzip at all": b"eins\tone\n", "one byte": data[:-6] + b"\0" + data[-5:]}
    (tmp_path / "train.de-en.tsv.gz").write_bytes(wrong[damage])
    with pytest.raises(DataError, match=r"train\.de-en\.tsv\.gz(:| cannot be read)"):
        open_corpus("tsv", tmp_path).pairs(None, "train")


def test_missing_languages_splits_and_folders(layout: LayoutName, tmp_path: Path) -> None:
    fill(layout, tmp_path, {"de": {"train": [("a", "b")], "dev": [("c", "d")]}, "fr": {"train": [("e", "f")]}})
    corpus = open_corpus(layout, tmp_path)
    corpus.check(None)
    with pytest.raises(
        DataError, match=r"no training files for es, it in .*looked for .*es.*languages there are de, fr"
    ):
        corpus.check(["de", "es", "it"])
    with pytest.raises(DataError, match=r"has no 'test' split in .*looked for .*test"):
        corpus.pairs(None, "test")
    pairs, _, absent = corpus.pairs(None, "dev")
    assert (len(pairs), absent) == (1, ["fr"])
    with pytest.raises(DataError, match=r"folder='.*nowhere': there is no such folder"):
        open_corpus(layout, tmp_path / "nowhere").check(None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no training files of corpus='\w+' in .*empty: looked for .*LANGUAGE"):
        open_corpus(layout, tmp_path / "empty").check(None)


def test_a_missing_side(tmp_path: Path) -> None:
    fill("moses", tmp_path)
    (tmp_path / "corpus.de-en.en").unlink()
    with pytest.raises(DataError, match=r"corpus\.de-en\.de\.gz has no .*corpus\.de-en\.en\[\.gz\] beside it"):
        open_corpus("moses", tmp_path).check(None)


@pytest.mark.parametrize(
    ("name", "stems", "message"),
    [
        ("opus100", {"train": "x"}, "OPUS-100 have names of their own"),
        ("moses", {"val": "x"}, "stems has val; its keys are train, dev, test"),
        ("xml", None, "corpus='xml': choose packaged, moses, tsv or opus100"),
    ],
)
def test_wrong_options(tmp_path: Path, name: LayoutName, stems: dict[str, str] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_corpus(name, tmp_path, stems=stems)
