"""The target on the planner's order: what it runs, and how agreement is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import UserError
from repro.experiments.planner import plan_check
from repro.experiments.planner.plan_check import Agreement
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.sweeps.sweep import Request
from repro.report import plan_check as report
from repro.report.loading import Results


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def request(scale: str = "laptop", **numbers: tuple[int, ...]) -> Request:
    return Request(scale, "cpu", numbers.get("stages"), numbers.get("micro_batches"), {})


@pytest.mark.parametrize(
    ("predicted", "measured", "tau", "regret"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0, 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0, 3.0),
        ([1, 2, 3], [20, 10, 30], 1 / 3, 2.0),
        ([1, 1, 1], [1, 2, 3], 0.0, 1.0),
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5, 1.0),
    ],
)
def test_rank_correlation(predicted: list[float], measured: list[float], tau: float, regret: float) -> None:
    agreement = Agreement(predicted, measured)
    assert agreement.tau == pytest.approx(tau)
    assert agreement.regret == pytest.approx(regret)
    assert agreement.pairs == 3


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8))
def test_order_is_all_that_counts(values: list[int]) -> None:
    if len(set(values)) > 1:
        assert Agreement(values, [value**3 for value in values]).tau == pytest.approx(1)
        assert Agreement(values, [-value for value in values]).tau == pytest.approx(-1)


def test_what_runs() -> None:
    (plan,) = plan_check.plans(request()).values()
    assert plan.num_stages == 2 and len(set(map(str, plan.choices))) == len(plan.choices) == 4 * 4 * 2
    assert {choice.schedule for choice in plan.choices} == {"gpipe", "1f1b", "interleaved", "zb-h1"}
    (fewer,) = plan_check.plans(request(micro_batches=(2,))).values()
    assert {choice.num_micro_batches for choice in fewer.choices} == {2}
    assert plan_check.plans(request(stages=(4,))) == {}  # two cores


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"stages": (1,)}, "-K 1"),
        ({"stages": (9,)}, "-K 9"),
        ({"micro_batches": (5,)}, "-M 5: the mini-batch has 16 rows"),
        ({"micro_batches": (0,)}, "-M 0"),
    ],
)
def test_numbers_that_cannot_be(numbers: dict[str, tuple[int, ...]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_check.plans(request(**numbers))


def results(order: int) -> dict[str, Any]:
    (plan,) = plan_check.plans(request()).values()
    predicted = [float(number) for number in range(1, len(plan.choices) + 1)]
    return {"steps-k2": {"predicted": predicted, "measured": [[2 * value] * 3 for value in predicted[::order]]}}


@pytest.mark.parametrize(("order", "passed"), [(1, [True, True]), (-1, [False, False])])
def test_the_order_is_judged(order: int, passed: list[bool]) -> None:
    rows, checks = plan_check.rows(request(), results(order))
    assert [check.passed for check in checks] == passed
    tau = next(row for row in rows if row.metric == "kendall_tau")
    assert tau.value == pytest.approx(order) and tau.provenance is Provenance.MEASURED
    times = [row for row in rows if row.metric == "step_time"]
    assert {row.provenance for row in times} == {Provenance.MEASURED, Provenance.SIMULATED}
    assert plan_check.rows(request(), {}) == ([], [])


def test_report(tmp_path: Path) -> None:
    rows, _ = plan_check.rows(request(), results(1))
    made = Results(tmp_path, rows, {"target": "plan", "scale": "laptop"})
    (section,) = report.sections(made, None)
    assert len(section.lines) == 2 + 2 * 32
    assert {line.provenance for line in section.lines} == {"measured", "simulated"}
    report.draw(rows, tmp_path)
    assert (tmp_path / report.PICTURE).stat().st_size > 10_000
    report.draw([], tmp_path / "none")
    assert not (tmp_path / "none").exists()
