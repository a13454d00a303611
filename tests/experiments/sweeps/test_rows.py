from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from repro.errors import UserError
from repro.experiments.sweeps.rows import Provenance, Row, RowError, read_rows, write_rows, write_text

ROW = Row(
    experiment="step_time",
    model="Transformer",
    batch_size=32,
    num_stages=2,
    num_micro_batches=8,
    schedule="gpipe",
    remat="never",
    provenance=Provenance.MEASURED,
    metric="step_time",
    value=0.5,
    unit="s",
    spread=0.01,
    params={"way": "this engine", "V": 1, "partition": [2, 2], "D": 1},
)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        ROW,
        replace(ROW, batch_size=None, num_stages=None, spread=None, provenance=Provenance.SIMULATED, params={}),
        replace(ROW, params={"text": "ends of lines in Unicode: \u2028, \x85"}),
    ]
    write_rows(tmp_path / "new" / "folder", rows)
    assert read_rows(tmp_path / "new" / "folder") == rows


def test_the_fields_and_their_order_are_those_of_the_format(tmp_path: Path) -> None:
    (line,) = write_rows(tmp_path, [ROW]).read_text().splitlines()
    data = json.loads(line)
    assert list(data) == [
        "schema",
        "experiment",
        "model",
        "batch_size",
        "num_stages",
        "num_micro_batches",
        "schedule",
        "remat",
        "provenance",
        "metric",
        "value",
        "unit",
        "spread",
        "params",
    ]
    assert list(data["params"]) == ["D", "V", "partition", "way"]
    assert data["schema"] == 1
    assert data["provenance"] == "measured"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"provenance": "guessed"}, "published, measured, emulated, simulated"),
        ({"value": float("nan")}, "finite"),
        ({"value": float("inf")}, "finite"),
        ({"value": None}, "finite"),
        ({"value": True}, "finite"),
        ({"spread": float("nan")}, "spread"),
        ({"metric": ""}, "metric"),
        ({"schema": 2}, "schema=2"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, object], part: str) -> None:
    with pytest.raises(RowError, match=part):
        replace(ROW, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "line 2"),
        ("[1]", "JSON object"),
        (json.dumps(ROW.as_dict() | {"colour": "red"}), "colour"),
        (json.dumps({k: v for k, v in ROW.as_dict().items() if k != "unit"}), "unit"),
        (json.dumps(ROW.as_dict() | {"provenance": "guessed"}), "guessed"),
    ],
)
def test_a_bad_file_is_told_with_its_line(line: str, part: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path, [ROW])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RowError, match=part) as raised:
        read_rows(tmp_path)
    assert "line 2" in str(raised.value)


def test_no_rows_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"no rows\.jsonl in"):
        read_rows(tmp_path)


def test_rows_that_cannot_be_read_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(RowError, match=r"rows\.jsonl cannot be read .*run the target again"):
        read_rows(tmp_path)
    (tmp_path / "rows.jsonl").unlink()
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(RowError, match=r"rows\.jsonl cannot be read .*directory"):
        read_rows(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path, [ROW])

    def broken(source: str, target: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_rows(tmp_path, [ROW, ROW])
    assert read_rows(tmp_path) == [ROW]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_row_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    write_rows(tmp_path, [ROW])
    with pytest.raises(ValueError, match="JSON"):
        write_rows(tmp_path, [ROW, replace(ROW, params={"x": float("nan")})])
    assert read_rows(tmp_path) == [ROW]


def test_a_folder_that_cannot_be_made_is_the_users_to_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--results"):
        write_text(tmp_path / "file" / "rows.jsonl", "")
