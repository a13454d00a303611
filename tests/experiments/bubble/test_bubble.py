from __future__ import annotations

from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.bubble import bubble
from repro.experiments.bubble.bubble_rows import TRACE, WITH_REMAT
from repro.experiments.bubble.bubble_verdicts import VERDICT
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.sweeps.sweep import Request
from tests.experiments.steps import results_of


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def request(scale: str = "laptop", **numbers: tuple[int, ...]) -> Request:
    return Request(scale, "cpu", numbers.get("stages"), numbers.get("micro_batches"), {})


def made(asked: Request, **costs: float) -> tuple[list[Row], list[Any]]:
    return bubble.rows(asked, {name: results_of(plan, **costs) for name, plan in bubble.plans(asked).items()})


def verdicts(rows: list[Row], claim: str) -> dict[str, float]:
    return {row.params["where"]: row.value for row in rows if row.metric == VERDICT and row.params["claim"] == claim}


def test_every_k_is_emulated_and_those_with_a_core_for_each_stage_are_measured() -> None:
    plans = bubble.plans(request(stages=(2, 4, 8)))
    assert list(plans) == [
        "emulated-k2",
        "emulated-k4",
        "emulated-k8",
        "mini-batch-fixed-k2",
        "micro-batch-fixed-k2",
    ]
    fixed, growing = plans["mini-batch-fixed-k2"].cells, plans["micro-batch-fixed-k2"].cells
    assert {cell.batch_size for cell in fixed} == {32}
    assert min(cell.rows for cell in fixed) == 1  # down to one row
    assert len({cell.rows for cell in growing}) == 1
    assert {cell.remat for cell in fixed} == {"never", "always"}
    assert [part.name for part in bubble.parts(request())] == list(bubble.plans(request()))


def test_what_has_no_core_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert all(plan.emulated for plan in bubble.plans(request()).values())


def test_a_mini_batch_that_cannot_be_cut_is_one_clear_message() -> None:
    with pytest.raises(UserError, match=r"-M 3: .* 32 rows"):
        bubble.plans(request(micro_batches=(1, 3)))


def test_the_trace_of_equal_stages_has_the_closed_form_and_all_checks_hold() -> None:
    rows, checks = made(request())
    for row in rows:
        if row.metric == "bubble" and row.params["form"] == TRACE:
            (closed,) = [
                other
                for other in rows
                if other.metric == "bubble"
                and (other.params["form"], other.params["panel"]) == (WITH_REMAT, row.params["panel"])
                and (other.num_stages, other.num_micro_batches, other.remat)
                == (row.num_stages, row.num_micro_batches, row.remat)
            ]
            assert row.value == pytest.approx(closed.value)
            assert closed.provenance is Provenance.SIMULATED
            emulated = row.params["panel"] == bubble.GRID
            assert row.provenance is (Provenance.EMULATED if emulated else Provenance.MEASURED)
    assert checks
    assert all(check.passed for check in checks)
    assert len(checks) == 3 + 2


def test_a_longer_step_than_the_closed_form_fails_the_check() -> None:
    asked = request(stages=(4,), micro_batches=(4,))
    results = {name: results_of(plan) for name, plan in bubble.plans(asked).items()}
    for cell in results["emulated-k4"]:
        cell["bubbles"] = [value + 0.2 for value in cell["bubbles"]]
    failed = [check for check in bubble.rows(asked, results)[1] if not check.passed]
    assert [check.text.startswith("emulated K = 4") for check in failed] == [True]


def test_memory_that_depends_on_m_at_a_fixed_mini_batch_fails_the_check() -> None:
    asked = request(stages=(2,), micro_batches=(1, 4))
    results = {name: results_of(plan) for name, plan in bubble.plans(asked).items()}
    results["mini-batch-fixed-k2"][0]["live_bytes"] = [64000, 64000]
    failed = [check.text for check in bubble.rows(asked, results)[1] if not check.passed]
    assert len(failed) == 1
    assert "live activations are the same" in failed[0]


def test_ideal_stages_gain_from_every_further_micro_batch() -> None:
    rows, _ = made(request(stages=(2,)))
    # K = 2: M = 32 gains 3% over M = 16, more than counts as equal, with free messages and small products for free.
    assert set(verdicts(rows, "M = 4K to 8K is the sweet spot").values()) == {0.0}
    assert set(verdicts(rows, "throughput needs M >= 4K").values()) == {1.0}
    assert set(verdicts(rows, "M >= 4K makes the bubble small").values()) == {1.0}


def test_small_micro_batches_that_cost_more_move_the_best_m_down() -> None:
    # With 0.1 s an action beside 0.01 s a row, few large micro-batches are best where the mini-batch is fixed.
    rows, _ = made(request(stages=(2,)), fixed_seconds=0.1)
    sweet = verdicts(rows, "M = 4K to 8K is the sweet spot")
    needed = verdicts(rows, "throughput needs M >= 4K")
    assert sweet["K = 2, mini-batch fixed, remat never"] == 0.0
    assert needed["K = 2, mini-batch fixed, remat never"] == 0.0
    # Where the micro-batch is fixed every one costs the same, and more of them are better.
    assert needed["K = 2, micro-batch fixed, remat never"] == 1.0


def test_parts_that_did_not_finish_leave_their_rows_out() -> None:
    asked = request(stages=(2,), micro_batches=(1, 8))
    plans = bubble.plans(asked)
    rows, _ = bubble.rows(asked, {"emulated-k2": results_of(plans["emulated-k2"])})
    assert {row.params["panel"] for row in rows} == {bubble.GRID}
    assert bubble.rows(asked, {}) == ([], [])


def test_a_single_stage_has_no_pipeline_to_trace() -> None:
    with pytest.raises(UserError, match="-K 1: "):
        bubble.plans(request(stages=(1,)))
