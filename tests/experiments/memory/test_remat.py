"""Re-materialization: rows and checks from what a part returns, and R before the gradient from events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.costs.scaled_down import SmallTransformer
from repro.experiments.memory.remat import LIMIT_CELL, parts, rows
from repro.experiments.memory.remat_steps import RematPlan, early_recomputes, time_remat
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.sweeps.sweep import Request
from repro.gpipe import Event
from repro.schedules import make_schedule, simulate


def request(scale: str = "laptop", stages: tuple[int, ...] = (2,), micro_batches: tuple[int, ...] = (8,)) -> Request:
    return Request(scale, "cpu", stages, micro_batches, {})


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.experiments.memory.remat.usable_cores", lambda: 2)


def test_cells_with_more_stages_than_cores_are_left_out() -> None:
    names = [part.name for part in parts(request(stages=(1, 2, 4), micro_batches=(4, 8)))]
    assert names == [f"{m}-K{k}-M{n}" for m in ("transformer", "amoebanet") for k in (1, 2) for n in (4, 8)]
    assert [part.world_size for part in parts(request())] == [2, 2]


def test_more_stages_than_layers() -> None:
    for scale, device in (("gpu", "cuda:0"), ("laptop", "cpu")):
        with pytest.raises(UserError, match=r"-K 9: Transformer-4 .* has 6 layers"):
            parts(Request(scale, device, (9,), (4,), {}))


def test_more_stages_than_cores_alone() -> None:
    with pytest.raises(UserError, match=r"-K 3 4: this machine has 2 cores"):
        parts(request(stages=(3, 4)))


def result(always: float, *, early: int = 10, peaks: tuple[int, int] = (10, 80)) -> dict[str, Any]:
    costs = {"forward": [1.0, 1.0], "backward": [2.0, 2.0], "recompute": [0.0, 0.0]}
    return {
        "partition": [3, 3],
        "seconds": {
            "always": [always * (1 + 0.1 * n) for n in range(10)],
            "except_last": [1.2 * (1 + 0.1 * n) for n in range(10)],
            "never": [1.0 + 0.1 * n for n in range(10)],
            "whole": [1.5 + 0.15 * n for n in range(10)],
        },
        "costs": dict.fromkeys(("always", "except_last", "never"), costs),
        "early": {"room": 10, "early": early, "hidden": 0.9},
        "peaks": {"always": [8, peaks[0]], "except_last": [8, peaks[0]], "never": [8, peaks[1]]},
    }


#   K = 2, M = 8, t_F = 1, t_B = 2: 27 without R, 35 with it early: 1.296
@pytest.mark.parametrize(
    ("model", "micro_batches", "always", "passed"),
    [
        ("transformer", 8, 1.32, True),
        ("transformer", 8, 1.34, False),  # the limit
        ("amoebanet", 8, 1.36, True),
        ("amoebanet", 8, 1.37, False),  # 1.05 x 35 / 27
        ("transformer", 4, 1.33, True),
        ("transformer", 4, 1.35, False),  # 1.05 x 19 / 15
    ],
)
def test_limits(model: str, micro_batches: int, always: float, passed: bool) -> None:
    asked = request(micro_batches=(micro_batches,))
    made, checks = rows(asked, {f"{model}-K2-M{micro_batches}": result(always)})
    assert checks[0].passed is passed, checks[0].text
    assert all(check.passed for check in checks[1:])
    assert LIMIT_CELL == ("transformer", 2, 8)
    ratio = next(r for r in made if (r.metric, r.remat, r.provenance) == ("time_ratio", "always", Provenance.MEASURED))
    assert ratio.value == pytest.approx(always) and ratio.spread == pytest.approx(0, abs=1e-12)
    memory = next(row for row in made if (row.metric, row.remat) == ("memory_ratio", "always"))
    assert memory.value == 10 / 80
    device = next(row for row in made if (row.metric, row.remat) == ("device_time_ratio", "never"))
    assert device.value == pytest.approx(2 / 1.5)


def test_late_recomputes_fail() -> None:
    _, checks = rows(request(), {"transformer-K2-M8": result(1.3, early=9)})
    assert [check.passed for check in checks] == [True, True, False]
    assert "9 of 10 traced cases" in checks[-1].text


def test_few_rounds_are_not_judged() -> None:
    _, checks = rows(request("smoke"), {"transformer-K2-M8": result(9.9)})
    assert len(checks) == 1 and "began before" in checks[0].text


def events(recompute: float) -> list[Event]:
    """GPipe's schedule, K = 2 and M = 2, as it would run; ``recompute``: when stage 0 starts its first R."""
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=2, remat="always")
    line = simulate(schedule, recompute=1.0)
    made = []
    for rank, actions in enumerate(schedule.actions):
        for action, start, end in zip(actions, line.starts[rank], line.ends[rank], strict=True):
            begun = float(start)
            if (action.kind.value, action.stage, action.micro_batch) == ("R", 0, 1) and recompute:
                begun = recompute
            lasts = float(end) - float(start)
            made.append(Event(rank, action.kind.value, action.stage, action.micro_batch, 0.0, begun, begun + lasts))
    return made


#   rank 0:  F0 F1 R1 ..... B1       R1 runs from 2 to 3
#   rank 1:  .. F0 F1 R1 B1 B1       B1 ends at 6
@pytest.mark.parametrize(("begun", "early", "hidden"), [(0.0, 1, 1.0), (5.5, 1, 0.5), (6.0, 0, 0.0), (7.0, 0, 0.0)])
def test_early_recomputes(begun: float, early: int, hidden: float) -> None:
    found = early_recomputes([events(begun)], 2, 2)
    assert found == {"room": 1, "early": early, "hidden": pytest.approx(hidden)}


def test_a_cell_on_one_process() -> None:
    model = SmallTransformer(num_layers=2, d_model=16, d_ff=32, length=8, batch_size=4)
    plan = RematPlan(model, 1, 4, processes=False, device="cpu", rounds=2, warm_up=1)
    made = time_remat(0, lambda share, words: None, plan)
    assert {name: len(values) for name, values in made["seconds"].items()} == dict.fromkeys(
        ("always", "except_last", "never", "whole"), 2
    )
    assert made["costs"]["never"]["recompute"] == [0.0] and made["costs"]["always"]["recompute"][0] > 0
    assert made["peaks"]["always"][0] < made["peaks"]["never"][0]
    asked = replace(request(stages=(1,), micro_batches=(4,)))
    assert rows(asked, {"transformer-K1-M4": made})[0]
