from __future__ import annotations

from pathlib import Path

import pytest

from repro.datasets.paper import published
from repro.experiments.schedules.zero_bubble import COLUMNS, bubble_rates


@pytest.fixture(scope="module")
def rates() -> dict[tuple[str, str], tuple[float, float]]:
    """Published and simulated rate by model and schedule."""
    return {(rate.model, rate.schedule): (rate.published, rate.simulated) for rate in bubble_rates()}


def test_the_published_table_has_every_rate_and_four_profiles() -> None:
    rows = published("zero_bubble")
    assert len(rows) == 12
    assert len({(row["model"], row["num_micro_batches"]) for row in rows}) == 12
    for row in rows:
        bubbles = [value for name, value in row.items() if name.startswith("bubble_")]
        assert len(bubbles) == 6 and all(isinstance(value, float) and 0 < value < 0.3 for value in bubbles)
        # The searched ZB-1p has ZB-H1's memory and never beats it here; ZB-2p beats all.
        assert row["bubble_zb_1p"] == row["bubble_zb_h1"] and min(bubbles) == row["bubble_zb_2p"]
    times = ["forward_ms", "input_gradient_ms", "weight_gradient_ms", "communication_ms"]
    profiled = [row for row in rows if all(row[name] is not None for name in times)]
    assert [(row["model"], row["num_micro_batches"]) for row in profiled] == [
        ("1.5B", 24),
        ("6.2B", 24),
        ("14.6B", 48),
        ("28.3B", 96),
    ]
    assert all(row[name] is None for row in rows if row not in profiled for name in times)


def test_every_profile_and_schedule_is_there(rates: dict[tuple[str, str], tuple[float, float]]) -> None:
    assert set(rates) == {(model, name) for model in ("1.5B", "6.2B", "14.6B", "28.3B") for name in COLUMNS}


def test_rates_are_the_published_ones(rates: dict[tuple[str, str], tuple[float, float]]) -> None:
    for (_, name), (theirs, ours) in rates.items():
        assert ours == pytest.approx(theirs, abs=0.01)
        if name != "interleaved":
            assert round(ours, 4) == theirs


def test_the_interleaved_step_is_longer_by_one_message_per_rank(
    rates: dict[tuple[str, str], tuple[float, float]],
) -> None:
    for row in published("zero_bubble"):
        if row["forward_ms"] is None:
            continue
        theirs, ours = rates[str(row["model"]), "interleaved"]
        work = row["num_micro_batches"] * (row["forward_ms"] + row["input_gradient_ms"] + row["weight_gradient_ms"])
        shorter = work / (1 - ours) - row["num_stages"] * row["communication_ms"]
        assert round(1 - work / shorter, 4) == theirs


def test_without_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zero_bubble"):
        published("zero_bubble", tmp_path)
