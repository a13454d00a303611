"""Rules on Tables 2 and 3, with made-up rows for each verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Row
from repro.experiments.throughput.table import SEPARATE, WHOLE
from repro.report.paper_claims import throughput
from repro.report.paper_claims.claim import Finding, Verdict
from tests.report.paper_claims.made_up import SIMULATED, row

REPRODUCED, SMALL, NOT, CONTRADICTED = Verdict
MODEL, OTHER = "Transformer-48", "AmoebaNet-D (18, 256)"
Cells = Mapping[tuple[int, int], float]
GOOD: Cells = {(2, 1): 1.0, (8, 1): 1.1, (2, 32): 1.9, (8, 32): 6.3}


def cells(
    values: Cells, model: str = MODEL, layers: str = WHOLE, remats: Sequence[str] = ("always", "never")
) -> list[Row]:
    return [
        row("throughput_ratio", value, model=model, provenance=SIMULATED, k=k, m=m, remat=remat, layers=layers)
        for remat in remats
        for (k, m), value in values.items()
    ]


def ask(rule: Callable[..., Finding], *rows: Row, table: str = "table2") -> Verdict:
    return rule({table: rows}).verdict


@pytest.mark.parametrize(
    ("printed", "verdict"), [(1.62, REPRODUCED), (2.29, REPRODUCED), (1.61, CONTRADICTED), (2.31, CONTRADICTED)]
)
def test_a_cell_lies_inside_what_the_ways_to_recompute_give(printed: float, verdict: Verdict) -> None:
    rows = [*cells({(2, 4): 1.9}, remats=["always"]), *cells({(2, 4): 2.0}, layers=SEPARATE, remats=["never"])]
    assert ask(partial(throughput.cell_value, "table2", MODEL, (2, 4), printed), *rows) is verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, REPRODUCED),
        ({(8, 32): 1.8}, CONTRADICTED),
        ({(8, 1): 0.9}, REPRODUCED),  # at M = 1 nothing is asked
    ],
)
def test_throughput_rises_with_k(change: Cells, verdict: Verdict) -> None:
    assert ask(partial(throughput.rises_with_k, MODEL), *cells({**GOOD, **change})) is verdict


@pytest.mark.parametrize(
    ("simulated", "measured", "verdict"),
    [
        (1.9, [1.0, 1.5], SMALL),
        (1.9, [1.0, 0.5], NOT),
        (1.9, [], NOT),  # by costs linear in rows it cannot but rise
        (0.9, [1.0, 1.5], CONTRADICTED),
    ],
)
def test_only_measured_throughput_can_rise_with_m(simulated: float, measured: list[float], verdict: Verdict) -> None:
    scaled = [
        row("throughput_ratio", value, model="small", k=2, m=m, batch_size=64, remat="never", of=MODEL)
        for m, value in zip((1, 32), measured, strict=False)
    ]
    finding = throughput.rises_with_m(MODEL, {"table2": [*cells({**GOOD, (2, 32): simulated}), *scaled]})
    assert finding.verdict is verdict
    if verdict is NOT and measured:
        assert "measured, scaled down: does not rise (K = 2: 1.00, 0.50)" in finding.ours
        assert finding.provenance == "simulated, measured" and "2 rows at M = 32" in finding.why


@pytest.mark.parametrize(("swapped", "verdict"), [(False, REPRODUCED), (True, CONTRADICTED)])
def test_order_of_cells(swapped: bool, verdict: Verdict) -> None:
    printed = {
        (int(line["num_stages"] or 0), int(line["num_micro_batches"] or 0)): float(line["normalized_throughput"] or 0)
        for line in published("table2")
        if line["model"] == MODEL
    }
    ours = {cell: -value if swapped else 2 * value for cell, value in printed.items()}
    assert ask(partial(throughput.ordered, MODEL), *cells(ours)) is verdict


@pytest.mark.parametrize(("other", "verdict"), [(6.0, REPRODUCED), (6.4, CONTRADICTED)])
def test_which_model_gains_more(other: float, verdict: Verdict) -> None:
    rows = [*cells(GOOD), *cells({(8, 32): other}, OTHER)]
    assert ask(partial(throughput.gains_more, "table2", MODEL, OTHER), *rows) is verdict


@pytest.mark.parametrize(("last", "verdict"), [(1.39, REPRODUCED), (1.5, CONTRADICTED)])
def test_no_pipelining_with_one_micro_batch(last: float, verdict: Verdict) -> None:
    assert ask(partial(throughput.little_at_one, (MODEL,)), *cells({**GOOD, (8, 1): last})) is verdict


@pytest.mark.parametrize(("last", "verdict"), [(6.3, REPRODUCED), (4.0, CONTRADICTED), (8.0, CONTRADICTED)])
def test_speed_up(last: float, verdict: Verdict) -> None:
    assert ask(partial(throughput.speed_up, MODEL), *cells({**GOOD, (8, 32): last})) is verdict


@pytest.mark.parametrize(
    ("last", "imbalance", "verdict"), [(5.0, 1.2, REPRODUCED), (5.0, 1.01, CONTRADICTED), (7.7, 1.2, CONTRADICTED)]
)
def test_sub_linear(last: float, imbalance: float, verdict: Verdict) -> None:
    uneven = row("imbalance", imbalance, model=OTHER, provenance=SIMULATED, k=8, cut_by="this project", layers=WHOLE)
    assert ask(partial(throughput.sub_linear, OTHER), *cells({**GOOD, (8, 32): last}, OTHER), uneven) is verdict


@pytest.mark.parametrize(("slow", "verdict"), [(3.0, REPRODUCED), (1.5, CONTRADICTED)])
def test_slow_link(slow: float, verdict: Verdict) -> None:
    fast_rows = [*cells(GOOD), *cells(GOOD, OTHER)]
    slow_rows = [
        row_
        for model in ("Transformer-24", "AmoebaNet-D (18, 128)")
        for row_ in cells({(2, 32): 1.0, (8, 32): slow}, model)
    ]
    assert throughput.similar({"table2": fast_rows, "table3": slow_rows}).verdict is verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.09, REPRODUCED), (0.2, CONTRADICTED)])
def test_few_messages(share: float, verdict: Verdict) -> None:
    rows = [row("link_share", value, provenance=SIMULATED, k=2) for value in (0.01, share)]
    assert ask(throughput.few_messages, *rows, table="table3") is verdict


def test_measured_rows_stand_in_no_verdict_on_a_cell() -> None:
    """A scaled-down model is told beside it, under its name."""
    measured = row("throughput_ratio", 9.0, model="small", k=2, m=4, remat="never", of=MODEL)
    finding = throughput.cell_value("table2", MODEL, (2, 4), 1.9, {"table2": [*cells({(2, 4): 1.9}), measured]})
    assert finding.verdict is REPRODUCED and finding.provenance == "simulated" and finding.ours == "1.90"
    assert "measured, scaled down 9.00" in finding.why
