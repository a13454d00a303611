from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.experiments.sweeps.rows import Provenance, Row
from repro.experiments.throughput import table as throughput_table
from repro.experiments.throughput import table2
from repro.report import table2 as report
from repro.report.lines import Grid, Section
from repro.report.loading import Results
from repro.report.render import markdown
from tests.experiments.throughput_results import asked, finished
from tests.report.test_report import RUN

MODELS = ("AmoebaNet-D (18, 256)", "Transformer-48")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput_table, "usable_cores", lambda: 2)
        request = asked("smoke", (2, 4, 8), models=None)
        made: list[Row] = table2.TARGET.rows(request, finished(request, 1.01))[0]
    return made


def sections_of(rows: list[Row], reference: list[Row] | None = None, **changes: Any) -> list[Section]:
    run = RUN | {"target": "table2", "missing": {}, "failures": {}} | changes
    other = None if reference is None else Results(Path("there/table2/smoke"), reference, run)
    return report.sections(Results(Path("here"), rows, run), other)


def column(grid: Grid, head: str) -> dict[str, str]:
    place = [name.startswith(head) for name in grid.columns].index(True)
    return {row[0]: row[place] for row in grid.rows}


def test_each_model_has_a_table_for_each_remat_with_a_column_for_each_provenance(rows: list[Row]) -> None:
    made = sections_of(rows)
    assert [section.title for section in made] == [f"Table 2: {model}" for model in MODELS]
    for section in made:
        assert [grid.title.split("remat ")[1] for grid in section.grids] == ["always", "never", "except_last"]
        for grid in section.grids:
            assert len(grid.rows) == 9
            for head in ("paper (published)", "simulated", "ideal", "emulated", "measured, scaled down"):
                assert head in grid.columns
    assert ["torchgpipe, batch (published)" in section.grids[0].columns for section in made] == [True, False]
    assert ["simulated, sub-layers separate" in section.grids[0].columns for section in made] == [False, True]


def test_published_figures_stand_in_their_columns(rows: list[Row]) -> None:
    amoebanet, transformer = sections_of(rows)
    assert column(amoebanet.grids[0], "paper")["8, 32"] == "3.48"
    assert column(transformer.grids[0], "paper")["8, 32"] == "6.30"
    # torchgpipe recomputed all micro-batches at M = 1, and all but the last elsewhere.
    always, _, except_last = (column(grid, "torchgpipe") for grid in amoebanet.grids)
    assert (always["4, 1"], always["8, 32"]) == ("1.00, 160", "–")
    assert (except_last["4, 1"], except_last["8, 32"]) == ("–", "4.95, 1280")


def test_what_was_not_run_is_left_empty_and_the_text_says_why(rows: list[Row]) -> None:
    transformer = sections_of(rows)[1]
    always, never, _ = (column(grid, "measured") for grid in transformer.grids)
    assert always["2, 4"] != "–" and (always["4, 4"], always["8, 32"]) == ("–", "–")
    assert set(never.values()) == {"–"}
    assert "Cells with K = 4, 8 are not measured: there are 2 cores" in transformer.text
    assert "scaled-down Transformer-4, width 64, 32 tokens" in transformer.text
    one = sections_of(rows, cores=1)[1]
    assert "Cells with K = 2, 4, 8 are not measured: there is 1 core," in one.text


def test_a_figure_never_stands_under_another_provenance(rows: list[Row]) -> None:
    changed = [
        Row.from_dict(row.as_dict() | {"value": 7.77}) if row.provenance is Provenance.EMULATED else row for row in rows
    ]
    for section in sections_of(changed):
        for grid in section.grids:
            for head, *cells in zip(grid.columns, *grid.rows, strict=True):
                assert ("7.77" in cells) == (head == "emulated" and grid.title.endswith("always"))


def test_the_shape_is_explained_with_figures_of_the_rows(rows: list[Row]) -> None:
    amoebanet, transformer = (section.text for section in sections_of(rows))
    assert "88% at M = 1, 64% at M = 4, 18% at M = 32" in transformer
    assert "3.2 against 2.29 at K = 4, M = 4" in transformer and "4.8 against 3.03 at K = 8, M = 4" in transformer
    assert "the paper gains 2.88 times" in amoebanet and "equal stages 3.38 to 3.52" in amoebanet
    assert "the ideal is 6.56 without re-materialization, 6.01 with it and 5.19 with all" in transformer
    assert "From M = 1 to M = 32 at K = 2 the paper gains 1.21 times" in amoebanet
    uneven = {
        (row.params["cut_by"], row.num_stages): row.value
        for row in rows
        if row.metric == "imbalance" and row.model == MODELS[0]
    }
    assert f"K = 8 stages costs {uneven['this project', 8]:.2f} times the mean" in amoebanet
    assert f"torchgpipe's own cut for K = 8, made on its machine, is at {uneven['torchgpipe', 8]:.2f}" in amoebanet
    doubled = [
        Row.from_dict(row.as_dict() | {"value": 2 * row.value}) if row.metric == "imbalance" else row for row in rows
    ]
    assert f"costs {2 * uneven['this project', 8]:.2f} times the mean" in sections_of(doubled)[0].text


def test_a_committed_run_stands_beside_ones_own(rows: list[Row]) -> None:
    assert sections_of(rows)[0].lines == []
    lines = sections_of(rows, rows)[0].lines
    found = next(one for one in lines if one.what == "AmoebaNet-D (18, 256), K = 8, M = 32, remat always")
    assert (found.provenance, found.paper) == ("emulated", "3.48") and found.yours == found.reference
    measured = [one for one in lines if one.provenance == "measured"]
    assert measured and all(one.what.startswith("scaled-down") and one.paper == "–" for one in measured)


def test_tables_and_figures_are_written(rows: list[Row], tmp_path: Path) -> None:
    report.draw(rows, tmp_path)
    assert (tmp_path / "table2.png").stat().st_size > 10_000
    made = sections_of(rows)
    assert [figure.name for section in made for figure in section.figures] == ["table2.png"]
    run = RUN | {"target": "table2"}
    text = markdown(Results(tmp_path, rows, run), None, made)
    assert "| 8, 32 | 6.30 |" in text and "![Table 2" in text


def test_a_run_without_emulated_and_measured_cells_is_reported(tmp_path: Path) -> None:
    only = table2.TARGET.rows(asked(), {})[0]
    (section,) = sections_of(only)
    assert set(column(section.grids[0], "emulated").values()) == {"–"}
    assert not any(head.startswith("measured") for head in section.grids[0].columns)
    report.draw(only, tmp_path)
    assert (tmp_path / "table2.png").exists()
