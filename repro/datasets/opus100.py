"""The layout of OPUS-100: ``supervised/de-en/opus.de-en-train.de`` and so on, English on one side of every pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.datasets.moses import both_sides, other_language
from repro.datasets.parallel import Row, aligned_rows


@dataclass(frozen=True)
class Opus100Layout:
    """A folder of OPUS-100 (one with ``supervised`` in it, or that folder itself).

    Attributes:
        folder: the folder.
        target: code of the language that is translated into.
    """

    folder: Path
    target: str = "en"

    @property
    def pairs_folder(self) -> Path:
        """The folder of the pairs."""
        inner = self.folder / "supervised"
        return inner if inner.is_dir() else self.folder

    def expected(self, language: str, split: str) -> str:
        """The first file that is looked for."""
        pair = "-".join(sorted((language, self.target)))
        return f"{self.pairs_folder}/{pair}/opus.{pair}-{split}.{language}[.gz]"

    def languages(self, split: str) -> list[str]:
        """Codes of the languages that have a file of ``split``, sorted."""
        found = set()
        for folder in self.pairs_folder.glob("*-*"):
            language = other_language(folder.name, self.target)
            if language is not None and any(folder.glob(f"opus.{folder.name}-{split}.*")):
                found.add(language)
        return sorted(found)

    def files(self, language: str, split: str) -> tuple[Path, Path] | None:
        """The two files of a language in a split, source first; None where neither is there.

        Raises:
            DataError: only one of the two is there.
        """
        for pair in (f"{language}-{self.target}", f"{self.target}-{language}"):
            both = both_sides(self.pairs_folder / pair, f"opus.{pair}-{split}.", language, self.target)
            if both is not None:
                return both
        return None

    def rows(self, language: str, split: str) -> Iterator[Row]:
        """The pairs of a language in a split; none where it has no files."""
        both = self.files(language, split)
        return iter(()) if both is None else aligned_rows(*both)
