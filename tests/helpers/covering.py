"""A small table in which every combination of a few options occurs, where the full product is too much."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = Mapping[str, Any]
Combination = tuple[tuple[str, Any], ...]


def covering_array(
    options: Mapping[str, Sequence[Any]],
    strength: int,
    possible: Callable[[Row], bool] = lambda row: True,
    candidates: int = 20,
) -> list[dict[str, Any]]:
    """Rows in which every combination of ``strength`` options occurs that some possible row has.

    Greedy: of a few random rows that hold the next missing combination, the one with the most missing combinations is
    taken. The same call gives the same rows.

    Args:
        options: values by name of the option.
        strength: 2 for pairs, 3 for triples.
        possible: whether a row, one value for each option, may be.
        candidates: rows to choose from.
    """
    rows = [row for values in product(*options.values()) if possible(row := dict(zip(options, values, strict=True)))]
    holding: dict[Combination, list[int]] = {}
    for index, row in enumerate(rows):
        for combination in combinations(row.items(), strength):
            holding.setdefault(combination, []).append(index)
    generator = random.Random(0)
    missing = dict.fromkeys(holding)
    chosen: list[dict[str, Any]] = []
    while missing:
        indices = holding[next(iter(missing))]
        drawn = generator.sample(indices, min(candidates, len(indices)))
        best = max(drawn, key=lambda index: sum(c in missing for c in combinations(rows[index].items(), strength)))
        chosen.append(rows[best])
        for combination in combinations(rows[best].items(), strength):
            missing.pop(combination, None)
    return chosen
