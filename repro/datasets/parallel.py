"""Sentence pairs from files that are not ours: what is used, and a count of what had to be left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from repro.datasets.paths import DataError
from repro.datasets.text_lines import read_lines
from repro.datasets.translation import Pair

NO_CLUSTER = -1
"""``Pair.cluster`` where nobody looked for near duplicates."""

MAX_CHARACTERS = 2000
"""A longer line is no sentence: a page that was never split, or a table."""


@dataclass(frozen=True)
class Place:
    """Where a pair stands: the file of its source, and the line, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line:,}"


Row = tuple[Place, str, str]
"""Where a pair stands, its source and its target."""


@dataclass(frozen=True)
class Skipped:
    """Pairs that were left out: how many, why, and where the first of them stands."""

    empty: int = 0
    too_long: int = 0
    first_empty: Place | None = None
    first_too_long: Place | None = None

    @property
    def total(self) -> int:
        """All that were left out."""
        return self.empty + self.too_long

    def __add__(self, other: Skipped) -> Skipped:
        return Skipped(
            self.empty + other.empty,
            self.too_long + other.too_long,
            self.first_empty or other.first_empty,
            self.first_too_long or other.first_too_long,
        )

    def __str__(self) -> str:
        reasons = [
            f"{count:,} {why} (first: {first})"
            for count, why, first in (
                (self.empty, "with an empty side", self.first_empty),
                (self.too_long, f"with more than {MAX_CHARACTERS:,} characters on a side", self.first_too_long),
            )
            if count
        ]
        return f"{self.total:,} pairs skipped: {', '.join(reasons)}" if reasons else "no pair skipped"


def usable_pairs(rows: Iterable[Row], language: str) -> tuple[list[Pair], Skipped]:
    """The pairs of ``rows`` in ``language``, less those with an empty or an over-long side, and what was skipped."""
    pairs, skipped = [], Skipped()
    for place, source, target in rows:
        if not source or not target:
            skipped += Skipped(empty=1, first_empty=place)
        elif max(len(source), len(target)) > MAX_CHARACTERS:
            skipped += Skipped(too_long=1, first_too_long=place)
        else:
            pairs.append(Pair(language, source, target, NO_CLUSTER))
    return pairs, skipped


def aligned_rows(source: Path, target: Path) -> Iterator[Row]:
    """Line n of one file with line n of the other.

    Raises:
        DataError: the files have unequal numbers of lines, or one cannot be read.
    """
    sources, targets = read_lines(source), read_lines(target)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            rest = 1 + sum(1 for _ in (targets if left is None else sources))
            shorter, longer = (source, target) if left is None else (target, source)
            raise DataError(
                f"{shorter} has {number - 1:,} lines but {longer} has {number - 1 + rest:,}: line n of one must be the "
                "translation of line n of the other. Align the files again, or bring both anew."
            )
        yield Place(source, number), left.strip(), right.strip()
