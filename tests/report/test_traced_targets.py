"""Reports on breakdown, bubble and figure2, from rows alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from repro.experiments.bubble import breakdown, bubble, figure2
from repro.experiments.sweeps.rows import Row
from repro.experiments.sweeps.sweep import Request
from repro.experiments.traces.tracing_overhead import PLAIN, TRACED
from repro.report import breakdown as breakdown_report
from repro.report import bubble as bubble_report
from repro.report import figure2 as figure2_report
from repro.report.loading import Results
from tests.experiments.steps import results_of

REQUEST = Request("smoke", "cpu", None, None, {})


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def rows_of(target: ModuleType) -> list[Row]:
    plans = target.plans(REQUEST)
    listed = list(plans.values()) if isinstance(plans, dict) else plans
    results: dict[str, object] = {
        part.name: results_of(plan) for part, plan in zip(target.parts(REQUEST), listed, strict=False)
    }
    results["tracing"] = {"seconds": {TRACED: [1.0] * 3, PLAIN: [1.0] * 3}, "cost": 3e-6}
    rows: list[Row] = target.rows(REQUEST, results)[0]
    return rows


def results(rows: Sequence[Row], folder: Path) -> Results:
    return Results(folder, rows, {"target": "any", "scale": "smoke"})


@pytest.mark.parametrize(
    ("target", "report", "files"),
    [
        (
            breakdown,
            breakdown_report,
            [
                "breakdown.png",
                *(
                    f"trace_{how}_{family}_k2_m16.{kind}"
                    for how in ("emulated", "measured")
                    for family in ("amoebanet", "transformer")
                    for kind in ("json", "svg")
                ),
            ],
        ),
        (bubble, bubble_report, ["bubble.png", "micro_batches.png"]),
        (
            figure2,
            figure2_report,
            [
                "figure2.png",
                *(
                    f"trace_{run}_m{number}.{kind}"
                    for run in ("emulated_k4", "measured_k2")
                    for number in (1, 4)
                    for kind in ("json", "svg")
                ),
            ],
        ),
    ],
)
def test_figures_and_traces_are_drawn_from_rows(
    target: ModuleType, report: ModuleType, files: list[str], tmp_path: Path
) -> None:
    rows = rows_of(target)
    report.draw(rows, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    for path in tmp_path.glob("*.json"):
        assert json.loads(path.read_text())["traceEvents"]
    alone = report.sections(results(rows, tmp_path), None)
    beside = report.sections(results(rows, tmp_path), results(rows, tmp_path / "reference"))
    for made in (alone, beside):
        assert {figure.name for section in made for figure in section.figures} <= set(files)
        for section in made:
            assert section.lines or section.grids
            for grid in section.grids:
                assert {len(row) for row in grid.rows} == {len(grid.columns)}
    assert all(one.reference == one.yours for section in beside for one in section.lines)
    report.draw([], tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    assert all(not section.lines for section in report.sections(results([], tmp_path), None))


def test_the_breakdown_stands_beside_the_published_one(tmp_path: Path) -> None:
    (grid,) = breakdown_report.sections(results(rows_of(breakdown), tmp_path), None)[0].grids
    by_part = {row[0]: row[1:] for row in grid.rows}
    assert by_part["computation"][0] == "65.6%"
    assert by_part["communication"][0] == "–"
    assert [text == "not emulated" for text in by_part["weight update"]] == [False, False, False, True, True]


def test_verdicts_are_computed_and_say_why(tmp_path: Path) -> None:
    *_, judged = bubble_report.sections(results(rows_of(bubble), tmp_path), None)
    (grid,) = judged.grids
    assert {row[0] for row in grid.rows} == {
        "M >= 4K makes the bubble small", "M = 4K to 8K is the sweet spot", "throughput needs M >= 4K",
    }  # fmt: skip
    assert {row[2] for row in grid.rows} <= {"holds", "does not hold"}
    assert all("M = " in row[3] for row in grid.rows)
