"""The report on the schedules, from rows alone."""

from __future__ import annotations

from pathlib import Path

from repro.experiments.schedules import schedules
from repro.experiments.schedules.schedule_plan import ORDERS
from repro.experiments.sweeps.sweep import Request
from repro.report import schedules as report
from repro.report.loading import Results
from tests.experiments.schedule_results import results_of


def results(folder: Path) -> Results:
    asked = Request("laptop", "cpu", (2, 4), (3, 8), {})
    found = {name: results_of(plan, {"gpipe": 1.1}) for name, plan in schedules.plans(asked).items()}
    return Results(folder, schedules.rows(asked, found)[0], {"target": "schedules", "scale": "laptop"})


def test_tables_and_picture(tmp_path: Path) -> None:
    own = results(tmp_path)
    times, memory = report.sections(own, None)
    assert not times.lines
    assert [grid.title.partition(":")[0] for grid in times.grids] == [
        f"K = {stages}, remat {remat}" for stages in (2, 4) for remat in ("never", "always")
    ]
    assert all(len(grid.rows) == 2 * len(ORDERS) for grid in (*times.grids, *memory.grids))
    by_name = {row[0]: row[1:] for row in times.grids[2].rows}
    # (M + K - 1) (t_F + t_B) = 11 x 30 ms; with V = 2 (M + (K - 1) / 2) x 30 ms
    assert by_name["M = 8: gpipe"] == ["363.0 ± 0.0 ms", "330.0 ms", "330.0 ± 0.0 ms", "+10.0%"]
    assert by_name["M = 8: interleaved (V = 2)"][1] == "285.0 ms"
    by_name = {row[0]: row[1:] for row in memory.grids[2].rows}
    assert by_name["M = 8: gpipe"] == ["27.3% ± 0.0", "27.3%", "8", "8"]
    assert by_name["M = 8: interleaved (V = 2)"][2:] == ["5.5", "5.5"]
    report.draw(own.rows, tmp_path)
    assert [figure.name for figure in memory.figures] == list(report.PICTURES)
    assert (tmp_path / report.PICTURES[0]).stat().st_size > 10_000


def test_step_times_beside_those_of_the_reference(tmp_path: Path) -> None:
    own = results(tmp_path)
    times, _ = report.sections(own, own)
    assert len(times.lines) == sum(len(grid.rows) for grid in times.grids)
    assert all(one.yours == one.reference and one.provenance == "emulated" for one in times.lines)


def test_no_rows_no_report(tmp_path: Path) -> None:
    assert report.sections(Results(tmp_path, [], {"target": "schedules"}), None) == []
    report.draw([], tmp_path)
    assert not list(tmp_path.iterdir())
