"""Line-aligned files named as Moses and OPUS name them: ``STEM.de-en.de`` and ``STEM.de-en.en``, gzip too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.datasets.parallel import Row, aligned_rows
from repro.datasets.paths import DataError
from repro.datasets.text_lines import find_text

STEMS: Mapping[str, Sequence[str]] = {
    "train": ("train", "corpus"),
    "dev": ("dev", "valid", "val"),
    "test": ("test",),
}
"""How the files of each split may begin, unless told otherwise."""


@dataclass(frozen=True)
class MosesLayout:
    """A folder of line-aligned files.

    Attributes:
        folder: that holds the files of all languages.
        stems: how the files of each split may begin.
        target: code of the language that is translated into.
    """

    folder: Path
    stems: Mapping[str, Sequence[str]]
    target: str = "en"

    def expected(self, language: str, split: str) -> str:
        """The first file that is looked for."""
        return f"{self.folder}/{self.stems[split][0]}.{language}-{self.target}.{language}[.gz]"

    def languages(self, split: str) -> list[str]:
        """Codes of the languages that have a file of ``split``, sorted."""
        return named_languages(self.folder, self.stems[split], r"[^.]+", self.target)

    def files(self, language: str, split: str) -> tuple[Path, Path] | None:
        """The two files of a language in a split, source first; None where neither is there.

        Raises:
            DataError: only one of the two is there.
        """
        for stem in self.stems[split]:
            for pair in (f"{language}-{self.target}", f"{self.target}-{language}"):
                both = both_sides(self.folder, f"{stem}.{pair}.", language, self.target)
                if both is not None:
                    return both
        return None

    def rows(self, language: str, split: str) -> Iterator[Row]:
        """The pairs of a language in a split; none where it has no files."""
        both = self.files(language, split)
        return iter(()) if both is None else aligned_rows(*both)


def named_languages(folder: Path, stems: Sequence[str], ending: str, target: str) -> list[str]:
    """Languages beside ``target`` of the files ``STEM.PAIR.ending`` (a regular expression), gzip too, sorted."""
    found = set()
    for path in folder.glob("*"):
        for stem in stems:
            match = re.fullmatch(rf"{re.escape(stem)}\.(.+)\.{ending}", path.name.removesuffix(".gz"))
            language = other_language(match[1], target) if match else None
            if language is not None:
                found.add(language)
    return sorted(found)


def other_language(pair: str, target: str) -> str | None:
    """The language that a pair such as ``de-en`` or ``en-fr`` names beside ``target``; None where it names none."""
    if pair.endswith(f"-{target}"):
        return pair.removesuffix(f"-{target}")
    return pair.removeprefix(f"{target}-") if pair.startswith(f"{target}-") else None


def both_sides(folder: Path, prefix: str, language: str, target: str) -> tuple[Path, Path] | None:
    """The files ``prefix + language`` and ``prefix + target``; None where neither is there.

    Raises:
        DataError: only one of the two is there.
    """
    source, english = find_text(folder, f"{prefix}{language}"), find_text(folder, f"{prefix}{target}")
    if source is None and english is None:
        return None
    if source is None or english is None:
        there, missing = (english, language) if source is None else (source, target)
        raise DataError(f"{there} has no {folder}/{prefix}{missing}[.gz] beside it: bring the other side, or remove it")
    return source, english
