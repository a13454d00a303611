from __future__ import annotations

import pytest

from repro.errors import UserError
from repro.experiments.bubble import breakdown
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.sweeps.sweep import Request
from repro.experiments.traces.accounting import PARTS
from repro.experiments.traces.tracing_overhead import PLAIN, TRACED, recorder_cost
from tests.experiments.steps import results_of


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def request(scale: str = "laptop", **numbers: tuple[int, ...]) -> Request:
    return Request(scale, "cpu", numbers.get("stages"), numbers.get("micro_batches"), {})


def test_real_models_are_measured_and_full_size_ones_emulated() -> None:
    names = [part.name for part in breakdown.parts(request())]
    assert names == [
        "measured-transformer-k2-m16",
        "measured-amoebanet-k2-m16",
        "emulated-amoebanet-k2-m16",
        "emulated-transformer-k2-m16",
        "tracing",
    ]
    assert [part.world_size for part in breakdown.parts(request())] == [2] * 5
    assert {plan.cells[0].remat for plan in breakdown.plans(request())} == {"always"}
    # More stages than cores: only emulated.
    assert {plan.emulated for plan in breakdown.plans(request(stages=(4,)))} == {True}


def test_more_stages_than_layers_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    with pytest.raises(UserError, match=r"-K 16: .* has \d+ layers"):
        breakdown.plans(request(stages=(16,)))


@pytest.mark.parametrize(("traced", "passes"), [(1.0, True), (1.005, True), (1.05, False)])
def test_shares_add_up_and_tracing_must_be_cheap(traced: float, passes: bool) -> None:
    asked = request()
    results: dict[str, object] = {
        part.name: results_of(plan) for part, plan in zip(breakdown.parts(asked), breakdown.plans(asked), strict=False)
    }
    results["tracing"] = {"seconds": {TRACED: [traced] * 9, PLAIN: [1.0] * 9}, "cost": 3e-6}
    rows, checks = breakdown.rows(asked, results)
    for model in {row.model for row in rows if row.metric == "share"}:
        shares = {row.params["part"]: row for row in rows if row.metric == "share" and row.model == model}
        assert list(shares) == list(PARTS)
        assert sum(row.value for row in shares.values()) == pytest.approx(1)
        # As the fabricated steps have it: 5% of the span of 1.2 is the update.
        assert shares["weight update"].value == pytest.approx(0.05 / 1.2)
        emulated = "timed waits" in model
        assert shares["bubble"].provenance is (Provenance.EMULATED if emulated else Provenance.MEASURED)
    assert [check.passed for check in checks] == [True] * 4 + [True, passes]
    assert {row.metric for row in rows} == {
        "share", "share_between_stages", "step_time", "action", "transfer", "step_time_ratio", "recorder_time",
    }  # fmt: skip


def test_nothing_finished_gives_nothing() -> None:
    assert breakdown.rows(request(), {}) == ([], [])


def test_what_recording_costs_is_a_time() -> None:
    assert 0 < recorder_cost() < 1


def test_a_single_stage_has_no_pipeline_to_trace() -> None:
    with pytest.raises(UserError, match="-K 1: "):
        breakdown.plans(request(stages=(1,)))
