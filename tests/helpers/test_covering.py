"""A covering array holds what it promises, in far fewer rows than the full product."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from tests.helpers.covering import Row, covering_array

OPTIONS: dict[str, list[Any]] = {"a": [1, 2, 3, 4], "b": ["x", "y", "z"], "c": [True, False], "d": [1, 2, 4], "e": "uv"}


def even(row: Row) -> bool:
    return (row["a"] + row["d"]) % 2 == 0 or row["c"]


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_possible_combination_occurs(strength: int) -> None:
    rows = covering_array(OPTIONS, strength, even)
    assert all(map(even, rows))
    everything = [row for values in product(*OPTIONS.values()) if even(row := dict(zip(OPTIONS, values, strict=True)))]
    occurring = {combination for row in rows for combination in combinations(row.items(), strength)}
    assert occurring == {combination for row in everything for combination in combinations(row.items(), strength)}
    assert len(rows) < len(everything) / 2
    assert rows == covering_array(OPTIONS, strength, even)
