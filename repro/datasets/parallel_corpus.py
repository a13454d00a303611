"""One interface to corpora that the user brings, whatever the layout of their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from repro.datasets.moses import STEMS, MosesLayout
from repro.datasets.opus100 import Opus100Layout
from repro.datasets.parallel import Row, Skipped, usable_pairs
from repro.datasets.paths import DataError
from repro.datasets.translation import Pair
from repro.datasets.tsv import TsvLayout

LayoutName = Literal["moses", "tsv", "opus100"]
"""How files are named and what is in them: ``repro.datasets.moses``, ``tsv`` and ``opus100``."""


class Layout(Protocol):
    """Where the sentences of each language and split are."""

    def expected(self, language: str, split: str) -> str:
        """The first file that is looked for."""

    def languages(self, split: str) -> list[str]:
        """Codes of the languages that have a file of ``split``, sorted."""

    def files(self, language: str, split: str) -> tuple[Path, ...] | None:
        """The files of a language in a split; None where there are none."""

    def rows(self, language: str, split: str) -> Iterator[Row]:
        """The pairs of a language in a split; none where it has no files."""


@dataclass(frozen=True)
class ParallelCorpus:
    """A user's corpus.

    Attributes:
        name: of the layout.
        folder: that holds it.
        layout: of its files.
    """

    name: str
    folder: Path
    layout: Layout

    def languages(self, chosen: Sequence[str] | None) -> list[str]:
        """``chosen``, or all languages that have training files.

        Raises:
            DataError: the folder or the training files of a chosen language are missing, or there are none at all.
        """
        if not self.folder.is_dir():
            raise DataError(f"folder={str(self.folder)!r}: there is no such folder; give that of the corpus")
        found = self.layout.languages("train")
        if not found:
            raise DataError(
                f"no training files of corpus={self.name!r} in {self.folder}: looked for "
                f"{self.layout.expected('LANGUAGE', 'train')}"
            )
        missing = [language for language in chosen or () if language not in found]
        if missing:
            raise DataError(
                f"no training files for {', '.join(missing)} in {self.folder}: looked for "
                f"{self.layout.expected(missing[0], 'train')}; languages there are {', '.join(found)} (languages=null "
                "takes all)"
            )
        return found if chosen is None else list(chosen)

    def check(self, chosen: Sequence[str] | None, splits: Sequence[str] = ("train", "dev")) -> None:
        """Raises where files are missing; reads none.

        Raises:
            DataError: as ``languages``; or one side of a pair is missing, or a split has no file in any language.
        """
        languages = self.languages(chosen)
        for split in splits:
            there = [
                self.layout.files(language, split) for language in languages
            ]  # of every one: a side may be missing
            if not any(there):
                raise DataError(
                    f"corpus={self.name!r} has no {split!r} split in {self.folder}: looked for "
                    f"{self.layout.expected(languages[0], split)} and the like; hold out some sentences, or name the "
                    "files with stems"
                )

    def pairs(self, chosen: Sequence[str] | None, split: str) -> tuple[list[Pair], Skipped, list[str]]:
        """The pairs of a split, language by language; what was skipped; and languages that have no files of it.

        Raises:
            DataError: as ``check``, or a file is damaged, not UTF-8, or not aligned; or nothing usable is left.
        """
        self.check(chosen, [split])
        pairs, skipped, absent = [], Skipped(), []
        for language in self.languages(chosen):
            if self.layout.files(language, split) is None:
                absent.append(language)
                continue
            found, left_out = usable_pairs(self.layout.rows(language, split), language)
            if not found and split == "train":
                raise DataError(
                    f"{self.layout.expected(language, split)}: no usable sentence pair for {language!r} ({left_out})"
                )
            pairs += found
            skipped += left_out
        if not pairs:
            raise DataError(f"no usable sentence pair in the {split!r} split of {self.folder} ({skipped})")
        return pairs, skipped, absent


def open_corpus(
    name: LayoutName, folder: str | Path, target: str = "en", stems: Mapping[str, str] | None = None
) -> ParallelCorpus:
    """The corpus in ``folder``; nothing is read yet.

    Args:
        name: of the layout.
        folder: that holds the files.
        target: code of the language that is translated into.
        stems: how file names of a split ("train", "dev", "test") begin, in place of ``moses.STEMS``; not for OPUS-100.

    Raises:
        DataError: an unknown layout, or stems that do not suit it.
    """
    path = Path(folder).expanduser()
    if name == "opus100":
        if stems:
            raise DataError("stems is for corpus='moses' and 'tsv': the files of OPUS-100 have names of their own")
        return ParallelCorpus(name, path, Opus100Layout(path, target))
    unknown = sorted(set(stems or {}) - set(STEMS))
    if unknown:
        raise DataError(f"stems has {', '.join(unknown)}; its keys are {', '.join(STEMS)}")
    named = {**STEMS, **{split: (stem,) for split, stem in (stems or {}).items()}}
    if name == "moses":
        return ParallelCorpus(name, path, MosesLayout(path, named, target))
    if name == "tsv":
        return ParallelCorpus(name, path, TsvLayout(path, named, target))
    raise DataError(f"corpus={name!r}: choose packaged, moses, tsv or opus100")
