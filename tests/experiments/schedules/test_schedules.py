from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.schedules import schedules
from repro.experiments.schedules.schedule_plan import ORDERS, Order, SchedulePlan
from repro.experiments.schedules.schedule_steps import run_schedules
from repro.experiments.sweeps.checks import Check
from repro.experiments.sweeps.ranks import Job, run_jobs
from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.sweeps.sweep import Request
from repro.schedules import GENERATORS, SIMULATED_ONLY, simulate
from tests.experiments.schedule_results import results_of


def request(scale: str = "laptop", **numbers: tuple[int, ...]) -> Request:
    return Request(scale, "cpu", numbers.get("stages"), numbers.get("micro_batches"), {})


def made(asked: Request, slower: dict[str, float] | None = None) -> tuple[list[Row], list[Check]]:
    found = {name: results_of(plan, slower or {}) for name, plan in schedules.plans(asked).items()}
    return schedules.rows(asked, found)


def failed(checks: list[Check]) -> list[str]:
    return [check.text for check in checks if not check.passed]


def test_all_executable_schedules_run_for_every_k_and_m() -> None:
    assert [order.schedule for order in ORDERS] == [name for name in GENERATORS if name not in SIMULATED_ONLY]
    plans = schedules.plans(request())
    assert list(plans) == ["k4-never", "k4-always", "k8-never"]
    assert {8, 16, 32} <= set(plans["k4-never"].micro_batches)
    assert {8, 32} <= set(plans["k8-never"].micro_batches)
    assert all(plan.orders == ORDERS for plan in plans.values())
    chosen = schedules.plans(request(stages=(2,), micro_batches=(5,)))
    assert {(plan.num_stages, plan.micro_batches) for plan in chosen.values()} == {(2, (5,))}
    assert [part.name for part in schedules.parts(request())] == list(plans)


def test_a_single_stage_is_refused() -> None:
    with pytest.raises(UserError, match="-K 1"):
        schedules.plans(request(stages=(1,)))


@pytest.mark.parametrize("name", ["k4-never", "k4-always", "k8-never"])
def test_a_first_stage_with_its_whole_backward_in_w_takes_no_longer(name: str) -> None:
    """So the simulated times are those of I and W of half a backward each on every stage."""
    plan = schedules.plans(request())[name]
    for order in plan.orders:
        for number in plan.micro_batches:
            virtual = order.num_virtual_stages
            halves = simulate(
                plan.schedule(order, number), plan.forward / virtual, plan.backward / virtual, plan.forward / virtual
            )
            assert float(plan.simulated(order, number).makespan) == pytest.approx(float(halves.makespan))


def test_steps_as_simulated_pass_all_checks() -> None:
    rows, checks = made(request())
    assert failed(checks) == []
    texts = [check.text for check in checks]
    for name in ("zb-h1", "interleaved"):
        assert any(text.startswith(f"K = 4, M = 16, remat never: {name} takes") for text in texts), name
    peaks = {
        (row.schedule, row.provenance): row.value
        for row in rows
        if (row.metric, row.num_stages, row.num_micro_batches, row.remat) == ("peak_live", 4, 16, "never")
    }
    for provenance in (Provenance.EMULATED, Provenance.SIMULATED):
        assert (peaks["1f1b", provenance], peaks["gpipe", provenance]) == (4, 16)


def test_a_step_that_its_costs_do_not_explain_fails() -> None:
    asked = request(stages=(4,), micro_batches=(16,))
    (slow,) = failed(made(asked, {"gpipe": 1.06})[1])
    assert "within 5%" in slow and "+6.0% (gpipe)" in slow
    assert failed(made(asked, {"gpipe": 1.04})[1]) == []
    assert any("zb-h1 takes" in text for text in failed(made(asked, {"zb-h1": 1.2})[1]))


def test_other_live_activations_fail() -> None:
    asked = request("smoke")
    ((name, plan),) = schedules.plans(asked).items()
    results: list[dict[str, Any]] = results_of(plan, {})
    assert failed(schedules.rows(asked, {name: results})[1]) == []
    results[1]["peak_live"][0] += 1
    (text,) = failed(schedules.rows(asked, {name: results})[1])
    assert "live activations" in text


def test_parts_that_have_not_finished_have_no_rows() -> None:
    assert schedules.rows(request(), {}) == ([], [])


def test_steps_on_real_processes(tmp_path: Path) -> None:
    orders = (Order("1f1b", 1), Order("interleaved", 2), Order("zb-h1", 1))
    plan = SchedulePlan(2, (1, 3), "never", 2e-3, 4e-3, 2, orders)
    ((found, _),) = run_jobs([Job("schedules", run_schedules, (plan,), tmp_path / "log", 2, timeout=120)])
    assert [(one["num_micro_batches"], one["schedule"]) for one in found] == [
        (number, order.schedule) for number in (1, 3) for order in orders
    ]
    for one, order in zip(found, orders * 2, strict=True):
        timeline = plan.simulated(order, one["num_micro_batches"])
        assert tuple(one["peak_live"]) == timeline.peak_live
        assert len(one["seconds"]) == len(one["bubbles"]) == len(one["costs"]) == 2
        assert min(one["seconds"]) >= float(timeline.makespan)
        assert all(0 < bubble < 1 for bubble in one["bubbles"])
