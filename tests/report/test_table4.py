"""Reports on table4 and figure1, from rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.datasets.paper import published
from repro.experiments.accuracy import figure1, table4
from repro.experiments.sweeps.rows import Row, write_rows
from repro.report import figure1 as figure1_report
from repro.report import table4 as table4_report
from repro.report.lines import Section
from repro.report.loading import Results
from repro.report.render import markdown
from tests.experiments.accuracy.test_figure1 import request as figure_request
from tests.experiments.accuracy.test_figure1 import translation
from tests.experiments.image_results import request, results

FETCHED = ("fashion-mnist", "digits", "openclipart")


@pytest.fixture(autouse=True)
def _fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("table4_plans", "table4_rows"):
        monkeypatch.setattr(f"repro.experiments.accuracy.{module}.present_sets", lambda: FETCHED)


@pytest.fixture
def rows() -> list[Row]:
    return table4.TARGET.rows(request(), results(request()))[0]


def as_results(rows: Sequence[Row], folder: Path, target: str = "table4") -> Results:
    versions: dict[str, str] = {}
    words = ("command", "date", "device", "device_name", "system", "git_revision", "python")
    run: dict[str, Any] = dict.fromkeys(words, "any") | {"versions": versions, "cores": 2}
    return Results(folder, rows, run | {"target": target, "scale": "laptop"})


def texts(sections: Sequence[Section]) -> dict[str, str]:
    return {line.what: line.yours for section in sections for line in section.lines}


def test_sections(rows: list[Row], tmp_path: Path) -> None:
    alone = table4_report.sections(as_results(rows, tmp_path), None)
    said = texts(alone)
    assert said["large: AmoebaNet-D (3, 16), 97 thousand parameters, test accuracy"] == "88.5% ± 0.5"
    assert said["K = 4: test images that are right"] == "1600"
    assert said["digits: fine-tuned"] == "71.0% ± 0.8"
    assert said["digits: fine-tuned less from scratch (points, same seeds)"] == "+10.0 ± 0.0"
    assert not any("emoji" in what for what in said if "fine-tuned" in what)
    assert "**Left out**, not fetched: emoji" in alone[-1].text
    (grid,) = alone[2].grids
    assert [row[0] for row in grid.rows] == [
        f"{n}, M = {m}" for n in ("BatchNorm", "GroupNorm") for m in (1, 4, 16, 64)
    ]
    assert grid.rows[-1][2:] == ["–", "–", "–"], "GroupNorm has no running statistics"
    beside = table4_report.sections(as_results(rows, tmp_path), as_results(rows, tmp_path / "reference"))
    assert all(line.reference == line.yours for section in beside for line in section.lines)


def test_the_published_table_stands_apart(rows: list[Row], tmp_path: Path) -> None:
    *_, transfer = table4_report.sections(as_results(rows, tmp_path), None)
    own, paper = transfer.grids
    assert "published" in paper.title and [row[0] for row in paper.rows] == [p["dataset"] for p in published("table4")]
    assert not {row[0] for row in own.rows} & {row[0] for row in paper.rows}
    assert all(line.paper == "–" for line in transfer.lines)


def test_figures_are_those_that_the_sections_name(rows: list[Row], tmp_path: Path) -> None:
    table4_report.draw(rows, tmp_path)
    made = table4_report.sections(as_results(rows, tmp_path), None)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {figure.name for section in made for figure in section.figures} == drawn
    assert drawn == {"table4_sizes.png", "table4_transfer.png", "table4_micro_batches.png"}
    assert markdown(as_results(rows, tmp_path), None, made).count("![") == 3
    lines = table4_report.headline(as_results(rows, tmp_path), None)
    assert len(lines) == 3 + 2 * 2


@pytest.mark.parametrize("part", [None, "sizes", "stages", "micro_batches", "fine_tuning", "data"])
def test_reports_on_some_of_the_rows(part: str | None, rows: list[Row], tmp_path: Path) -> None:
    some = [row for row in rows if row.params["part"] == part]
    table4_report.draw(some, tmp_path)
    made = table4_report.sections(as_results(some, tmp_path), None)
    named = {figure.name for section in made for figure in section.figures}
    assert named == {path.name for path in tmp_path.iterdir()}
    assert markdown(as_results(some, tmp_path), None, made)


@pytest.mark.parametrize("panels", ["a", "b", "ab"])
def test_figure1(panels: str, rows: list[Row], tmp_path: Path) -> None:
    if "a" in panels:
        write_rows(tmp_path / "in" / "table4" / "smoke", rows)
    if "b" in panels:
        write_rows(tmp_path / "in" / "figure3" / "smoke", translation())
    found = figure1.TARGET.rows(figure_request(tmp_path / "in"), {})[0]
    figure1_report.draw(found, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"figure1{panel}.png" for panel in panels}
    made = figure1_report.sections(as_results(found, tmp_path, "figure1"), None)
    for panel, section in zip("ab", made, strict=True):
        assert bool(section.lines) == bool(section.figures) == (panel in panels)
        assert ("**Left out**" in section.text) == (panel not in panels)
        assert "published" in section.grids[0].title
        assert len(section.grids[0].rows) == len(published(f"figure1{panel}"))
