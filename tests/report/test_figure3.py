"""The report on Figure 3, from rows alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments.accuracy.figure3_rows import rows
from repro.report import figure3 as report
from repro.report.lines import NOTHING
from repro.report.loading import Results
from tests.experiments.translation_results import LAPTOP, SMOKE, figure3_results


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Results:
    made, _ = rows(LAPTOP, figure3_results())
    return Results(tmp_path_factory.mktemp("figure3"), made, {"target": "figure3", "scale": "laptop"})


def test_tables(own: Results) -> None:
    sizes, gains, languages, pools = report.sections(own, own)
    by_name = {line.what: line for section in (sizes, gains, pools) for line in section.lines}
    nll = next(line for what, line in by_name.items() if what.startswith("large") and "NLL" in what)
    assert "pipeline of K=2 processes" in nll.what and nll.yours == nll.reference == "2.700" and nll.paper == NOTHING
    average = next(line for what, line in by_name.items() if what.startswith("deep") and "average BLEU" in what)
    assert (average.yours, average.paper) == ("13.00", "34.55 (T(24, 8192, 16))")
    loss = next(line for what, line in by_name.items() if what.startswith("deep") and "training loss" in what)
    assert loss.yours == loss.reference == "2.466"  # 5 less a thousandth a step, mean of the last 130 of 2,600
    low = by_name["large, low group"]
    assert (low.yours, low.paper) == ("+12.00", "+10.1 (T(32, 16384, 32))")
    assert by_name["deep, all languages that have one"].paper == NOTHING  # hidden in the paper's figure
    assert "12 languages, 13,000 to 1,083 training pairs" in sizes.text
    bleu, chrf = languages.grids
    assert [row[0] for row in bleu.rows][:2] == ["es", "sv"] and len(bleu.rows) == len(chrf.rows) == 12
    es = dict(zip(bleu.columns, bleu.rows[0], strict=True))
    assert (es["copy"], es["nearest"], es["bilingual"], es["large"]) == ("4.0", "8.0", "12.0", "15.0")
    assert dict(zip(bleu.columns, bleu.rows[2], strict=True))["bilingual"] == NOTHING
    assert any(what.startswith("fewer, low group, 320 sentences") for what in by_name)
    assert report.headline(own, None)[0].what.endswith("width 128: BLEU above bilingual models, large, high group")


def test_picture(own: Results) -> None:
    report.draw(own.rows, own.folder)
    assert (own.folder / report.PICTURE).stat().st_size > 20_000


@pytest.mark.parametrize("missing", ["baselines", "multilingual-base", "bilingual-nn"])
def test_without_a_part(own: Results, missing: str, tmp_path: Path) -> None:
    found = figure3_results(SMOKE)
    del found[missing]
    made, _ = rows(SMOKE, found)
    assert report.sections(Results(tmp_path, made, own.run), own)
    assert report.sections(Results(tmp_path, made, own.run), None)
    if missing == "baselines":  # drawing is slow
        report.draw(made, tmp_path)


def test_no_rows_no_report(own: Results, tmp_path: Path) -> None:
    assert report.sections(Results(tmp_path, [], own.run), None) == []
    report.draw([], tmp_path)
    assert not list(tmp_path.iterdir())
