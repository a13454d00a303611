"""The parity matrix: the pipeline computes what the unsplit layers compute, for any K, M, V, schedule, remat and way.

Every cell trains on one mini-batch and on an accumulation window, and is clipped by norm, by value and not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from repro.schedules import GENERATORS, SIMULATED_ONLY
from tests.helpers.covering import Row, covering_array
from tests.helpers.models import MODELS
from tests.helpers.pipelines import ORDERS, SCHEDULES, Cell, differences, run_cells
from tests.helpers.ranks import Pools

STAGES = (1, 2, 3, 4)
MICRO_BATCHES = (1, 2, 4, 5, 8)
REMATS = ("always", "except_last", "never")
ROWS = ("even", "ragged", "fewer")

OPTIONS: dict[str, Iterable[Any]] = {
    "order": ORDERS,
    "num_stages": STAGES,
    "num_micro_batches": MICRO_BATCHES,
    "remat": REMATS,
    "rows": ROWS,
    "frozen_first": (False, True),
}
MODEL_OPTIONS: dict[str, Iterable[Any]] = {
    "model": tuple(MODELS),
    "order": ORDERS,
    "num_stages": STAGES,
    "batch": ((3, 7), (1, 3), (4, 8), (5, 5)),
    "remat": REMATS,
}


def rows_of(kind: str, num_micro_batches: int) -> int:
    """Rows of a mini-batch: two a micro-batch, one less than that, or fewer than micro-batches."""
    return {"even": 2 * num_micro_batches, "ragged": 2 * num_micro_batches - 1, "fewer": num_micro_batches - 1}[kind]


def possible(row: Row) -> bool:
    return rows_of(row["rows"], row["num_micro_batches"]) > 0


def possible_model(row: Row) -> bool:
    spec, (num_micro_batches, rows) = MODELS[row["model"]], row["batch"]
    return (
        len(spec.factories) >= row["num_stages"] * row["order"][1]
        and rows // min(num_micro_batches, rows) >= spec.min_rows
    )


def cell(row: Row) -> Cell:
    schedule, num_virtual_stages = row["order"]
    return Cell(
        "deep",
        row["num_stages"],
        row["num_micro_batches"],
        row["remat"],
        rows_of(row["rows"], row["num_micro_batches"]),
        num_virtual_stages,
        schedule,
        row["frozen_first"],
    )


def model_cell(row: Row) -> Cell:
    schedule, num_virtual_stages = row["order"]
    return Cell(
        row["model"], row["num_stages"], row["batch"][0], row["remat"], row["batch"][1], num_virtual_stages, schedule
    )


@cache
def triples() -> list[Cell]:
    """Cells in which every three options of the matrix occur together in every possible way."""
    return [cell(row) for row in covering_array(OPTIONS, 3, possible)]


@cache
def models(strength: int) -> list[Cell]:
    """The same with a model in place of frozen stages and of the number of rows."""
    return [model_cell(row) for row in covering_array(MODEL_OPTIONS, strength, possible_model)]


def check(way: str, cells: Iterable[Cell], pools: Pools) -> None:
    cells = list(cells)
    assert cells
    outcomes = run_cells(way, cells, pools)
    wrong = [text for cell, ranks in zip(cells, outcomes, strict=True) for text in differences(cell, ranks)]
    assert not wrong, f"{len(wrong)} differences in {len(cells)} cells, among them:\n" + "\n".join(wrong[:10])


def test_every_executable_schedule_is_here() -> None:
    assert set(SCHEDULES) == set(GENERATORS) - set(SIMULATED_ONLY)


@pytest.mark.parametrize("num_stages", STAGES)
@pytest.mark.parametrize(("schedule", "num_virtual_stages"), ORDERS)
def test_full_product_in_one_process(schedule: str, num_virtual_stages: int, num_stages: int, pools: Pools) -> None:
    check(
        "local",
        (
            Cell(
                "deep",
                num_stages,
                num_micro_batches,
                remat,
                rows_of(kind, num_micro_batches),
                num_virtual_stages,
                schedule,
                frozen_first,
            )
            for num_micro_batches in MICRO_BATCHES
            for remat in REMATS
            for kind in ROWS
            for frozen_first in (False, True)
            if rows_of(kind, num_micro_batches) > 0
        ),
        pools,
    )


@pytest.mark.parametrize("num_stages", STAGES)
def test_all_triples_on_processes(num_stages: int, pools: Pools) -> None:
    check("processes", (cell for cell in triples() if cell.num_stages == num_stages), pools)


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_in_one_process(name: str, pools: Pools) -> None:
    check("local", (cell for cell in models(3) if cell.model == name), pools)


@pytest.mark.parametrize("num_stages", STAGES)
def test_every_model_on_processes(num_stages: int, pools: Pools) -> None:
    check("processes", (cell for cell in models(2) if cell.num_stages == num_stages), pools)
