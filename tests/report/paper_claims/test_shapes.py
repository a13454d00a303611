from __future__ import annotations

import math

import pytest

from repro.report.paper_claims.shapes import falls, rank_correlation, rises, within


@pytest.mark.parametrize(
    ("values", "up", "down"),
    [
        ([1, 2, 3], True, False),
        ([3, 2, 1], False, True),
        ([1, 2, 2], False, False),
        ([1, 3, 2], False, False),
        ([1], False, False),
        ([], False, False),
    ],
)
def test_monotone(values: list[float], up: bool, down: bool) -> None:
    assert (rises(values), falls(values)) == (up, down)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [1, 4, 9, 16], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        # Equal values share the mean of their ranks: 1.5, 1.5, 3.
        ([1, 1, 2], [1, 2, 3], math.sqrt(3) / 2),
    ],
)
def test_rank_correlation(one: list[float], other: list[float], wanted: float) -> None:
    assert rank_correlation(one, other) == pytest.approx(wanted)


def test_rank_correlation_of_equal_values_is_none() -> None:
    assert math.isnan(rank_correlation([1, 1], [1, 2]))
    with pytest.raises(ValueError, match="two pairs"):
        rank_correlation([1], [1])


@pytest.mark.parametrize(("value", "holds"), [(1.1, True), (0.9, True), (1.11, False), (0.89, False)])
def test_band_is_relative_to_what_is_wanted(value: float, holds: bool) -> None:
    assert within(2 * value, 2.0, 0.1000001) is holds
