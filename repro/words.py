"""Words in messages."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """``"1 stage"``, ``"2 stages"``, ``"2 micro-batches"``."""
    return f"{number} {plural(word, number)}"


def plural(word: str, number: int) -> str:
    """``word`` as it stands behind ``number``."""
    if number == 1:
        return word
    return f"{word}es" if word.endswith("ch") else f"{word}s"
