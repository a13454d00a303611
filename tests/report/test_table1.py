"""The reports on Table 1 and on re-materialization, from rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.experiments.memory import remat as remat_target
from repro.experiments.memory import table1 as table1_target
from repro.experiments.memory.full_size_memory import AMOEBANET, TRANSFORMER
from repro.experiments.sweeps.rows import Row
from repro.experiments.sweeps.sweep import Request
from repro.report import remat, table1
from repro.report.lines import NOTHING, Section
from repro.report.loading import Results

GIB = 2**30


def results(folder: Path, rows: list[Row], target: str) -> Results:
    return Results(folder, rows, {"target": target, "scale": "smoke"})


def full_size(model: str, size: list[int], spare: float, micro_batches: int) -> dict[str, Any]:
    about = {
        "dtype": "float32",
        "attention": None if model == AMOEBANET else "fused",
        "configuration": "pipeline-1",
        "num_stages": 1,
        "num_micro_batches": micro_batches,
        "remat": "always",
    }
    memory = 16 * GIB
    cell = about | {
        "size": [18, 416] if model == AMOEBANET else [13],
        "partition": [15],
        "parameter_bytes": 8 * GIB,
        "activation_bytes": [2 * GIB],
        "largest_stage": int(memory - spare * GIB),
        "spare": spare * GIB,
    }
    count = {
        "configuration": "pipeline-1",
        "num_stages": 1,
        "size": cell["size"],
        "parameters": 785e6,
        "published": 785.8e6,
    }
    found = about | {"size": size, "parameters": 1}
    return {
        "memory_bytes": memory, "batch_size": 32, "counts": [count], "cells": [cell], "search": [found],
        "sweep": [found | {"num_micro_batches": 8, "size": [13]}],
    }  # fmt: skip


def measured(scale: float) -> list[dict[str, Any]]:
    return [
        {
            "num_micro_batches": m,
            "remat": remat,
            "partition": [5, 5],
            "predicted": [2**20, int(2**21 / m)],
            "measured": [2**20, int(2**21 / m * scale)],
            "allocated": None,
        }
        for m in (1, 2, 4)
        for remat in ("always", "never")
    ]


@pytest.fixture
def made(tmp_path: Path) -> Results:
    request = Request("laptop", "cpu", (2,), (1, 2, 4), {})
    parts = {
        "full-size-transformer": full_size(TRANSFORMER, [21], 5.5, 32),
        "full-size-amoebanet": full_size(AMOEBANET, [18, 544], -1.5, 128),
        "measured-transformer-K2": measured(1.02),
    }
    return results(tmp_path, table1_target.rows(request, parts)[0], "table1")


def by_title(sections: list[Section]) -> dict[str, Section]:
    return {section.title: section for section in sections}


def test_table1_points_out_what_the_paper_prints_wrong(made: Results) -> None:
    sections = by_title(table1.sections(made, None))
    assert "25x for AmoebaNet-D pipeline-8 against naive-1, where its own table has 22x (**not the same**)" in (
        sections["Parameters of every column"].text
    )
    assert sections["Parameters of every column"].text.count("**not the same**") == 1
    swapped = sections["Memory of the published sizes: Transformer-L"].text
    assert "naive-1 prints 11.7 for parameters and 3.15 for activations" in swapped and "3.15 GiB" in swapped
    assert swapped.count("look swapped") == 1


def test_table1_says_by_how_much_memory_the_search_differs(made: Results) -> None:
    sections = by_title(table1.sections(made, None))
    text = sections["The search: Transformer-L"].text
    assert "pipeline-1: the paper's L=13 leaves 5.5 GiB (float32, fused attention)" in text
    assert "gives exactly its choice for pipeline-1 with M=8, float32, fused attention" in text
    assert "the paper's (18, 416) lacks 1.5 GiB (float32)" in sections["The search: AmoebaNet-D"].text
    (line,) = sections["The search: Transformer-L"].lines
    assert (line.paper, line.yours, line.reference) == ("L=13", "L=21", NOTHING)
    counted = sections["Parameters of every column"].lines
    assert [line.paper for line in counted] == ["318M", "785.8M"]


def test_table1_shows_the_worst_prediction(made: Results) -> None:
    lines = by_title(table1.sections(made, made))["Measured on scaled-down models"].lines
    worst = next(line for line in lines if "largest difference" in line.what)
    assert worst.yours == worst.reference == "1.96%"
    assert {line.provenance for line in lines if line is not worst} == {"measured", "simulated"}


def test_pictures_are_drawn(made: Results, tmp_path: Path) -> None:
    table1.draw(made.rows, tmp_path)
    named = [figure.name for section in table1.sections(made, None) for figure in section.figures]
    assert named and all((tmp_path / name).stat().st_size > 5000 for name in named)
    table1.draw([], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_remat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remat_target, "usable_cores", lambda: 2)
    costs = {"forward": [1.0, 1.0], "backward": [2.0, 2.0], "recompute": [1.0, 1.0]}
    result = {
        "partition": [3, 3],
        "seconds": {"always": [1.3] * 10, "except_last": [1.2] * 10, "never": [1.0] * 10, "whole": [1.6] * 10},
        "costs": dict.fromkeys(("always", "except_last", "never"), costs),
        "early": {"room": 10, "early": 10, "hidden": 0.75},
        "peaks": {"always": [10, 8], "except_last": [12, 8], "never": [80, 40]},
    }
    request = Request("laptop", "cpu", (2,), (8,), {})
    made = results(tmp_path, remat_target.rows(request, {"transformer-K2-M8": result})[0], "remat")
    sections = by_title(remat.sections(made, None))
    shown = {
        line.what.split(": ", 1)[1]: line.yours for line in sections["Time and memory"].lines if "always" in line.what
    }
    assert shown["activation memory / that of never"] == "0.125×"
    assert shown["K x step time / that of one full device"] == "1.625 ± 0.000×"
    early = [line.yours for line in sections["R runs before the gradient arrives"].lines]
    assert early == ["100%", "75%"]
    rules = sections["Rules of thumb in circulation"]
    assert [line.yours for line in rules.lines] == ["+30%, 8.0x less", "+20%, 6.7x less"]
    assert "about 30% more compute for 10x memory" in rules.text
    remat.draw(made.rows, tmp_path)
    assert (tmp_path / remat.PICTURE).stat().st_size > 5000
