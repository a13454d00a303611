"""The published tables can be read, and what is printed in them is consistent with what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.datasets.paper import CONFIDENCE, published, published_names
from repro.datasets.paths import DataError

ROWS = {
    "amoebanet_counts": 36, "breakdown": 6, "circulating_about_paper": 4, "circulating_bubbles": 6,
    "circulating_cases": 5, "circulating_smallest": 5, "claims": 32, "figure1a": 8, "figure1b": 5, "figure3": 6,
    "partitions": 5, "remat_claims": 2,
    "table1_amoebanet": 5, "table1_claims": 3, "table1_setup": 2, "table1_transformer": 5, "table2": 18,
    "table3": 6, "table4": 8, "table5": 3, "torchgpipe_memory": 10,
    "torchgpipe_speed": 19, "transformer_counts": 27, "zero_bubble": 12,
}  # fmt: skip


def test_all_tables_are_there_with_confidence_and_source() -> None:
    assert published_names() == sorted(ROWS)
    for name, count in ROWS.items():
        rows = published(name)
        assert len(rows) == count, name
        assert all(row["confidence"] in CONFIDENCE and row["source"] for row in rows), name
        assert len({tuple(row) for row in rows}) == 1, name


def test_values_are_typed() -> None:
    row = published("table1_amoebanet")[0]
    assert row["configuration"] == "naive-1" and row["note"] is None
    assert row["num_layers"] == 18 and isinstance(row["num_layers"], int)
    assert row["parameter_memory_gb"] == 1.05


def test_breakdown_adds_up() -> None:
    assert sum(row["percent"] for row in published("breakdown")) == pytest.approx(100)


@pytest.mark.parametrize(("table", "keys"), [("table2", 18), ("table3", 6)])
def test_throughput_is_relative_to_two_stages(table: str, keys: int) -> None:
    cells = {(row["model"], row["num_stages"], row["num_micro_batches"]): row for row in published(table)}
    assert len(cells) == keys
    first = min(key[2] for key in cells)
    for (model, stages, micro_batches), row in cells.items():
        if (stages, micro_batches) == (2, first):
            assert row["normalized_throughput"] == 1, model


def test_counted_parameters_match_the_printed_ones() -> None:
    for table, tolerance in (("amoebanet_counts", 0.025), ("transformer_counts", 0.05)):
        printed = {}
        rows = published(table)
        for row in rows:
            size = (row.get("model", row.get("genotype")), row["num_layers"], row.get("num_filters"))
            if row["kind"] == "paper":
                printed[size] = row["parameters"]
        for row in rows:
            size = (row.get("model", row.get("genotype")), row["num_layers"], row.get("num_filters"))
            if row["kind"] in ("torchgpipe, counted", "formula", "two embedding tables") and size in printed:
                assert row["parameters"] == pytest.approx(printed[size], rel=tolerance), size


def test_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'table9'.*table1_amoebanet"):
        published("table9")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing or empty"):
        published("table2", tmp_path / "nowhere")
