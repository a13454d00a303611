"""The translation corpus: from twelve wheels to sentence pairs in about a hundred languages, originals in English."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from repro.datasets.archives import read_catalogue
from repro.datasets.cleaning import clean, english_length_is_right, is_in_script, main_script
from repro.datasets.clusters import find_clusters, split_clusters

MIN_PAIRS = 30
HELD_OUT = {"test": 800, "dev": 300}
LARGEST_HELD_OUT_CLUSTER = 8
HELD_OUT_LANGUAGES = 20

_CATALOGUE = re.compile(r"(?:^|/)locale/(?P<language>[^/]+)/LC_MESSAGES/[^/]+\.mo$")
_COMPONENT = re.compile(
    r"^(?P<group>homeassistant/components/[^/]+/translations/(?:[a-z_]+\.)?)(?P<language>[A-Za-z0-9-]+)\.json$"
)
_FRAGMENT = re.compile(
    r"^(?P<group>hass_frontend/static/translations/(?:[a-z-]+/)?)(?P<language>[A-Za-z0-9-]+)-[0-9a-f]{32}\.json$"
)
_LICENCE = re.compile(r"^[^/]+\.dist-info/(?:licenses/)?(?:LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*$", re.IGNORECASE)

# Regional codes that differ in writing or wording; every other region is folded into its language.
_KEPT_REGIONS = frozenset(
    {"pt_BR", "es_AR", "es_MX", "es_CO", "es_VE", "es_419", "fr_CA", "zh_Hans", "zh_Hant", "sr_Latn"}
)
_RENAMED = {
    "no": "nb", "zh": "zh_Hans", "cmn": "zh_Hans", "zh_CN": "zh_Hans", "zh_SG": "zh_Hans", "zh_TW": "zh_Hant",
    "zh_HK": "zh_Hant", "sr_latin": "sr_Latn",
}  # fmt: skip

RawPair = tuple[str, str, str]
"""(language, English, translation)"""


@dataclass(frozen=True)
class Corpus:
    """The built corpus.

    Attributes:
        english: the English sentences, sorted.
        parts: ``"train"``, ``"dev"`` or ``"test"`` per sentence.
        clusters: number of the cluster of near duplicates per sentence.
        translations: per language, sentence number -> translation.
    """

    english: list[str]
    parts: list[str]
    clusters: list[int]
    translations: dict[str, dict[int, str]]


def language_of(code: str) -> str | None:
    """The corpus's name of a language code as packages spell it; None for English and for spelling reforms."""
    code = code.partition(".")[0].replace("-", "_").replace("@", "_")
    code = _RENAMED.get(code, code)
    if code.split("_")[0] == "en" or code.endswith("petr1708"):
        return None
    return code if code in _KEPT_REGIONS else code.split("_")[0]


def is_wanted(member: str) -> bool:
    """Whether the corpus (or its list of licences) is made from this member of a wheel."""
    return any(pattern.search(member) for pattern in (_CATALOGUE, _COMPONENT, _FRAGMENT, _LICENCE))


def is_licence(member: str) -> bool:
    """Whether this member of a wheel is its licence or its list of authors."""
    return bool(_LICENCE.search(member))


def raw_pairs(members: Mapping[str, bytes]) -> Iterator[RawPair]:
    """All messages of one wheel: gettext catalogues, and JSON files joined to the English one by key."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(members):
        if found := _CATALOGUE.search(name):
            language = language_of(found["language"])
            if language is not None:
                for english, foreign in read_catalogue(members[name]):
                    yield language, english, foreign
        elif found := _COMPONENT.search(name) or _FRAGMENT.search(name):
            groups.setdefault(found["group"], []).append((found["language"], name))
    for files in groups.values():
        english_name = next((name for code, name in files if code == "en"), None)
        if english_name is None:
            continue
        english_texts = dict(_flatten(json.loads(members[english_name])))
        for code, name in files:
            language = language_of(code)
            if language is not None:
                for key, foreign in _flatten(json.loads(members[name])):
                    if key in english_texts:
                        yield language, english_texts[key], foreign


def _flatten(tree: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}/{key}")
    elif isinstance(tree, str):
        yield prefix, tree


def clean_pairs(raw: Iterable[RawPair]) -> dict[str, dict[str, str]]:
    """Clean, filter and deduplicate: per language, English sentence -> its most frequent translation.

    Dropped: English of other than 3 to 40 words, untranslated messages, translations in another script than the
    language's own, lengths that differ about fourfold or more, languages with fewer than ``MIN_PAIRS`` sentences.
    """
    counts: dict[str, dict[str, Counter[str]]] = {}
    cleaned: dict[str, str | None] = {}

    def cached(text: str) -> str | None:
        if text not in cleaned:
            cleaned[text] = clean(text)
        return cleaned[text]

    for language, english_raw, foreign_raw in raw:
        english, foreign = cached(english_raw), cached(foreign_raw)
        if english is None or foreign is None or english.casefold() == foreign.casefold():
            continue
        shorter, longer = sorted((len(english), len(foreign)))
        if english_length_is_right(english) and longer <= 4 * shorter + 20:
            counts.setdefault(language, {}).setdefault(english, Counter())[foreign] += 1

    corpus: dict[str, dict[str, str]] = {}
    for language in sorted(counts):
        best = {english: max(sorted(seen), key=lambda text: seen[text]) for english, seen in counts[language].items()}
        script = main_script(best.values())
        kept = {english: foreign for english, foreign in best.items() if is_in_script(foreign, script)}
        if len(kept) >= MIN_PAIRS:
            corpus[language] = kept
    return corpus


def build_corpus(raw: Iterable[RawPair], held_out: Mapping[str, int] | None = None, seed: int = 0) -> Corpus:
    """Clean, find the clusters of near duplicates of the English sentences, and split by cluster.

    Clusters that hold a sentence translated into at least ``HELD_OUT_LANGUAGES`` languages (or all, where the corpus
    has fewer) are held out first come first served by a hash, so that the test set covers many languages.
    """
    by_language = clean_pairs(raw)
    english = sorted({sentence for pairs in by_language.values() for sentence in pairs})
    numbers = {sentence: number for number, sentence in enumerate(english)}
    translated = Counter(sentence for pairs in by_language.values() for sentence in pairs)
    needed = min(HELD_OUT_LANGUAGES, len(by_language))
    clusters = find_clusters(english)
    parts = split_clusters(
        english,
        clusters,
        dict(HELD_OUT if held_out is None else held_out),
        largest=LARGEST_HELD_OUT_CLUSTER,
        seed=seed,
        eligible=[translated[sentence] >= needed for sentence in english],
    )
    translations = {
        language: {numbers[sentence]: pairs[sentence] for sentence in sorted(pairs)}
        for language, pairs in by_language.items()
    }
    return Corpus(english, parts, clusters, translations)
