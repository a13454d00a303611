"""Cleaning of user-interface messages: what a translator sees becomes a plain sentence.

Only Unicode properties that never change once assigned are used, so that the same wheels give the same corpus on every
Python version.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import cache

MIN_WORDS, MAX_WORDS = 3, 40
PLACEHOLDER = "X"

_REFERENCE = re.compile(r"\[%key:|\{[^{}]*,\s*(?:plural|select|selectordinal|number|date|time)\b")
_LINK = re.compile(r"!?\[([^\][]*)\]\([^()\s]*\)")
_NUMBERED = re.compile(r"\[\d+:((?:[^\][\\]|\\.)*)\]")  # Trac's [1:text]
_ADDRESS = re.compile(r"\b(?:https?|ftp|mailto)://[^\s<>\"')\]]+|\bhttps?://\S+")
_BREAK = re.compile(r"</?(?:br|p|div|li|ul|ol|h\d|td|tr)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*/?>|<!--.*?-->", re.DOTALL)
_PLACEHOLDERS = re.compile(
    r"%\([A-Za-z_][\w.]*\)[-#0-9 +.]*[A-Za-z]"  # %(name)s
    r"|\{\{[^{}]*\}\}|\{%[^{}]*%\}|\$\{[^{}]*\}|\{[^{}\s]*\}"  # {{ name }}, {% tag %}, ${name}, {name}
    r"|%\d+\$[a-z]|%[-+#0]*\d*(?:\.\d+)?[sifrgxu](?![a-z])|%\d*d|%\.\d+f"  # %1$s, %s, %d, %.3f
    r"|(?<!\w)\$[A-Za-z_]\w*"  # $name
)
_ACCELERATOR_IN_BRACKETS = re.compile(r"\s*\([&_]\w\)")
_ACCELERATOR = re.compile(r"(?<![\w&])&(?=[^\W\d_]\w)")
_MARKS = re.compile(r"`+|\*{1,3}(?=\S)|(?<=\S)\*{1,3}|'{2,}|={2,}|^#+\s*")
_REPEATED_PLACEHOLDER = re.compile(r"\bX(?:[\s/:.,-]*\bX\b)+")
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"\w+")
_LETTER_WORD = re.compile(r"[^\W\d_]")

# First code points of runs of one script; "" ends a run. Enough to tell the languages of the corpus apart.
_RUNS: tuple[tuple[int, str], ...] = (
    (0x0041, "Latin"), (0x0370, "Greek"), (0x0400, "Cyrillic"), (0x0530, "Armenian"), (0x0590, "Hebrew"),
    (0x0600, "Arabic"), (0x0700, ""), (0x0750, "Arabic"), (0x0780, "Thaana"), (0x07C0, ""), (0x08A0, "Arabic"),
    (0x0900, "Devanagari"), (0x0980, "Bengali"), (0x0A00, "Gurmukhi"), (0x0A80, "Gujarati"), (0x0B00, "Oriya"),
    (0x0B80, "Tamil"), (0x0C00, "Telugu"), (0x0C80, "Kannada"), (0x0D00, "Malayalam"), (0x0D80, "Sinhala"),
    (0x0E00, "Thai"), (0x0E80, "Lao"), (0x0F00, "Tibetan"), (0x1000, "Burmese"), (0x10A0, "Georgian"),
    (0x1100, "Hangul"), (0x1200, "Ethiopic"), (0x13A0, ""), (0x1780, "Khmer"), (0x1800, "Mongolian"), (0x18B0, ""),
    (0x1E00, "Latin"), (0x1F00, "Greek"), (0x2000, ""), (0x2E80, "Han and kana"), (0x3130, "Hangul"),
    (0x3190, "Han and kana"), (0xA000, ""), (0xAC00, "Hangul"), (0xD800, ""), (0xF900, "Han and kana"), (0xFB00, ""),
    (0xFB50, "Arabic"), (0xFE00, ""), (0xFE70, "Arabic"), (0xFF00, ""),
)  # fmt: skip
_STARTS = [start for start, _ in _RUNS]


def clean(text: str) -> str | None:
    """One message as a plain sentence, or None where it cannot be made one.

    Placeholders and addresses become ``X``, mark-up and keyboard accelerators go, white space is single, the Unicode
    form is NFC. Messages that select their wording (ICU plural and select) or refer to other keys give None.
    """
    if _REFERENCE.search(text):
        return None
    text = unicodedata.normalize("NFC", html.unescape(text))
    text = _LINK.sub(r"\1", text)
    text = _NUMBERED.sub(r"\1", text)
    text = _ADDRESS.sub(PLACEHOLDER, text)
    text = _TAG.sub("", _BREAK.sub(" ", text))
    text = _PLACEHOLDERS.sub(PLACEHOLDER, text)
    text = _ACCELERATOR_IN_BRACKETS.sub("", text)
    text = _ACCELERATOR.sub("", text)
    text = _MARKS.sub("", text)
    text = _SPACE.sub(" ", text).strip()
    text = _REPEATED_PLACEHOLDER.sub(PLACEHOLDER, text)
    if not text or "{" in text or "}" in text:
        return None
    return text


def english_length_is_right(english: str) -> bool:
    """Whether ``english`` has 3 to 40 words, at least two of which hold a letter besides placeholders."""
    words = english.split()
    spelled = sum(1 for word in words if word.strip("'\".,:;!?()") != PLACEHOLDER and _LETTER_WORD.search(word))
    return MIN_WORDS <= len(words) <= MAX_WORDS and spelled >= 2


def words_of(sentence: str) -> frozenset[str]:
    """The set of lower-case words of a sentence: what near duplicates are compared by."""
    return frozenset(_WORD.findall(sentence.lower()))


@cache
def script_of(character: str) -> str:
    """Name of the script of a letter; empty for anything else."""
    if not character.isalpha():
        return ""
    index = bisect_right(_STARTS, ord(character)) - 1
    return _RUNS[index][1] if index >= 0 else ""


def scripts_of(text: str) -> Counter[str]:
    """Letters per script, placeholders left out."""
    counts: Counter[str] = Counter()
    for character, times in Counter(re.sub(r"\bX\b", "", text)).items():
        script = script_of(character)
        if script:
            counts[script] += times
    return counts


def main_script(lines: Iterable[str]) -> str:
    """The script in which most letters of ``lines`` are written (a language's own, whatever its code says)."""
    total: Counter[str] = Counter()
    for line in lines:
        total.update(scripts_of(line))
    return max(sorted(total), key=lambda script: total[script]) if total else "Latin"


def is_in_script(line: str, script: str) -> bool:
    """Whether ``line`` is written in ``script``: 70% of its letters, or 30% where the script is not Latin.

    Lines in other scripts keep Latin product names, hence the lower share.
    """
    counts = scripts_of(line)
    total = sum(counts.values())
    return total > 0 and counts[script] >= (0.7 if script == "Latin" else 0.3) * total
