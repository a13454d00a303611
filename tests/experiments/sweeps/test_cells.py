from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from repro.experiments.sweeps.cells import Cell, CellStore
from repro.experiments.sweeps.rows import read_rows
from tests.experiments.sweeps.test_rows import ROW

CELL = Cell("speed", {"rounds": 3, "workload": {"rows": 4}})
CONTEXT = {"git_revision": "abc", "torch": "2.14.1", "device": "cpu"}


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    store = CellStore(tmp_path, CONTEXT)
    assert store.load(CELL) is None
    store.save(CELL, {"seconds": [1.5]})
    assert CellStore(tmp_path, dict(reversed(CONTEXT.items()))).load(CELL) == {"seconds": [1.5]}


@pytest.mark.parametrize("changed", list(CONTEXT))
def test_other_code_torch_or_device_is_another_cell(changed: str, tmp_path: Path) -> None:
    CellStore(tmp_path, CONTEXT).save(CELL, 1)
    assert CellStore(tmp_path, CONTEXT | {changed: "other"}).load(CELL) is None


def test_other_parameters_are_another_cell_and_both_are_kept(tmp_path: Path) -> None:
    store = CellStore(tmp_path, CONTEXT)
    other = Cell("speed", {"rounds": 3, "workload": {"rows": 5}})
    store.save(CELL, 1)
    assert store.load(other) is None
    store.save(other, 2)
    assert (store.load(CELL), store.load(other)) == (1, 2)


DAMAGES = [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cell_is_run_again(damage: bytes, tmp_path: Path) -> None:
    store = CellStore(tmp_path, CONTEXT)
    store.save(CELL, 1)
    (path,) = (tmp_path / "cells").iterdir()
    path.write_bytes(damage)
    assert store.load(CELL) is None


@pytest.mark.parametrize("name", ["rows.jsonl", "run.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_results_of_an_earlier_run_are_set_aside(name: str, damage: bytes, tmp_path: Path) -> None:
    store = CellStore(tmp_path, CONTEXT)
    store.finish([ROW], {"checks": []})
    (tmp_path / name).write_bytes(damage)
    assert store.finish([ROW], {"checks": []}) == tmp_path / "earlier" / "1"
    assert read_rows(tmp_path) == [ROW]


def test_other_results_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    store = CellStore(tmp_path, CONTEXT)
    store.save(CELL, 1)
    assert store.finish([ROW], {"date": "first"}) is None
    (tmp_path / "report.md").write_text("first report")
    assert store.finish([ROW], {"date": "again"}) is None, "the same rows"
    kept = store.finish([replace(ROW, value=0.7)], {"date": "second"})
    assert kept == tmp_path / "earlier" / "1"
    assert read_rows(kept) == [ROW]
    assert (kept / "report.md").read_text() == "first report"
    assert read_rows(tmp_path)[0].value == 0.7
    assert store.load(CELL) == 1
    assert store.finish([replace(ROW, value=0.8)], {}) == tmp_path / "earlier" / "2"
