"""Tab-separated files of two columns: ``STEM.de-en.tsv``, the columns in the order of the name, gzip too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.datasets.moses import named_languages
from repro.datasets.parallel import Place, Row
from repro.datasets.paths import DataError
from repro.datasets.text_lines import find_text, read_lines


@dataclass(frozen=True)
class TsvLayout:
    """A folder of tab-separated files.

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
        return f"{self.folder}/{self.stems[split][0]}.{language}-{self.target}.tsv[.gz]"

    def languages(self, split: str) -> list[str]:
        """Codes of the languages that have a file of ``split``, sorted."""
        return named_languages(self.folder, self.stems[split], "tsv", self.target)

    def files(self, language: str, split: str) -> tuple[Path] | None:
        """The file of a language in a split; None where there is none."""
        found = self._find(language, split)
        return None if found is None else (found[0],)

    def rows(self, language: str, split: str) -> Iterator[Row]:
        """The pairs of a language in a split; none where it has no file.

        Raises:
            DataError: a line has not two columns, or the file cannot be read.
        """
        found = self._find(language, split)
        if found is None:
            return
        path, source_first = found
        for number, line in enumerate(read_lines(path), start=1):
            columns = [column.strip() for column in line.split("\t")]
            if line and len(columns) != 2:
                raise DataError(
                    f"{path}, line {number:,}: {len(columns)} columns in place of 2 (sentence, tab, sentence). Mend "
                    "the line, or cut the file to the two columns first."
                )
            left, right = columns if line else ("", "")
            yield Place(path, number), *((left, right) if source_first else (right, left))

    def _find(self, language: str, split: str) -> tuple[Path, bool] | None:
        for stem in self.stems[split]:
            for pair in (f"{language}-{self.target}", f"{self.target}-{language}"):
                path = find_text(self.folder, f"{stem}.{pair}.tsv")
                if path is not None:
                    return path, pair.startswith(f"{language}-")
        return None
