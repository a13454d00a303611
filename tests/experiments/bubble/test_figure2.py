from __future__ import annotations

import pytest

from repro.errors import UserError
from repro.experiments.bubble import figure2
from repro.experiments.sweeps.sweep import Request
from tests.experiments.steps import results_of


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def request(**numbers: tuple[int, ...]) -> Request:
    return Request("laptop", "cpu", numbers.get("stages"), numbers.get("micro_batches"), {})


def test_both_ways_run_the_same_mini_batch() -> None:
    plans = figure2.plans(request())
    assert [(plan.num_stages, plan.emulated) for plan in plans] == [(4, True), (2, False)]
    for plan in plans:
        assert [cell.num_micro_batches for cell in plan.cells] == [1, 4]
        assert len({cell.batch_size for cell in plan.cells}) == 1
        assert plan.keep
    assert [cell.num_micro_batches for cell in figure2.plans(request(micro_batches=(2, 8)))[0].cells] == [1, 2, 8]


def test_a_mini_batch_that_cannot_be_cut_is_one_clear_message() -> None:
    with pytest.raises(UserError, match=r"-M 5: a mini-batch of 32 rows"):
        figure2.plans(request(micro_batches=(5,)))


def test_gpipe_must_be_faster_than_the_naive_way() -> None:
    asked = request()
    names = [part.name for part in figure2.parts(asked)]
    results = {name: results_of(plan) for name, plan in zip(names, figure2.plans(asked), strict=True)}
    rows, checks = figure2.rows(asked, results)
    assert [check.passed for check in checks] == [True, True]
    assert {row.metric for row in rows} == {"action", "transfer", "bubble", "step_span"}
    naive = next(row for row in rows if row.metric == "bubble" and (row.num_stages, row.num_micro_batches) == (4, 1))
    assert naive.value == pytest.approx(3 / 4)
    results["emulated-k4"][1]["spans"] = [100.0] * 5
    assert [check.passed for check in figure2.rows(asked, results)[1]] == [False, True]
    assert figure2.rows(asked, {}) == ([], [])


def test_a_single_stage_has_no_pipeline_to_trace() -> None:
    with pytest.raises(UserError, match="-K 1: "):
        figure2.plans(request(stages=(1,)))
