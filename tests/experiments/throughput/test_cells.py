from __future__ import annotations

import pytest

from repro.errors import UserError
from repro.experiments.costs.full_models import FullModel, LayerCosts
from repro.experiments.costs.link import Link
from repro.experiments.throughput.cells import (
    Host,
    Setting,
    TableCell,
    ideal_step,
    imbalance,
    message_row_bytes,
    relative_throughput,
    simulated_step,
    table_cells,
    time_factor,
)
from repro.planning.partition import PartitionError

MODEL = FullModel("a model", "transformer", 8, None, 4, 32, "p100")
FAST = Link("fast", 0.0, 1e30)


def setting(forward: list[float], link: Link = FAST, boundary_bytes: float = 1e6) -> Setting:
    costs = LayerCosts(
        tuple(forward), tuple(2 * cost for cost in forward), (boundary_bytes,) * len(forward), distinct=1
    )
    return Setting(MODEL, costs, "a test", link)


EQUAL = setting([1.0] * 8)
BASE = TableCell(2, 1, 32)
LAST = TableCell(8, 32, 32)


@pytest.mark.parametrize(("remat", "ratio"), [("never", 6.56), ("always", 6.01), ("except_last", 5.19)])
def test_the_ideal_of_each_remat_at_the_end_of_table_2(remat: str, ratio: float) -> None:
    ideals = [ideal_step(EQUAL, cell, remat) for cell in (LAST, BASE)]
    assert relative_throughput(LAST, ideals[0], BASE, ideals[1]) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("remat", ["never", "always", "except_last"])
@pytest.mark.parametrize("cell", [BASE, LAST, TableCell(4, 4, 32), TableCell(1, 8, 8)])
def test_equal_layers_over_a_free_link_reach_the_ideal(remat: str, cell: TableCell) -> None:
    assert simulated_step(EQUAL, cell, remat) == pytest.approx(ideal_step(EQUAL, cell, remat))


def test_a_step_on_one_stage_is_the_sum_of_its_layers() -> None:
    assert simulated_step(setting([1.0, 2.0]), TableCell(1, 4, 8), "never", factor=0.5) == pytest.approx(0.5 * 8 * 9)


def test_a_layer_that_is_dearer_than_its_share_sets_the_pace() -> None:
    uneven = setting([1.0] * 7 + [3.0])
    assert imbalance(uneven, 2) == pytest.approx(1.0)
    assert imbalance(uneven, 8) == pytest.approx(8 * 3 / 10)
    assert simulated_step(uneven, LAST, "never") > simulated_step(EQUAL, LAST, "never")


def test_a_link_and_the_machine_lengthen_a_step() -> None:
    slow = setting([1.0] * 8, Link("slow", latency=0.25, bandwidth=1e6))
    cell = TableCell(2, 1, 1)
    # One message each way: 1 s on the link, and its latency.
    assert simulated_step(slow, cell, "never") == pytest.approx(simulated_step(EQUAL, cell, "never") + 2 * 1.25)
    host = Host(overshoot=0.1, latency=0.5, bandwidth=2.0**16)
    assert message_row_bytes(slow, 1) == 2**16
    # Four actions wait once each; each of the two messages takes half a second and a second for its 64 KiB.
    added = simulated_step(slow, cell, "never", host=host) - simulated_step(slow, cell, "never")
    assert added == pytest.approx(4 * 0.1 + 2 * 1.5)


@pytest.mark.parametrize("batch_size", [1, 32, 100, 128])
@pytest.mark.parametrize("boundary_bytes", [40.0, 1e6])
def test_messages_stay_below_64_kib_and_what_is_real(batch_size: int, boundary_bytes: float) -> None:
    nbytes = message_row_bytes(setting([1.0] * 2, boundary_bytes=boundary_bytes), batch_size)
    assert nbytes % 4 == 0 and 4 <= nbytes <= boundary_bytes and nbytes * batch_size <= 2**16


def test_the_mini_batch_is_the_same_in_all_cells_or_follows_m() -> None:
    fixed = table_cells((2, 4), (1, 32), 64, "fixed")
    assert [(c.num_stages, c.num_micro_batches, c.batch_size) for c in fixed] == [
        (2, 1, 64),
        (4, 1, 64),
        (2, 32, 64),
        (4, 32, 64),
    ]
    assert [(c.batch_size, c.rows) for c in table_cells((2,), (1, 4, 32), 64, "per-cell")] == [(2, 2), (8, 2), (64, 2)]


@pytest.mark.parametrize(
    ("micro_batches", "batch_size", "policy", "words"),
    [
        (3, 32, "fixed", "-M 3 does not divide the mini-batch of 32 rows"),
        (64, 32, "fixed", "-M 64 does not divide"),
        (0, 32, "fixed", "-M 0 does not divide"),
        (1, 31, "per-cell", "--batch-size 31: with --batch-policy per-cell"),
    ],
)
def test_cells_that_cannot_be_cut_are_refused(micro_batches: int, batch_size: int, policy: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        table_cells((2,), (micro_batches,), batch_size, policy)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(PartitionError, match="num_stages=9 stages for 8 layers"):
        simulated_step(EQUAL, TableCell(9, 1, 32), "never")


@pytest.mark.parametrize("policy", ["fixed", "per-cell"])
def test_the_factor_makes_the_longest_step_of_the_fewest_stages_as_long_as_asked(policy: str) -> None:
    cells = table_cells((2, 8), (1, 4, 32), 32, policy)
    factor = time_factor(EQUAL, cells, "always", 16.0)
    steps = [simulated_step(EQUAL, cell, "always", factor=factor) for cell in cells if cell.num_stages == 2]
    assert max(steps) == pytest.approx(16.0)
