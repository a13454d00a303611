"""The report on deep Transformers, from rows alone."""

from __future__ import annotations

from pathlib import Path

from repro.experiments.accuracy.depth import CLIP, rows
from repro.report import depth as report
from repro.report.loading import Results
from tests.experiments.depth_results import LAPTOP, depth_results

RUN = {"target": "depth", "scale": "laptop"}


def test_table_and_picture(tmp_path: Path) -> None:
    own = Results(tmp_path, rows(LAPTOP, depth_results())[0], RUN)
    (section,) = report.sections(own, own)
    assert section.title == "64 layers, with and without each cure"
    assert "deep models become unstable" in section.text and "What it does not show" in section.text
    yours, reference = section.grids
    assert yours.rows == reference.rows and len(yours.rows) == 8
    cells = {row[0]: list(row[1:]) for row in yours.rows}
    assert cells["3, both"] == ["3.50", "3.50", "3.50", f"{CLIP:.1f}", "3.00", "40"]
    last = f"{3.5 * 1.1**39:.2f}"
    assert cells["1.5, neither"][:3] == ["3.50", last, last]
    assert all(len(row) == len(yours.columns) for row in yours.rows)
    lines = {line.what: line.yours for line in section.lines}
    about = "loss, first, largest and last; largest logit"
    assert lines[f"learning rate 3, neither: {about}"] == f"3.50, {last}, {last} nat; 5.0"
    assert len(lines) == 8 and report.headline(own, None)[0].what.removeprefix("T(32, 64, 2), width 16, ") in lines
    report.draw(own.rows, tmp_path)
    assert (tmp_path / report.PICTURE).stat().st_size > 10_000


def test_without_parts(tmp_path: Path) -> None:
    some = dict(list(depth_results().items())[:1])
    made, _ = rows(LAPTOP, some)
    (section,) = report.sections(Results(tmp_path, made, RUN), None)
    (grid,) = section.grids
    assert len(grid.rows) == 1
    report.draw(made, tmp_path)
    assert report.sections(Results(tmp_path, [], RUN), None) == []
    report.draw([], tmp_path / "none")
    assert not (tmp_path / "none").exists()
