"""Reader of the packaged translation corpus: sentence pairs per language and split, English as the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.datasets.paths import DataError, missing_set, packaged_root
from repro.datasets.store import ENGLISH, read_manifest, read_table

NAME = "translation"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Pair:
    """One sentence in ``language`` (the source) and its English original (the target).

    ``cluster`` numbers the cluster of near duplicates of the English sentence: it is on one side of the split only.
    """

    language: str
    source: str
    english: str
    cluster: int


def load_pairs(
    languages: Sequence[str] | None = None, split: str = "train", root: str | Path | None = None
) -> list[Pair]:
    """Sentence pairs of one split, language by language in the order given, sorted by English sentence within each.

    Args:
        languages: codes as ``language_sizes`` lists them; all where None.
        split: ``"train"``, ``"dev"`` or ``"test"``.
        root: folder of the packaged sets; the checkout's ``data/packaged`` where None.

    Raises:
        DataError: unknown language or split, or the corpus has not been fetched.
    """
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r} of the translation corpus; it has {', '.join(SPLITS)}")
    folder = _folder(root)
    known = _languages(folder)
    chosen = known if languages is None else list(languages)
    unknown = [language for language in chosen if language not in known]
    if unknown:
        raise DataError(f"unknown languages {', '.join(unknown)}; the corpus has {', '.join(known)}")
    english = read_table(folder / ENGLISH)
    pairs = []
    for language in chosen:
        for number, source in read_table(folder / f"{language}.tsv.gz"):
            part, cluster, sentence = english[int(number)]
            if part == split:
                pairs.append(Pair(language, source, sentence, int(cluster)))
    return pairs


def language_sizes(root: str | Path | None = None, split: str = "train") -> dict[str, int]:
    """Pairs per language in one split, largest first (ties by code).

    Raises:
        DataError: unknown split, or the corpus has not been fetched.
    """
    sizes = dict.fromkeys(_languages(_folder(root)), 0)
    for pair in load_pairs(split=split, root=root):
        sizes[pair.language] += 1
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def _folder(root: str | Path | None) -> Path:
    base = packaged_root(root)
    if read_manifest(base, NAME) is None:
        raise missing_set(NAME, base)
    return base / NAME


def _languages(folder: Path) -> list[str]:
    names = (path.name.removesuffix(".tsv.gz") for path in folder.glob("*.tsv.gz") if path.name != ENGLISH)
    return sorted(names)
