"""Figure 1: what it reads, and what it says when there is nothing to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.errors import UserError
from repro.experiments.accuracy.figure1 import TARGET
from repro.experiments.sweeps.rows import Provenance, Row, write_rows
from repro.experiments.sweeps.sweep import Request


def made_row(experiment: str, metric: str, value: float, unit: str = "1", **params: Any) -> Row:
    model = f"model of {params.get('parameters')}"
    return Row(experiment, model, 8, 1, 1, None, None, Provenance.MEASURED, metric, value, unit, 0.1, params)


def images() -> list[Row]:
    about = {"part": "sizes", "data": "fashion-mnist", "seeds": 3}
    return [
        made_row("table4", "mean_accuracy", 0.9, parameters=400, **about),
        made_row("table4", "mean_accuracy", 0.8, parameters=100, **about),
        made_row("table4", "accuracy", 0.8, parameters=100, **about),
        made_row("table4", "mean_accuracy", 0.7, parameters=100, **(about | {"part": "scratch"})),
    ]


def translation() -> list[Row]:
    return [
        made_row("figure3", "average_bleu", 9.0, "BLEU", part="model", trained_on="multilingual", parameters=9_000),
        made_row("figure3", "average_bleu", 3.0, "BLEU", part="model", trained_on="copy"),
        made_row("figure3", "bleu", 5.0, "BLEU", part="language", trained_on="multilingual", parameters=9_000),
    ]


def request(folder: Path | None) -> Request:
    return Request("smoke", "cpu", None, None, {"rows": None if folder is None else str(folder)})


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (("table4",), [("a", 100, 0.8), ("a", 400, 0.9)]),
        (("figure3",), [("b", 9_000, 9.0)]),
        (("table4", "figure3"), [("a", 100, 0.8), ("a", 400, 0.9), ("b", 9_000, 9.0)]),
    ],
)
def test_rows_of_other_targets(there: Sequence[str], expected: list[Any], tmp_path: Path) -> None:
    for name, made in (("table4", images()), ("figure3", translation())):
        if name in there:
            write_rows(tmp_path / name / "smoke", made)
    assert TARGET.parts(request(tmp_path)) == []
    rows, checks = TARGET.rows(request(tmp_path), {})
    assert [(row.params["panel"], row.params["parameters"], row.value) for row in rows] == expected
    assert {row.experiment for row in rows} == {"figure1"} and checks == []
    assert {row.params["source"] for row in rows} == set(there)
    assert all(row.provenance is Provenance.MEASURED and row.spread == 0.1 for row in rows)


@pytest.mark.parametrize("own", [True, False])
def test_nothing_to_read(own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "table4" / "laptop", images())  # of another scale
    message = r"`repro run table4 --scale smoke` .* `repro run figure3 --scale smoke` .* --rows"
    with pytest.raises(UserError, match=message):
        TARGET.rows(request(tmp_path if own else None), {})
