"""Shapes that a claim may have, as tests on numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import correlation


def rises(values: Sequence[float]) -> bool:
    """Each value is above the one before."""
    return len(values) > 1 and all(later > earlier for earlier, later in pairwise(values))


def falls(values: Sequence[float]) -> bool:
    """Each value is below the one before."""
    return len(values) > 1 and all(later < earlier for earlier, later in pairwise(values))


def within(value: float, wanted: float, band: float) -> bool:
    """``value`` is off by at most the share ``band`` of ``wanted``."""
    return abs(value - wanted) <= band * abs(wanted)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, equal values sharing the mean of theirs. NaN where all are equal.

    Raises:
        ValueError: fewer than two pairs.
    """
    if len(one) != len(other) or len(one) < 2:
        raise ValueError(f"need at least two pairs, got {len(one)} and {len(other)} values")
    if len(set(one)) == 1 or len(set(other)) == 1:
        return float("nan")
    return correlation(_ranks(one), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
