"""The parity matrix: the pipeline computes what the unsplit layers compute, for any K, M, remat and way of running."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.helpers.models import MODELS
from tests.helpers.pipelines import Cell, differences, run_cells
from tests.helpers.ranks import Pools

WAYS = ("local", "processes")
REMATS = ("always", "except_last", "never")
STAGES = (1, 2, 3, 4)


def check(way: str, cells: Iterable[Cell], pools: Pools) -> None:
    cells = list(cells)
    assert cells
    outcomes = run_cells(way, cells, pools)
    wrong = [text for cell, ranks in zip(cells, outcomes, strict=True) for text in differences(cell, ranks)]
    assert not wrong, f"{len(wrong)} differences in {len(cells)} cells, among them:\n" + "\n".join(wrong[:10])


@pytest.mark.parametrize("num_stages", STAGES)
@pytest.mark.parametrize("way", WAYS)
def test_every_cell_of_the_matrix(way: str, num_stages: int, pools: Pools) -> None:
    """M x remat x batch size, each over one batch and over a window of three, not clipped, by norm and by value."""
    check(
        way,
        (
            Cell("mlp", num_stages, num_micro_batches, remat, rows)
            for num_micro_batches in (1, 2, 3, 4, 8)
            for remat in REMATS
            for rows in (8, 7, 3, 1)
        ),
        pools,
    )


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
@pytest.mark.parametrize("way", WAYS)
def test_every_model(way: str, name: str, pools: Pools) -> None:
    """Every model for K = 1 to 4 with ragged micro-batches, every remat."""
    least = MODELS[name].min_rows
    for num_stages in STAGES:
        check(
            way,
            (
                Cell(name, num_stages, num_micro_batches, remat, rows)
                for num_micro_batches, rows in ((3, 7), (1, 3), (4, 8 * least))
                for remat in REMATS
                if rows // min(num_micro_batches, rows) >= least
            ),
            pools,
        )


@pytest.mark.parametrize("way", WAYS)
def test_virtual_stages(way: str, pools: Pools) -> None:
    """Two ranks with two stages each, and one rank with three: stages that share a rank do not send to themselves."""
    for num_stages, num_virtual_stages in ((2, 2), (1, 3), (2, 3)):
        check(
            way,
            (
                Cell(name, num_stages, 3, remat, 7, num_virtual_stages)
                for name in ("mlp", "dropout", "batch_norm_2d", "translation")
                for remat in REMATS
                if len(MODELS[name].factories) >= num_stages * num_virtual_stages
            ),
            pools,
        )
