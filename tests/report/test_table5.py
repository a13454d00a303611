"""The report on Table 5, from rows alone."""

from __future__ import annotations

from pathlib import Path

from repro.experiments.accuracy.table5_plans import settings
from repro.experiments.accuracy.table5_rows import rows
from repro.report import table5 as report
from repro.report.lines import NOTHING
from repro.report.loading import Results
from tests.experiments.translation_results import LAPTOP, SMOKE, table5_results

RUN = {"target": "table5", "scale": "laptop"}


def test_tables_and_picture(tmp_path: Path) -> None:
    own = Results(tmp_path, rows(LAPTOP, table5_results())[0], RUN)
    steps, samples, baselines = report.sections(own, own)
    assert [section.title for section in (steps, samples, baselines)] == ["Equal steps", "Equal samples", "Baselines"]
    smallest, _, _, nll, *_ = steps.lines
    begin = f"equal steps: batches of 16 sentence pairs, {settings('laptop').steps} steps: "
    assert smallest.what == f"{begin}BLEU" and smallest.paper == "30.92 (260K tokens)"
    assert nll.paper == "2.58 (260K tokens)" and nll.what.startswith(begin)
    assert all(line.paper == NOTHING for line in samples.lines) and len(samples.lines) == 6
    assert [line.yours for line in baselines.lines] == ["4.00", "8.00"]
    assert "28 tokens" in steps.text and report.headline(own, None)[0].what.endswith(f", {smallest.what}")
    report.draw(own.rows, tmp_path)
    assert (tmp_path / report.PICTURE).stat().st_size > 10_000


def test_without_parts(tmp_path: Path) -> None:
    found = table5_results(SMOKE)
    del found["baselines"]
    made, _ = rows(SMOKE, found)
    (only,) = report.sections(Results(tmp_path, made, RUN), None)
    assert only.title == "Equal steps"
    report.draw(made, tmp_path)
    assert report.sections(Results(tmp_path, [], RUN), None) == []
    report.draw([], tmp_path / "none")
    assert not (tmp_path / "none").exists()
