"""Messages become plain sentences."""

from __future__ import annotations

import pytest

from repro.datasets.cleaning import clean, english_length_is_right, is_in_script, main_script, words_of


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Open the file", "Open the file"),
        ("  Open\n  the\tfile ", "Open the file"),
        ("Delete %(count)d files from %(name)s?", "Delete X files from X?"),
        ("Welcome, {name}!", "Welcome, X!"),
        ("Took %.3fs of %d", "Took Xs of X"),
        ("Value {{ value }} of ${other} and $third", "Value X of X and X"),
        ("Save %s, %s", "Save X"),
        ("100% of it", "100% of it"),
        ("See https://example.org/page?x=1 for more", "See X for more"),
        ("Read [the manual](https://example.org)", "Read the manual"),
        ("[1:Note:] read [2:this]", "Note: read this"),
        ("A <b>bold</b>, <a href='x'>linked</a> word.<br>Next", "A bold, linked word. Next"),
        ("Fish &amp; chips", "Fish & chips"),
        ("&Open the file", "Open the file"),
        ("ファイルを開く(&O)", "ファイルを開く"),
        ("Use `code` and **strong** words", "Use code and strong words"),
        ("e\u0301te\u0301", "été"),
    ],
)
def test_clean(message: str, sentence: str) -> None:
    assert clean(message) == sentence


@pytest.mark.parametrize(
    "message",
    ["", "   ", "<br>", "{n, plural, one {# file} other {# files}}", "[%key:common::title%]", "broken {brace here"],
)
def test_what_cannot_be_a_sentence(message: str) -> None:
    assert clean(message) is None


@pytest.mark.parametrize(
    ("english", "right"),
    [
        ("Two words", False),
        ("Now three words", True),
        ("X X X", False),
        ("X of X", False),
        ("Delete X files", True),
        ("1 2 3", False),
        (" ".join(["word"] * 40), True),
        (" ".join(["word"] * 41), False),
    ],
)
def test_length(english: str, right: bool) -> None:
    assert english_length_is_right(english) is right


def test_words_of_ignores_case_order_and_punctuation() -> None:
    assert words_of("The file, the FILE!") == {"the", "file"}


@pytest.mark.parametrize(
    ("line", "script", "inside"),
    [
        ("Открыть файл", "Cyrillic", True),
        ("Otvori datoteku", "Cyrillic", False),
        ("ファイルを Home Assistant で開く", "Han and kana", True),
        ("Open in Home Assistant は", "Han and kana", False),
        ("Open the файл", "Latin", False),
        ("Open the file for я", "Latin", True),
        ("X 123", "Latin", False),
        ("설정 열기", "Hangul", True),
    ],
)
def test_script(line: str, script: str, inside: bool) -> None:
    assert is_in_script(line, script) is inside


def test_main_script_is_that_of_most_letters() -> None:
    assert main_script(["Открыть файл", "Home", "X X X X X X X X X X"]) == "Cyrillic"
    assert main_script([]) == "Latin"
