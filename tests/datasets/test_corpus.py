"""From members of wheels to a corpus."""

from __future__ import annotations

import json

import pytest

from repro.datasets.corpus import MIN_PAIRS, build_corpus, clean_pairs, is_licence, is_wanted, language_of, raw_pairs
from tests.datasets.builders import catalogue, english, foreign


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("de", "de"), ("de_DE", "de"), ("pt-BR", "pt_BR"), ("pt_PT", "pt"), ("zh_CN", "zh_Hans"), ("zh_TW", "zh_Hant"),
        ("zh_CN.GB2312", "zh_Hans"), ("zh-Hant", "zh_Hant"), ("no", "nb"), ("sr@latin", "sr_Latn"),
        ("es-419", "es_419"), ("en", None), ("en-GB", None), ("en_AU", None), ("ru@petr1708", None),
    ],
)  # fmt: skip
def test_language_codes(code: str, language: str | None) -> None:
    assert language_of(code) == language


def test_which_members_are_read() -> None:
    wanted = [
        "tool/locale/de/LC_MESSAGES/django.mo",
        "homeassistant/components/door/translations/de.json",
        "homeassistant/components/door/translations/sensor.de.json",
        "hass_frontend/static/translations/de-0123456789abcdef0123456789abcdef.json",
        "hass_frontend/static/translations/config/pt-BR-0123456789abcdef0123456789abcdef.json",
        "tool-1.0.dist-info/licenses/LICENSE",
        "tool-1.0.dist-info/COPYING",
    ]
    unwanted = ["tool/code.py", "tool/locale/de/LC_MESSAGES/django.po", "tool-1.0.dist-info/RECORD"]
    assert [is_wanted(name) for name in wanted + unwanted] == [True] * len(wanted) + [False] * len(unwanted)
    assert [is_licence(name) for name in wanted] == [False] * 5 + [True] * 2


def test_raw_pairs_join_json_by_key_within_one_file() -> None:
    members = {
        "homeassistant/components/door/translations/en.json": json.dumps({"a": {"b": "Open", "c": "Shut"}}).encode(),
        "homeassistant/components/door/translations/de.json": json.dumps({"a": {"b": "Offen", "x": "Nie"}}).encode(),
        "homeassistant/components/gate/translations/de.json": json.dumps({"a": {"b": "ohne Englisch"}}).encode(),
        "tool/locale/fr/LC_MESSAGES/tool.mo": catalogue([("", "head"), ("Open", "Ouvrir")]),
        "tool/locale/en/LC_MESSAGES/tool.mo": catalogue([("Open", "Open it")]),
    }
    assert sorted(raw_pairs(members)) == [("de", "Open", "Offen"), ("fr", "Open", "Ouvrir")]


def numbered(language: str, count: int = MIN_PAIRS) -> list[tuple[str, str, str]]:
    return [(language, english(number), foreign(number, language)) for number in range(count)]


@pytest.mark.parametrize(
    "pair",
    [
        ("Two words", "zwei Worte"),
        ("Open the file now", "Open the file now"),
        ("Open the file now", "OPEN THE FILE NOW"),
        ("Open the file now", "Открыть этот файл"),
        ("Open the file now", "ein Wort " * 30),
        ("{n, plural, other {three words here}}", "drei Worte hier"),
    ],
)
def test_bad_pairs_are_dropped(pair: tuple[str, str]) -> None:
    assert clean_pairs([*numbered("de"), ("de", *pair)]) == clean_pairs(numbered("de"))


def test_duplicates_leave_the_most_frequent_translation() -> None:
    extra = [("de", "Open the file", text) for text in ("Datei auf", "Datei öffnen", "Datei öffnen")]
    assert clean_pairs([*numbered("de"), *extra])["de"]["Open the file"] == "Datei öffnen"


def test_small_languages_are_left_out() -> None:
    assert set(clean_pairs(numbered("de") + numbered("fr", MIN_PAIRS - 1))) == {"de"}


def test_build_corpus_is_split_by_sentence_for_all_languages_alike() -> None:
    corpus = build_corpus(numbered("de", 60) + numbered("fr", 40), {"test": 6, "dev": 4})
    assert corpus.english == sorted(corpus.english) and len(corpus.english) == 60
    assert corpus.parts.count("test") == 6 and corpus.parts.count("dev") == 4
    # Held out are sentences that all languages have (here at most 20 languages are asked for, there are two).
    assert all(number in corpus.translations["fr"] for number, part in enumerate(corpus.parts) if part != "train")


def test_build_corpus_does_not_depend_on_the_order_of_messages() -> None:
    raw = numbered("de", 60) + numbered("fr", 40)
    assert build_corpus(raw, {"test": 6}) == build_corpus(raw[::-1], {"test": 6})
