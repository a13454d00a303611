"""The translations of a test part on disk: one table with languages, and line-aligned files as ``sacrebleu`` reads."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from repro.datasets.parallel import NO_CLUSTER
from repro.datasets.paths import DataError
from repro.datasets.translation import Pair
from repro.tasks.language_scores import LanguageScore

TABLE, HYPOTHESES, REFERENCES = "translations.tsv", "translations.txt", "references.txt"
SCORES = "scores_by_language.tsv"
_COLUMNS = ["language", "source", "reference", "translation"]


def write_translations(folder: Path, pairs: Sequence[Pair], hypotheses: Sequence[str]) -> None:
    """Write ``translations.tsv`` into ``folder``, and ``translations.txt`` and ``references.txt``.

    ``sacrebleu references.txt -i translations.txt`` gives the BLEU of all, ``read_translations`` everything back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(_COLUMNS)
        for pair, hypothesis in zip(pairs, hypotheses, strict=True):
            writer.writerow([pair.language, pair.source, pair.english, hypothesis])
    _write_lines(folder / HYPOTHESES, hypotheses)
    _write_lines(folder / REFERENCES, [pair.english for pair in pairs])


def read_translations(folder: Path) -> tuple[list[Pair], list[str]]:
    """The test pairs (without their clusters) and the hypotheses that ``write_translations`` wrote into ``folder``.

    Raises:
        DataError: there are none.
    """
    path = folder / TABLE
    if not path.is_file():
        raise DataError(f"no {path}: it is written at the end of a test epoch over TranslationDataModule")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", strict=True))
    pairs = [Pair(row["language"], row["source"], row["reference"], NO_CLUSTER) for row in rows]
    return pairs, [row["translation"] for row in rows]


def write_scores(folder: Path, scores: Sequence[LanguageScore]) -> None:
    """Write ``scores_by_language.tsv`` into ``folder``: a line for each language, or for several pooled."""
    with (folder / SCORES).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["name", "group", "languages", "sentences", "bleu", "chrf"])
        for one in scores:
            values = f"{one.bleu.score:.2f}", f"{one.chrf.score:.2f}"
            writer.writerow([one.name, one.group, " ".join(one.languages), one.sentences, *values])


def _write_lines(path: Path, sentences: Sequence[str]) -> None:
    # A line feed inside a sentence would move all behind it; sacrebleu counts white space as one.
    path.write_text("".join(" ".join(sentence.split()) + "\n" for sentence in sentences), encoding="utf-8")
