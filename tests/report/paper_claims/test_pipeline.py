"""Rules on section 2 and on the time breakdown, with made-up rows for each verdict."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from repro.datasets.paper import published
from repro.experiments.sweeps.rows import Row
from repro.report.paper_claims import breakdown, pipeline
from repro.report.paper_claims.claim import Missing, Verdict
from tests.report.paper_claims.made_up import EMULATED, MEASURED, SIMULATED, row

REPRODUCED, SMALL, NOT, CONTRADICTED = Verdict
PARTS = {str(line["part"]): float(line["percent"] or 0) / 100 for line in published("breakdown")}


@pytest.mark.parametrize(("worst", "verdict"), [(1e-8, SMALL), (1e-4, CONTRADICTED)])
def test_same_answer(worst: float, verdict: Verdict) -> None:
    rows = [
        row(metric, value, k=k, experiment="agreement")
        for k, value in ((2, 0.0), (4, worst))
        for metric in ("loss_difference", "gradient_norm_difference", "held_out_loss_difference")
    ]
    assert pipeline.same_answer({"reproduce": rows}).verdict is verdict


@pytest.mark.parametrize(("measured", "verdict"), [(0.6, SMALL), (1.1, CONTRADICTED)])
def test_pipeline_against_naive(measured: float, verdict: Verdict) -> None:
    rows = [
        row("step_span", span, provenance=provenance, k=k, m=m)
        for provenance, k, m, span in (
            (EMULATED, 4, 1, 1.0), (EMULATED, 4, 4, 0.5), (MEASURED, 2, 1, 1.0), (MEASURED, 2, 4, measured)
        )
    ]  # fmt: skip
    assert pipeline.beats_naive({"figure2": rows}).verdict is verdict
    with pytest.raises(Missing, match="pair"):
        pipeline.beats_naive({"figure2": rows[1:2]})


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ((0.22, 0.12, 0.40, 0.22), SMALL),
        ((0.25, 0.26, 0.40, 0.22), CONTRADICTED),  # does not fall with M
        ((0.45, 0.12, 0.30, 0.22), CONTRADICTED),  # not the order of the closed form
    ],
)
def test_closed_form_of_the_bubble(seen: tuple[float, ...], verdict: Verdict) -> None:
    cells = {(2, 4): 0.2, (2, 8): 1 / 9, (4, 4): 3 / 7, (4, 12): 0.2}
    rows = []
    for ((k, m), closed), least in zip(cells.items(), seen, strict=True):
        cell: dict[str, Any] = {"k": k, "m": m, "remat": "never", "panel": "grid"}
        rows.append(row("bubble", 0.9, provenance=EMULATED, form="trace", least=least, **cell))
        rows.append(row("bubble", closed, provenance=SIMULATED, form="closed form without remat", **cell))
    assert pipeline.closed_form({"bubble": rows}).verdict is verdict
    with pytest.raises(Missing, match="four cells"):
        pipeline.closed_form({"bubble": rows[:4]})


@pytest.mark.parametrize(("always", "never", "verdict"), [(0.19, 0.3, SMALL), (0.21, 0.1, CONTRADICTED)])
def test_bubble_from_4k_on_with_remat_always(always: float, never: float, verdict: Verdict) -> None:
    rows = [
        row("bubble", value, provenance=EMULATED, k=2, m=m, remat=remat, form="trace")
        for m, remat, value in ((4, "always", 0.4), (8, "always", 0.1), (16, "always", always), (8, "never", never))
    ]
    finding = pipeline.small_from_4k({"bubble": rows})
    assert finding.verdict is verdict and finding.ours == f"at most {always:.1%} (K = 2)"
    assert f"Remat never, where no R fills the ramp: {never:.1%} (K = 2)" in finding.why
    assert "below 20%, with remat always" in finding.in_short
    with pytest.raises(Missing):
        pipeline.small_from_4k({"bubble": [rows[0], rows[3]]})


@pytest.mark.parametrize(("share", "verdict"), [(0.95, SMALL), (0.5, CONTRADICTED)])
def test_early_recompute(share: float, verdict: Verdict) -> None:
    rows = [row("early_recompute", value, m=8, cases=10) for value in (1.0, share)]
    assert pipeline.early({"remat": rows}).verdict is verdict


def pie(provenance: Any = EMULATED, **changes: float) -> list[Row]:
    shares = {**PARTS, **{name.replace("_", " "): value for name, value in changes.items()}}
    return [row("share", value, provenance=provenance, k=2, m=16, part=part) for part, value in shares.items()]


@pytest.mark.parametrize(
    ("ours", "verdict"), [(0.0505, SMALL), (0.031, SMALL), (0.0525, CONTRADICTED), (0.02, CONTRADICTED)]
)
def test_share_of_a_part(ours: float, verdict: Verdict) -> None:
    rule = partial(breakdown.share, "bubble", PARTS["bubble"])
    assert rule({"breakdown": pie(bubble=ours)}).verdict is verdict


@pytest.mark.parametrize(("changes", "verdict"), [({}, SMALL), ({"computation": 0.0, "setup": 0.7}, CONTRADICTED)])
def test_order_of_parts(changes: dict[str, float], verdict: Verdict) -> None:
    assert breakdown.same_order_of_parts({"breakdown": pie(**changes)}).verdict is verdict


@pytest.mark.parametrize(("recompute", "verdict"), [(0.22, SMALL), (0.5, CONTRADICTED)])
def test_recompute_ratio(recompute: float, verdict: Verdict) -> None:
    assert breakdown.recompute_ratio({"breakdown": pie(recompute=recompute)}).verdict is verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({}, SMALL), ({"bubble": 0.3}, CONTRADICTED), ({"recompute": 0.3}, CONTRADICTED)],
)
def test_recompute_is_the_main_overhead(changes: dict[str, float], verdict: Verdict) -> None:
    assert breakdown.main_overhead({"breakdown": pie(**changes)}).verdict is verdict


@pytest.mark.parametrize(("bubble", "verdict"), [(0.055, SMALL), (0.06, CONTRADICTED)])
def test_bubble_below_theory(bubble: float, verdict: Verdict) -> None:
    """K = 2 and M = 16: 1/17."""
    assert breakdown.below_theory({"breakdown": pie(bubble=bubble)}).verdict is verdict


@pytest.mark.parametrize(("update", "verdict"), [(0.026, SMALL), (0.03, CONTRADICTED)])
def test_weight_update(update: float, verdict: Verdict) -> None:
    rows = [*pie(), *pie(MEASURED, weight_update=update)]
    assert breakdown.small_update({"breakdown": rows}).verdict is verdict
    assert breakdown.share("weight update", PARTS["weight update"], {"breakdown": rows}).verdict is verdict
